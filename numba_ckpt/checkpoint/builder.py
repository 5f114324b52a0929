"""From a batch to checkpoint metadata: select rows, plan, send to the device, gather."""

from typing import Any

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import (
    check_array,
    check_choice,
    check_int,
    check_int64_range,
    check_integers,
    check_shape,
    refuse,
)
from numba_ckpt._jit import host_loop
from numba_ckpt._staging import StagingRing
from numba_ckpt.cache.config import CACHE_MODES
from numba_ckpt.checkpoint.metadata import PrefillCheckpointMetadata
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.gather_state_indices import check_table_extent, gather_state_indices
from numba_ckpt.kernels.plan_rows import PlannedRows, plan_rows
from numba_ckpt.planning import BatchLayout, CheckpointGeometry, DeviceBatchLayout, compute_prefill_checkpoints

__all__ = ["CACHE_MODES", "PrefillCheckpointBuilder"]


@host_loop
def _select_rows(seq_lens, query_start_loc, request_rows, selected_seq_lens, selected_query_lens):  # type: ignore[no-untyped-def]
    """Lengths of the requested rows and one past the highest row; the first bad entry as -1 - entry instead."""
    num_rows = 0
    for index in range(request_rows.size):
        row = request_rows[index]
        if row < 0 or row >= seq_lens.size:
            return -1 - index
        selected_seq_lens[index] = seq_lens[row]
        selected_query_lens[index] = query_start_loc[row + 1] - query_start_loc[row]
        num_rows = max(num_rows, row + 1)
    return num_rows


