"""Rows of a batch out of the block tables of all cache groups, in one pass."""

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import check_array, check_int, refuse
from numba_ckpt._jit import address_of, copy_bytes, cuda, host_loop, int64, kernel, strided
from numba_ckpt.kernels._launch import launch_grid, num_run_threads
from numba_ckpt.kernels._runs import copy_run, zero_run
from numba_ckpt.planning import TableArrays
from numba_ckpt.planning.table_layout import check_tables, refuse_table_row
from numba_ckpt.rules import (
    NULL_BLOCK_ID,
    TABLE_BLOCK_SIZE,
    TABLE_COLS,
    TABLE_CP_SIZE,
    TABLE_START,
    TABLE_WINDOW,
    entry_index,
    global_index,
    is_inside,
    num_cols_below_window,
)

__all__ = ["gather_block_tables"]


@host_loop
def _gather_block_tables_host(params, entries, num_blocks, request_rows, num_computed_tokens, gathered, num_rows):  # type: ignore[no-untyped-def]
    for group in range(params.shape[0]):
        start, num_cols = params[group, TABLE_START], params[group, TABLE_COLS]
        size, ranks, window = params[group, TABLE_BLOCK_SIZE], params[group, TABLE_CP_SIZE], params[group, TABLE_WINDOW]
        for line in range(num_rows):
            written = entry_index(start, line, num_cols, 0)
            row = request_rows[line] if line < request_rows.size else -1
            if row < 0:
                gathered[written : written + num_cols] = NULL_BLOCK_ID
                continue
            used = min(max(int64(num_blocks[group, row]), int64(0)), num_cols)
            hidden = int64(0)
            if num_computed_tokens.size > 0:
                hidden = min(num_cols_below_window(num_computed_tokens[row], window, size, ranks), used)
            gathered[written : written + hidden] = NULL_BLOCK_ID
            source = entries.ctypes.data + (entry_index(start, row, num_cols, 0) + hidden) * entries.itemsize
            target = gathered.ctypes.data + (written + hidden) * entries.itemsize
            copy_bytes(target, source, (used - hidden) * entries.itemsize)


@kernel
def _gather_block_tables_kernel(params, entries, num_blocks, request_rows, num_computed_tokens, gathered, num_rows):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    step = global_index(cuda.gridDim.x, cuda.blockDim.x, 0)
    for group in strided(cuda.blockIdx.z, params.shape[0], cuda.gridDim.z):
        start, num_cols, window = params[group, TABLE_START], params[group, TABLE_COLS], params[group, TABLE_WINDOW]
        size, ranks = params[group, TABLE_BLOCK_SIZE], params[group, TABLE_CP_SIZE]
        for line in strided(cuda.blockIdx.y, num_rows, cuda.gridDim.y):
            row = int64(request_rows[line] if line < request_rows.size else -1)
            used = hidden = num_cols
            if is_inside(row, num_blocks.shape[1]):
                used, hidden = min(max(int64(num_blocks[group, row]), 0), num_cols), int64(0)
                if num_computed_tokens.size > row:
                    hidden = min(max(num_cols_below_window(num_computed_tokens[row], window, size, ranks), 0), used)
            written = address_of(gathered, (entry_index(start, line, num_cols, 0),))
            zero_run(written, hidden, gathered.itemsize, first, step)
            read = address_of(entries, (entry_index(start, row, num_cols, hidden),))
            copy_run(written + hidden * gathered.itemsize, read, used - hidden, gathered.itemsize, first, step)


@host_loop
def _first_bad_row(request_rows, num_computed_tokens, num_rows):  # type: ignore[no-untyped-def]
    """First request with a row outside the tables or a negative number of computed tokens; -1 if there is none."""
    for request in range(request_rows.size):
        row = request_rows[request]
        if not is_inside(row + 1, num_rows + 1):
            return request
        if row >= 0 and num_computed_tokens.size > 0 and num_computed_tokens[row] < 0:
            return request
    return -1


