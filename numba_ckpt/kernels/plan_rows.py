"""The checkpoints of a batch, planned where the lengths are: offsets, columns and blocks in one launch."""

from typing import NamedTuple, NoReturn

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import INT32_MAX, check_array, check_kind, check_shape, check_writable, refuse
from numba_ckpt._jit import cuda, host_loop, int64, kernel, rule, strided
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.planning import CheckpointGeometry, DeviceBatchLayout
from numba_ckpt.rules import (
    NO_BLOCK_COL,
    NO_OFFSET,
    NULL_BLOCK_ID,
    fits_int32,
    global_index,
    is_inside,
    prefill_checkpoint,
)

__all__ = ["PlannedRows", "plan_rows"]


class PlannedRows(NamedTuple):
    """Buffers for a plan of at most M rows; a captured graph finds it at the same addresses in every step.

    Attributes
    ----------
    offsets : ndarray or cupy.ndarray
        int32 [M], tokens from a row's query start to its checkpoint; `NO_OFFSET` for none.
    block_cols : ndarray or cupy.ndarray
        int64 [M], block-table column of the checkpoint; `NO_BLOCK_COL` for none.
    state_indices : ndarray or cupy.ndarray
        int32 [M], block that takes the state; `NULL_BLOCK_ID` for none.
    """

    offsets: Array
    block_cols: Array
    state_indices: Array


@rule
def _is_planned(query_start, query_len, seq_len):  # type: ignore[no-untyped-def]
    """Say whether a row's lengths are possible, and it computes something."""
    return (query_start >= 0) & (query_len > 0) & (query_len <= seq_len)


@rule
def _row_checkpoint(query_start, query_end, seq_len, sizes):  # type: ignore[no-untyped-def]
    """Offset and column of a row whose tokens are [query_start, query_end) of the batch."""
    unit, hash_block, state_block, alignment, drop_eagle_block, num_lookahead_tokens = sizes
    length, start = int64(seq_len), int64(query_start)
    query_len = int64(query_end) - start
    offset, col = prefill_checkpoint(
        length - query_len,
        length,
        unit,
        hash_block,
        state_block,
        alignment,
        drop_eagle_block != 0,
        num_lookahead_tokens,
    )
    exists = _is_planned(start, query_len, length) & (offset <= INT32_MAX) & (col >= 0)
    return (offset, col) if exists else (int64(NO_OFFSET), int64(NO_BLOCK_COL))


@host_loop
def _plan_rows_host(block_table, seq_lens, starts, rows, sizes, offsets, block_cols, state_indices):  # type: ignore[no-untyped-def]
    for index in range(offsets.size):
        offset, col, block = int64(NO_OFFSET), int64(NO_BLOCK_COL), int64(NULL_BLOCK_ID)
        if index < rows.size and rows[index] >= 0:
            row = rows[index]
            offset, col = _row_checkpoint(starts[row], starts[row + 1], seq_lens[row], sizes)
            if col >= 0:
                block = int64(block_table[row, col])
        offsets[index], block_cols[index], state_indices[index] = offset, col, block


@kernel
def _plan_rows_kernel(  # type: ignore[no-untyped-def]
    block_table, seq_lens, starts, rows, unit, hash_block, state_block, alignment, drops, num_lookahead_tokens,
    offsets, block_cols, state_indices,
):  # fmt: skip
    sizes = unit, hash_block, state_block, alignment, drops, num_lookahead_tokens
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    for index in strided(first, offsets.size, global_index(cuda.gridDim.x, cuda.blockDim.x, 0)):
        offset, col, block = int64(NO_OFFSET), int64(NO_BLOCK_COL), int64(NULL_BLOCK_ID)
        row = int64(rows[index]) if index < rows.size else int64(-1)
        if is_inside(row, min(starts.size - 1, min(seq_lens.size, block_table.shape[0]))):
            offset, col = _row_checkpoint(starts[row], starts[row + 1], seq_lens[row], sizes)
            if not is_inside(col, block_table.shape[1]):
                offset, col = int64(NO_OFFSET), int64(NO_BLOCK_COL)
            if col >= 0:
                block = int64(block_table[row, col])
        offsets[index], block_cols[index] = offset, col
        state_indices[index] = block if fits_int32(block) else NULL_BLOCK_ID


_BAD_ROW, _BAD_LENGTHS, _BAD_COL, _BAD_BLOCK = range(4)


@host_loop
def _first_bad_entry(block_table, seq_lens, starts, rows, sizes):  # type: ignore[no-untyped-def]
    """First entry with something wrong, and what; (-1, 0) if there is none."""
    num_reqs = min(starts.size - 1, seq_lens.size)
    for index in range(rows.size):
        row = int64(rows[index])
        if row == -1:
            continue
        if not is_inside(row, min(num_reqs, block_table.shape[0])):
            return index, _BAD_ROW
        query_len = int64(starts[row + 1]) - int64(starts[row])
        if query_len != 0 and not _is_planned(int64(starts[row]), query_len, int64(seq_lens[row])):
            return index, _BAD_LENGTHS
        col = _row_checkpoint(starts[row], starts[row + 1], seq_lens[row], sizes)[1]
        if col >= block_table.shape[1]:
            return index, _BAD_COL
        if col >= 0 and not fits_int32(block_table[row, col]):
            return index, _BAD_BLOCK
    return -1, 0