class PrefillCheckpointBuilder:
    """Builds the checkpoint metadata of each step for one state group.

    Parameters
    ----------
    geometry : CheckpointGeometry or None
        The group's sizes; None while they are unresolved (the minimal cache of a profiling run).
    cache_mode : {"none", "all", "align"}
        How the group caches states; only ``"align"`` has checkpoints.
    num_checkpoint_blocks : int
        Blocks that the allocator reserves per request for checkpoints; 0 means there is nowhere to write.

    Notes
    -----
    Behaviour follows vLLM's ``MambaPrefillCheckpointBuilder``. Not thread-safe: one builder per thread.

    Examples
    --------
    >>> builder = PrefillCheckpointBuilder(None)  # sizes not known yet: nothing to build
    >>> builder.build(BatchLayout(np.array([9]), np.array([0, 9]), np.zeros((1, 1), np.int32)), [0]) is None
    True
    """

    def __init__(
        self, geometry: CheckpointGeometry | None, cache_mode: str = "align", num_checkpoint_blocks: int = 1
    ) -> None:
        if geometry is not None and not isinstance(geometry, CheckpointGeometry):
            got = type(geometry).__name__
            refuse("geometry", "a CheckpointGeometry or None", got, "make one from the block sizes", ArgumentTypeError)
        self.geometry = geometry
        self.cache_mode = check_choice("cache_mode", cache_mode, CACHE_MODES)
        self.num_checkpoint_blocks = check_int("num_checkpoint_blocks", num_checkpoint_blocks, 0)
        self._ring: StagingRing | None = None

    def build(
        self, batch: BatchLayout | DeviceBatchLayout, request_rows: Any, out: PlannedRows | None = None
    ) -> PrefillCheckpointMetadata | None:
        """Return where the checkpoints of some rows of a batch go, or None where there is none.

        Parameters
        ----------
        batch : BatchLayout or DeviceBatchLayout
            The whole step: decodes and prefills. With lengths on the device, the plan is made there (`plan_rows`).
        request_rows : sequence of int, ndarray or cupy.ndarray
            [R], positions in the batch of the rows wanted, in any order; for a `DeviceBatchLayout` also on its device,
            and -1 for padding.
        out : PlannedRows, optional
            For a `DeviceBatchLayout`: buffers of at least R rows that are overwritten, and that the metadata reads. A
            captured graph needs them; by default they are allocated.

        Returns
        -------
        PrefillCheckpointMetadata or None
            None if the cache mode is not ``"align"``, no checkpoint block is reserved, the geometry is unresolved, or
            no row has a checkpoint, as far as the host knows the lengths.

        Raises
        ------
        ArgumentError, ArgumentTypeError, BackendMixError
            Rows outside the batch or the block table, a column outside the block table, bad lengths.

        Notes
        -----
        For a block table on a device: one asynchronous copy from a pinned buffer and one launch, both on the current
        stream; no synchronisation. With lengths and rows on the device one launch alone.

        Examples
        --------
        >>> builder = PrefillCheckpointBuilder(CheckpointGeometry(8, 2048, 8, checkpoint_alignment=8))
        >>> table = np.array([[0, 0, 0], [3, 4, 5]], np.int32)
        >>> batch = BatchLayout(np.array([7, 5000]), np.array([0, 1, 4993]), table)
        >>> metadata = builder.build(batch, [1])
        >>> metadata.offsets_cpu.tolist(), metadata.state_indices.tolist()
        ([4984], [4])
        """
        if self.cache_mode != "align" or self.num_checkpoint_blocks == 0 or self.geometry is None:
            return None
        if isinstance(batch, DeviceBatchLayout):
            return self._build_on_device(batch, request_rows, self.geometry, out)
        if not isinstance(batch, BatchLayout):
            got, do = type(batch).__name__, "describe the step's rows in one"
            refuse("batch", "a BatchLayout or DeviceBatchLayout", got, do, ArgumentTypeError)
        if out is not None:
            refuse("out", "None for lengths on the host", type(out).__name__, "pass a DeviceBatchLayout to use buffers")
        # A copy: metadata keeps the rows, and engines reuse their row buffers.
        rows = np.array(check_int64_range("request_rows", check_integers("request_rows", request_rows)))
        seq_lens, query_lens, num_rows = _lengths_of(batch, rows)
        plan = compute_prefill_checkpoints(seq_lens, query_lens, self.geometry)
        if not plan.any:
            return None
        extent = num_rows, int(plan.block_cols.max()) + 1
        check_table_extent(batch.block_table, *extent)
        offsets, rows, cols = self._place(batch.block_table, plan.offsets, rows, plan.block_cols)
        indices = gather_state_indices(batch.block_table, rows, cols, extent)
        return PrefillCheckpointMetadata(offsets, indices, plan.offsets, query_lens, rows, cols, extent)

    def _build_on_device(
        self, batch: DeviceBatchLayout, request_rows: Any, geometry: CheckpointGeometry, out: PlannedRows | None
    ) -> PrefillCheckpointMetadata:
        """Plan where the lengths are; only the device knows which rows have a checkpoint."""
        backend = backend_of(block_table=batch.block_table)
        rows = request_rows
        if isinstance(rows, (list, tuple)) or backend_of(request_rows=rows).is_host:
            rows = check_int64_range("request_rows", check_integers("request_rows", rows))
            (rows,) = self._place(batch.block_table, rows.astype(np.int64))
        if out is None:
            check_array("request_rows", rows, 1, "i")
            dtypes = np.int32, np.int64, np.int32
            out = PlannedRows(*(backend.empty(rows.shape, dtype) for dtype in dtypes))
        plan_rows(batch, rows, geometry, out)
        offsets, cols, indices = (array[: rows.shape[0]] for array in out)
        return PrefillCheckpointMetadata(offsets, indices, None, None, rows, cols)

    def _place(self, block_table: Array, *arrays: np.ndarray) -> list[Array]:
        """Bring arrays to the device of the block table."""
        backend = backend_of(block_table=block_table)
        if not isinstance(backend, DeviceBackend):
            return list(arrays)
        if self._ring is None or self._ring.backend is not backend:
            self._ring = StagingRing(backend)
        return self._ring.send(*arrays)


def _lengths_of(batch: BatchLayout, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return sequence and query lengths (int64 [R]) of `rows`, and one past the highest of them."""
    seq_lens = check_integers("seq_lens_cpu", batch.seq_lens_cpu)
    starts = check_integers("query_start_loc_cpu", batch.query_start_loc_cpu)
    check_shape("query_start_loc_cpu", starts, (seq_lens.size + 1,), "it has one entry more than seq_lens_cpu")
    seq_lens, starts = check_int64_range("seq_lens_cpu", seq_lens), check_int64_range("query_start_loc_cpu", starts)
    selected = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
    num_rows = int(_select_rows(seq_lens, starts, rows, *selected))
    if num_rows < 0:
        got = f"{rows[-1 - num_rows]} at entry {-1 - num_rows}"
        refuse("request_rows", f"rows in [0, {seq_lens.size})", got, "pass positions in the batch")
    return *selected, num_rows
