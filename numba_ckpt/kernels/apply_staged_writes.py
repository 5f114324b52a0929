"""Blocks that requests were given since the last step, written into the block tables of all groups in one pass."""

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import INT32_MAX, check_array, check_int, check_shape, refuse
from numba_ckpt._jit import cuda, host_loop, kernel, strided
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.planning import TableArrays
from numba_ckpt.planning.table_layout import check_tables
from numba_ckpt.rules import (
    TABLE_COLS,
    TABLE_PARTS,
    TABLE_START,
    entry_index,
    floor_div,
    global_index,
    is_inside,
    kernel_block_id,
)

__all__ = [
    "NUM_WRITE_FIELDS",
    "WRITE_COL",
    "WRITE_COUNT",
    "WRITE_GROUP",
    "WRITE_ROW",
    "WRITE_SIZE",
    "WRITE_SOURCE",
    "apply_staged_writes",
]

WRITE_GROUP = 0
"""Group of a staged write."""
WRITE_ROW = 1
"""Table row."""
WRITE_COL = 2
"""First entry written, counted in the group's kernel blocks."""
WRITE_SIZE = 3
"""Blocks of the pool that are written."""
WRITE_SOURCE = 4
"""Index of the first of them in the staged ids."""
WRITE_COUNT = 5
"""Entries of the row that are in use afterwards."""
NUM_WRITE_FIELDS = 6
"""Numbers per write."""


@host_loop
def _apply_staged_writes_host(params, entries, num_blocks, writes, block_ids):  # type: ignore[no-untyped-def]
    for write in range(writes.shape[0]):
        group, row = writes[write, WRITE_GROUP], writes[write, WRITE_ROW]
        num_parts = params[group, TABLE_PARTS]
        entry = entry_index(params[group, TABLE_START], row, params[group, TABLE_COLS], writes[write, WRITE_COL])
        source = writes[write, WRITE_SOURCE]
        num_blocks[group, row] = writes[write, WRITE_COUNT]
        for index in range(source, source + writes[write, WRITE_SIZE]):
            for part in range(num_parts):
                entries[entry + part] = kernel_block_id(block_ids[index], num_parts, part)
            entry += num_parts


@kernel
def _apply_staged_writes_kernel(params, entries, num_blocks, writes, block_ids):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    for write in strided(cuda.blockIdx.y, writes.shape[0], cuda.gridDim.y):
        group, row = writes[write, WRITE_GROUP], writes[write, WRITE_ROW]
        if is_inside(group, params.shape[0]) & is_inside(row, num_blocks.shape[1]):
            num_parts, num_cols = params[group, TABLE_PARTS], params[group, TABLE_COLS]
            if first == 0:
                num_blocks[group, row] = writes[write, WRITE_COUNT]
            size = writes[write, WRITE_SIZE] * num_parts
            for index in strided(first, size, global_index(cuda.gridDim.x, cuda.blockDim.x, 0)):
                block = floor_div(index, num_parts)
                source, col = writes[write, WRITE_SOURCE] + block, writes[write, WRITE_COL] + index
                if is_inside(source, block_ids.size) & is_inside(col, num_cols):
                    entry = entry_index(params[group, TABLE_START], row, num_cols, col)
                    part = index - block * num_parts
                    entries[entry] = kernel_block_id(block_ids[source], num_parts, part)


@host_loop
def _first_bad_write(params, num_rows, writes, block_ids):  # type: ignore[no-untyped-def]
    """First write that leaves its row, the staged ids or the ids' range; -1 if there is none."""
    for write in range(writes.shape[0]):
        group, row, col = writes[write, WRITE_GROUP], writes[write, WRITE_ROW], writes[write, WRITE_COL]
        size, source = writes[write, WRITE_SIZE], writes[write, WRITE_SOURCE]
        if not (is_inside(group, params.shape[0]) and is_inside(row, num_rows)):
            return write
        num_parts, num_cols = params[group, TABLE_PARTS], params[group, TABLE_COLS]
        if not is_inside(writes[write, WRITE_COUNT], num_cols + 1):
            return write
        if not (is_inside(col, num_cols + 1) and is_inside(size, (num_cols - col) // num_parts + 1)):
            return write
        if not (is_inside(source, block_ids.size + 1) and is_inside(size, block_ids.size - source + 1)):
            return write
        for index in range(source, source + size):
            if not is_inside(block_ids[index], (INT32_MAX + 1) // num_parts):
                return write
    return -1


def apply_staged_writes(tables: TableArrays, writes: Array, block_ids: Array, max_num_entries: int) -> None:
    """Write staged blocks into their rows, each block as the group's kernel blocks, and set the rows' counts.

    Parameters
    ----------
    tables : TableArrays
        The block tables, written.
    writes : ndarray or cupy.ndarray
        int64 [W, `NUM_WRITE_FIELDS`], what goes where; the writes of one row must not overlap and must agree on
        `WRITE_COUNT`.
    block_ids : ndarray or cupy.ndarray
        Integer [M], ids of the pool, taken in the order that the writes say.
    max_num_entries : int
        Table entries of the longest write: how wide a device launches.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, arrays of different devices; on the host also a write that leaves its row or the staged
        ids, and ids that do not fit. Nothing is written then.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation; what lies out of range is left out.

    Examples
    --------
    >>> import numpy as np
    >>> from numba_ckpt.planning import TableGroup, TableLayout
    >>> layout = TableLayout([TableGroup(block_size=8, width=2, kernel_block_size=4)], num_rows=2)
    >>> tables = TableArrays(layout, layout.params, np.zeros(64, np.int32), np.zeros((1, 2), np.int32))
    >>> apply_staged_writes(tables, np.array([[0, 1, 0, 2, 0, 4]]), np.array([5, 3]), max_num_entries=4)
    >>> layout.views(tables.entries)[0].tolist(), tables.num_blocks.tolist()
    ([[0, 0, 0, 0], [10, 11, 6, 7]], [[0, 4]])
    """
    check_tables(tables)
    backend = backend_of(entries=tables.entries, writes=writes, block_ids=block_ids)
    check_array("writes", writes, 2, "i")
    check_shape("writes", writes, (writes.shape[0], NUM_WRITE_FIELDS), "each write has these fields")
    check_array("block_ids", block_ids, 1, "i")
    width = check_int("max_num_entries", max_num_entries, 0)
    if isinstance(backend, DeviceBackend):
        arguments = tables.params, tables.entries, tables.num_blocks, writes, block_ids
        # A write of no blocks still sets its row's count.
        launch_grid(backend, _apply_staged_writes_kernel, (writes.shape[0], max(width, 1)), arguments)
        return
    if (bad := int(_first_bad_write(tables.params, tables.layout.num_rows, writes, block_ids))) >= 0:
        expected, do = "writes inside their row and the staged ids", "stage them with BlockTables.append_block_ids"
        refuse("writes", expected, f"{writes[bad].tolist()} at entry {bad}", do)
    _apply_staged_writes_host(tables.params, tables.entries, tables.num_blocks, writes, block_ids)