def _refuse_entry(batch: DeviceBatchLayout, rows: Array, entry: int, what: int) -> NoReturn:
    """Say what is wrong with the entry that `_first_bad_entry` found."""
    row, table = int(rows[entry]), batch.block_table
    if what == _BAD_ROW:
        num_reqs = min(batch.query_start_loc.size - 1, batch.seq_lens.size, table.shape[0])
        got = f"{row} at entry {entry}"
        refuse("request_rows", f"rows in [0, {num_reqs}), or -1", got, "pass positions in the batch")
    if what == _BAD_LENGTHS:
        got = f"{batch.seq_lens[row]} tokens, queries at {batch.query_start_loc[row : row + 2].tolist()}, in row {row}"
        refuse("seq_lens", "ascending starts, and query <= sequence", got, "count the query's tokens too")
    if what == _BAD_COL:
        got = f"{table.shape[1]}, too few for the {batch.seq_lens[row]} tokens of row {row}"
        do = "size rows as ceil(max length / state_block_size) and count columns in the state group's blocks"
        refuse("block_table", "a column for each block of states", got, do)
    refuse("block_table", "block ids that fit int32", f"another in row {row}", "check who filled the table")


def _check_out(out: PlannedRows, num_rows: int) -> None:
    for name, array, dtype in zip(out._fields, out, (np.int32, np.int64, np.int32), strict=True):
        check_array(name, array, 1)
        if array.dtype != dtype:
            refuse(name, np.dtype(dtype).name, array.dtype, "allocate it with this dtype", ArgumentTypeError)
        check_shape(name, array, out.offsets.shape, "the buffers have one entry for each row")
        check_writable(name, array)
    if out.offsets.shape[0] < num_rows:
        refuse(
            "offsets", f"at least {num_rows} entries", out.offsets.shape[0], "size the buffers for the largest batch"
        )


def plan_rows(batch: DeviceBatchLayout, request_rows: Array, geometry: CheckpointGeometry, out: PlannedRows) -> None:
    """Plan the checkpoints of some rows from lengths that the host need not know.

    Parameters
    ----------
    batch : DeviceBatchLayout
        Lengths and block table of the whole step, on one device.
    request_rows : ndarray or cupy.ndarray
        int32 or int64 [R], positions in the batch of the rows wanted; -1 for padding.
    geometry : CheckpointGeometry
        The sizes that place a checkpoint.
    out : PlannedRows
        Overwritten, all M rows: those beyond R have no checkpoint.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, buffers smaller than R, or arrays of different devices; on the host also rows outside
        the batch, impossible lengths, and columns or block ids out of range. Nothing is written then.

    Notes
    -----
    The same rule as `compute_prefill_checkpoints`, whose plan it equals bit by bit. On a device: one launch on the
    current stream, no copy, no synchronisation, so that it can be captured, and lengths may be those of drafts that the
    device accepted a moment ago; what the host would refuse has no checkpoint there. A row without tokens has none.

    Examples
    --------
    >>> table = np.array([[0, 0, 0], [3, 4, 5]], np.int32)
    >>> batch = DeviceBatchLayout(np.array([7, 5000]), np.array([0, 1, 4993]), table)
    >>> out = PlannedRows(np.empty(3, np.int32), np.empty(3, np.int64), np.empty(3, np.int32))
    >>> plan_rows(batch, np.array([1, -1]), CheckpointGeometry(8, 2048, 8, checkpoint_alignment=8), out)
    >>> [array.tolist() for array in out]
    [[4984, 0, 0], [1, -1, -1], [4, 0, 0]]
    """
    check_kind("batch", batch, DeviceBatchLayout)
    check_kind("geometry", geometry, CheckpointGeometry)
    check_kind("out", out, PlannedRows)
    seq_lens, starts, table = batch.seq_lens, batch.query_start_loc, batch.block_table
    backend = backend_of(
        block_table=table, seq_lens=seq_lens, query_start_loc=starts, request_rows=request_rows, **out._asdict()
    )
    check_array("block_table", table, 2, "i")
    for name, array in (("seq_lens", seq_lens), ("query_start_loc", starts), ("request_rows", request_rows)):
        check_array(name, array, 1, "i")
    if starts.shape[0] < 1:
        refuse("query_start_loc", "N + 1 entries", 0, "begin it with 0")
    _check_out(out, request_rows.shape[0])
    arrays, sizes = (table, seq_lens, starts, request_rows), geometry.sizes
    if isinstance(backend, DeviceBackend):
        launch_grid(backend, _plan_rows_kernel, (1, out.offsets.shape[0]), (*arrays, *sizes, *out))
        return
    entry, what = _first_bad_entry(*arrays, sizes)
    if entry >= 0:
        _refuse_entry(batch, request_rows, entry, what)
    _plan_rows_host(*arrays, sizes, *out)
