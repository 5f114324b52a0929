"""The block tables of all cache groups: rows grow on the host, a step reads them where the model runs.

::

    append_block_ids ─► staged (host) ─ apply_staged_writes ─► tables ─┬─ gather_block_tables ─► tables of the batch
                                                                       └─ compute_slot_mappings ─► slots of its tokens

Each arrow to the right of *staged* is one launch for all groups.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import INT32_MAX, check_array, check_bool, check_int, check_integers, refuse
from numba_ckpt._staging import StagingRing
from numba_ckpt.cache.config import EngineConfig
from numba_ckpt.cache.groups import KVCacheConfig
from numba_ckpt.cache.staged_writes import StagedWrite, StagedWrites
from numba_ckpt.cache.table_groups import table_groups
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.apply_staged_writes import apply_staged_writes
from numba_ckpt.kernels.gather_block_tables import gather_block_tables
from numba_ckpt.kernels.slot_mapping import slot_mapping
from numba_ckpt.planning import TableArrays, TableGroup, TableLayout
from numba_ckpt.rules import NULL_BLOCK_ID, PAD_SLOT_ID

__all__ = ["BlockTables"]


class BlockTables:
    """Block tables of all groups, the batch's tables gathered from them, and the slots of its tokens.

    The arrays are allocated once, so that a captured graph finds them where they were.

    Parameters
    ----------
    groups : sequence of TableGroup
        The tables, in the order of the cache configuration.
    max_num_reqs : int
        Rows of each table, and most requests of a batch.
    max_num_tokens : int
        Most tokens of a batch.
    num_pool_blocks : int, optional
        Blocks of the pool; ids beyond are refused. By default any id that fits is taken.
    array_module : module, optional
        ``numpy`` (default) or ``cupy``: where the tables live.

    Attributes
    ----------
    num_blocks_cpu : ndarray
        int32 [groups, max_num_reqs], entries of each row in use once all staged writes are applied.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A size is out of range, or something is no `TableGroup`.

    Notes
    -----
    Not thread-safe. `from_config` makes one from an engine's configuration.

    Examples
    --------
    >>> tables = BlockTables([TableGroup(block_size=4, width=3)], max_num_reqs=2, max_num_tokens=8)
    >>> tables.append_block_ids(1, [[7, 9]])
    >>> tables.apply_staged_writes()
    >>> [table.tolist() for table in tables.gather_block_tables(np.array([1]), num_reqs_padded=2)]
    [[[7, 9, 0], [0, 0, 0]]]
    >>> tables.compute_slot_mappings(np.array([1]), np.array([0, 3]), np.array([3, 4, 5]), 4).tolist()
    [[31, 36, 37, -1]]
    """

    def __init__(
        self,
        groups: Sequence[TableGroup],
        max_num_reqs: int,
        max_num_tokens: int,
        num_pool_blocks: int | None = None,
        array_module: Any = np,
    ) -> None:
        self.layout = TableLayout(groups, check_int("max_num_reqs", max_num_reqs, 1))
        self.max_num_reqs, self.max_num_tokens = max_num_reqs, check_int("max_num_tokens", max_num_tokens, 1)
        pool = INT32_MAX if num_pool_blocks is None else check_int("num_pool_blocks", num_pool_blocks, 1)
        self._num_ids = [min(pool, INT32_MAX // group.num_parts) for group in self.layout.groups]
        shape = len(self.layout.groups), max_num_reqs
        if not callable(getattr(array_module, "empty", None)):
            got = repr(array_module)
            refuse("array_module", "numpy or cupy", got, "pass the module where tables live", ArgumentTypeError)
        backend = backend_of(array_module=array_module.empty((0,), np.int32))
        self._ring = StagingRing(backend) if isinstance(backend, DeviceBackend) else None
        params, no_tokens = self._place(self.layout.params, np.zeros(1, np.int32))
        entries, num_blocks = backend.empty((self.layout.num_entries,), np.int32), backend.empty(shape, np.int32)
        self._gathered = backend.empty((self.layout.num_entries,), np.int32)
        self._slots = backend.empty((shape[0], max_num_tokens), np.int64)
        entries[...] = self._gathered[...] = NULL_BLOCK_ID
        num_blocks[...], self._slots[...] = 0, PAD_SLOT_ID
        self._arrays = TableArrays(self.layout, params, entries, num_blocks)
        # A batch of no requests: what captures look at.
        self._no_rows, self._no_tokens = no_tokens[:0], no_tokens
        # How far the last step wrote anything but padding.
        self._num_gathered_rows = self._num_mapped_tokens = 0
        self._staged = StagedWrites()
        self.num_blocks_cpu = np.zeros(shape, np.int32)

    @property
    def tables(self) -> tuple[Array, ...]:
        """int32 [max_num_reqs, num_cols] of each group, as `apply_staged_writes` left them."""
        return self.layout.views(self._arrays.entries)

    @classmethod
    def from_config(
        cls,
        kv_cache_config: KVCacheConfig,
        config: EngineConfig,
        kernel_block_sizes: Sequence[int] | None = None,
        array_module: Any = np,
    ) -> Self:
        """Make the tables of an engine's cache groups.

        Parameters
        ----------
        kv_cache_config : KVCacheConfig
            The groups, and the size of the pool.
        config : EngineConfig
            Limits, and context parallelism, which applies to sharded groups only.
        kernel_block_sizes : sequence of int, optional
            Block size of each group's attention kernels; by default the groups' own.
        array_module : module, optional
            ``numpy`` or ``cupy``.
        """
        groups = table_groups(kv_cache_config, config, kernel_block_sizes)
        limits = config.limits
        sizes = limits.max_num_requests, limits.max_num_batched_tokens
        return cls(groups, *sizes, kv_cache_config.num_blocks, array_module)

    def append_block_ids(self, row: int, block_ids: Sequence[Any], overwrite: bool = False) -> None:
        """Stage blocks at the end of a row, or from its beginning.

        Parameters
        ----------
        row : int
            The request's row in all tables.
        block_ids : sequence
            For each group a list or integer array of block ids of the pool; it may be empty.
        overwrite : bool
            Replace what the row holds: a new request has been given it.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A row or id out of range, too few groups, or more blocks than a row has room for. Nothing is staged then,
            for no group.
        """
        check_int("row", row, 0, self.max_num_reqs - 1)
        check_bool("overwrite", overwrite)
        num_groups, do = len(self.layout.groups), "pass an empty list where there are none"
        if not isinstance(block_ids, (list, tuple)):
            got = type(block_ids).__name__
            refuse("block_ids", f"a list of ids for each of {num_groups} groups", got, do, ArgumentTypeError)
        if len(block_ids) != num_groups:
            refuse("block_ids", f"ids for each of {num_groups} groups", len(block_ids), do)
        writes = [self._check_write(group, row, ids, overwrite) for group, ids in enumerate(block_ids)]
        for write, ids, end in writes:
            if overwrite or ids.size > 0:
                self._staged.add(write, ids)
                self.num_blocks_cpu[write.group, row] = end

    def _check_write(self, group: int, row: int, ids: Any, overwrite: bool) -> tuple[StagedWrite, np.ndarray, int]:
        """Return where checked ids go, and the row's entries in use afterwards."""
        name = f"block_ids[{group}]"
        values = check_integers(name, ids)
        if values.size and not 0 <= values.min() <= values.max() < self._num_ids[group]:
            bad = values.min() if values.min() < 0 else values.max()
            refuse(name, f"ids in [0, {self._num_ids[group]})", bad, "pass blocks of the pool")
        table = self.layout.groups[group]
        col = 0 if overwrite else int(self.num_blocks_cpu[group, row])
        end = col + values.size * table.num_parts
        if end > table.num_cols:
            free = (table.num_cols - col) // table.num_parts
            do = "size rows by the longest sequence, speculative blocks among it"
            refuse(name, f"at most {free} blocks, the room of row {row}", values.size, do)
        return StagedWrite(group, row, col, table.num_parts), values, end

    def apply_staged_writes(self) -> None:
        """Write all staged blocks into the tables.

        Notes
        -----
        On a device: one asynchronous copy from a pinned buffer and one launch, on the current stream; nothing where
        nothing is staged.
        """
        if len(self._staged) == 0:
            return
        writes, block_ids = self._place(*self._staged.take(self.num_blocks_cpu))
        apply_staged_writes(self._arrays, writes, block_ids, self._staged.max_num_entries)
        self._staged.clear()

    def _place(self, *arrays: np.ndarray) -> Sequence[Array]:
        """Bring host arrays to where the tables are."""
        return arrays if self._ring is None else self._ring.send(*arrays)

    def gather_block_tables(
        self, request_rows: Array, num_reqs_padded: int | None = None, num_computed_tokens: Array = None
    ) -> tuple[Array, ...]:
        """Return each group's table of a batch, its rows in the batch's order.

        Parameters
        ----------
        request_rows : ndarray or cupy.ndarray
            Integer [N], table row of each request; -1 gives a row of zeros.
        num_reqs_padded : int, optional
            Rows to return, by default N; those beyond the requests are zeros.
        num_computed_tokens : ndarray or cupy.ndarray, optional
            Integer [max_num_reqs], by table row. With it, entries wholly below a group's sliding window are null.

        Returns
        -------
        tuple
            int32 [num_reqs_padded, num_cols] for each group, at the same addresses in every step.

        Raises
        ------
        ArgumentError, ArgumentTypeError, BackendMixError
            See `numba_ckpt.kernels.gather_block_tables`.
        """
        check_array("request_rows", request_rows, 1, "i")
        if (num_reqs := int(request_rows.shape[0])) > self.max_num_reqs:
            refuse("request_rows", f"at most {self.max_num_reqs} requests", num_reqs, "make larger tables")
        size = num_reqs if num_reqs_padded is None else num_reqs_padded
        check_int("num_reqs_padded", size, num_reqs, self.max_num_reqs)
        num_rows = max(size, self._num_gathered_rows)
        gather_block_tables(self._arrays, request_rows, self._gathered, num_rows, num_computed_tokens)
        self._num_gathered_rows = num_reqs
        return self.layout.views(self._gathered, size)

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[Array, ...]:
        """Return tables of zeros for a graph capture, at the addresses that `gather_block_tables` returns."""
        return self.gather_block_tables(self._no_rows, num_reqs)

    def compute_slot_mappings(
        self, request_rows: Array, query_start_loc: Array, positions: Array, num_tokens_padded: int
    ) -> Array:
        """Return the cache slot of each token of a batch for each group.

        Parameters
        ----------
        request_rows : ndarray or cupy.ndarray
            Integer [N], table row of each request; -1 for a dummy, whose tokens have no slots.
        query_start_loc : ndarray or cupy.ndarray
            Integer [N + 1], where each request's tokens begin in the batch.
        positions : ndarray or cupy.ndarray
            Integer [>= T], position of each token in its sequence.
        num_tokens_padded : int
            Tokens to return, at least T.

        Returns
        -------
        ndarray or cupy.ndarray
            int64 [groups, num_tokens_padded], at the same address in every step; `PAD_SLOT_ID` (-1) where a token is
            not stored. See `numba_ckpt.kernels.slot_mapping`.

        Raises
        ------
        ArgumentError, ArgumentTypeError, BackendMixError
            See `numba_ckpt.kernels.slot_mapping`.
        """
        size = check_int("num_tokens_padded", num_tokens_padded, 0, self.max_num_tokens)
        check_array("query_start_loc", query_start_loc, 1, "i")
        if self._ring is None and query_start_loc.size and query_start_loc[-1] > size:
            do = "pad to a size that holds the batch"
            refuse("num_tokens_padded", f"at least {query_start_loc[-1]} tokens", size, do)
        num_tokens = max(size, self._num_mapped_tokens)
        slot_mapping(self._arrays, request_rows, query_start_loc, positions, self._slots, num_tokens)
        self._num_mapped_tokens = size
        return self._slots[:, :size]

    def get_dummy_slot_mappings(self, num_tokens: int) -> Array:
        """Return slots that are all padding, at the address that `compute_slot_mappings` returns."""
        return self.compute_slot_mappings(self._no_rows, self._no_tokens, self._no_rows, num_tokens)