def _check_values(request_rows: np.ndarray, num_computed_tokens: np.ndarray, num_rows: int) -> None:
    bad = int(_first_bad_row(request_rows, num_computed_tokens, num_rows))
    if bad < 0:
        return
    if not -1 <= request_rows[bad] < num_rows:
        refuse_table_row(request_rows, bad, num_rows)
    got = f"{num_computed_tokens[request_rows[bad]]} for row {request_rows[bad]}"
    refuse("num_computed_tokens", "counts of at least 0", got, "pass the tokens computed before this step")


def _check_computed(num_computed_tokens: Array, num_rows: int) -> None:
    check_array("num_computed_tokens", num_computed_tokens, 1, "i")
    if num_computed_tokens.shape[0] < num_rows:
        expected = f"a count for each of {num_rows} table rows"
        refuse("num_computed_tokens", expected, num_computed_tokens.shape[0], "index it by table row, not by request")


def gather_block_tables(
    tables: TableArrays,
    request_rows: Array,
    gathered: Array,
    num_rows: int | None = None,
    num_computed_tokens: Array = None,
) -> None:
    """Copy the rows of a batch's requests to the front of each group's gathered table.

    Parameters
    ----------
    tables : TableArrays
        The block tables.
    request_rows : ndarray or cupy.ndarray
        Integer [N], table row of each request of the batch; `DUMMY_ROW` (-1) gives a row of zeros.
    gathered : ndarray or cupy.ndarray
        int32 [num_entries], written; laid out as the tables are. Entries of a request's row that are not in use keep
        what they held.
    num_rows : int, optional
        Rows to write, by default all; those beyond the requests become zeros.
    num_computed_tokens : ndarray or cupy.ndarray, optional
        Integer [>= rows of the tables], by table row. With it, entries wholly below a group's sliding window are null.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, arrays of different devices, `gathered` overlapping the tables, fewer rows than
        requests; on the host also rows outside the tables and negative counts. Nothing is written then.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation; a row outside the tables becomes zeros.

    Examples
    --------
    >>> from numba_ckpt.planning import TableGroup, TableLayout
    >>> layout = TableLayout([TableGroup(block_size=4, width=3, sliding_window=4)], num_rows=2)
    >>> entries, gathered = np.zeros(64, np.int32), np.full(64, 99, np.int32)
    >>> layout.views(entries)[0][1] = 7, 9, 8
    >>> tables = TableArrays(layout, layout.params, entries, np.array([[0, 3]], np.int32))
    >>> gather_block_tables(tables, np.array([1]), gathered, num_computed_tokens=np.array([0, 8]))
    >>> layout.views(gathered)[0].tolist()  # token 8 sees tokens 5 to 8: column 0 is below its window
    [[0, 9, 8], [0, 0, 0]]
    """
    check_tables(tables)
    layout, computed = tables.layout, num_computed_tokens
    backend = backend_of(
        entries=tables.entries, request_rows=request_rows, gathered=gathered, num_computed_tokens=computed
    )
    check_array("request_rows", request_rows, 1, "i")
    layout.check_entries("gathered", gathered)
    if computed is not None:
        _check_computed(computed, layout.num_rows)
    size = layout.num_rows if num_rows is None else check_int("num_rows", num_rows, 0, layout.num_rows)
    if request_rows.shape[0] > size:
        refuse("num_rows", f"at least the {request_rows.shape[0]} requests", size, "pad to a size that holds the batch")
    if backend.may_overlap(gathered, tables.entries):
        refuse("gathered", "memory apart from the tables", "overlapping memory", "gather into an array of its own")
    counts = request_rows[:0] if computed is None else computed
    if backend.is_host:
        _check_values(request_rows, counts, layout.num_rows)
    arguments = tables.params, tables.entries, tables.num_blocks, request_rows, counts, gathered, size
    if isinstance(backend, DeviceBackend):
        shape = len(layout.groups), size, num_run_threads(layout.max_num_cols, gathered.itemsize)
        launch_grid(backend, _gather_block_tables_kernel, shape, arguments)
    else:
        _gather_block_tables_host(*arguments)
