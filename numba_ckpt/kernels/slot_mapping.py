"""Slots of the tokens of a batch, for all cache groups in one pass."""

from typing import Any

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import INT32_MAX, check_array, check_int, check_shape, check_writable, refuse
from numba_ckpt._jit import cuda, fused_loop, host_loop, inlined_loop, int64, kernel, strided, uint64
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.planning import TableArrays
from numba_ckpt.planning.table_layout import check_tables, refuse_table_row
from numba_ckpt.rules import (
    PAD_SLOT_ID,
    TABLE_BLOCK_SIZE,
    TABLE_COLS,
    TABLE_CP_INTERLEAVE,
    TABLE_CP_RANK,
    TABLE_CP_SIZE,
    TABLE_HAS_SLOTS,
    TABLE_START,
    block_slot,
    entry_index,
    global_index,
    is_inside,
    slot_of,
    token_col,
)

__all__ = ["slot_mapping"]


@host_loop
def _first_bad_request(request_rows, query_start_loc, num_rows, num_tokens):  # type: ignore[no-untyped-def]
    """First request with a row outside the tables or an impossible range of tokens; -1 if there is none.

    The number of requests stands for a bad start where there are no requests.
    """
    start = int64(query_start_loc[0])
    for request in range(request_rows.size):
        end = int64(query_start_loc[request + 1])
        is_row = is_inside(int64(request_rows[request]) + 1, int64(num_rows) + 1)
        if not (is_row & (start >= 0) & (start <= end) & (end <= num_tokens)):
            return request
        start = end
    return -1 if (start >= 0) & (start <= num_tokens) else 0


# Unsigned indices in the host loops: signed ones could count from the end, and to ask costs more than the rest.


@inlined_loop
def _are_consecutive(request_rows, query_start_loc, positions):  # type: ignore[no-untyped-def]
    """Whether the tokens of each request are at consecutive positions below 2^31: all but tree drafts are."""
    strays = int64(0)
    for request in range(request_rows.size):
        start, end = int64(query_start_loc[request]), int64(query_start_loc[request + 1])
        if start < end:
            first = int64(positions[uint64(start)])
            strays |= (first | (first + end - start)) & ~INT32_MAX
            for index in range(start, end):
                strays |= int64(positions[uint64(index)]) ^ (first - start + index)
    return strays == 0


@inlined_loop
def _map_run(entries, position, slots, group, start, end, size, row_start, num_cols):  # type: ignore[no-untyped-def]
    """Slots of tokens at consecutive positions of a row that is not sharded, block by block."""
    col = token_col(position, size, 1)
    offset = position - col * size
    stop = min(start + size - offset, end)
    while (start < end) & (col < num_cols):
        block = entries[uint64(row_start + col)]
        base = block_slot(block, offset, size) - start
        for index in range(start, stop):
            slots[uint64(group), uint64(index)] = base + index if block >= 0 else int64(PAD_SLOT_ID)
        start, offset, col = stop, int64(0), col + 1
        stop = min(stop + size, end)
    for index in range(start, end):
        slots[uint64(group), uint64(index)] = PAD_SLOT_ID


@host_loop
def _map_tokens(entries, positions, slots, group, start, end, size, row_start, num_cols, ranks, rank, turn):  # type: ignore[no-untyped-def]
    """Slots of tokens at any positions of one row: their blocks first, so that the arithmetic vectorises."""
    for index in range(start, end):
        col = token_col(positions[uint64(index)], size, ranks)
        is_used = is_inside(col, num_cols)
        slots[uint64(group), uint64(index)] = entries[uint64(row_start + col)] if is_used else PAD_SLOT_ID
    for index in range(start, end):
        # Positions beyond the mask have no block; it tells the compiler that the others are small.
        position, block = int64(positions[uint64(index)]) & INT32_MAX, slots[uint64(group), uint64(index)]
        slots[uint64(group), uint64(index)] = slot_of(position, block, size, ranks, rank, turn)


@fused_loop
def _slot_mapping_host(params, entries, num_blocks, request_rows, query_start_loc, positions, slots, num_tokens):  # type: ignore[no-untyped-def]
    """Write all slots; or write nothing and return the first bad request."""
    num_requests = request_rows.size
    bad = _first_bad_request(request_rows, query_start_loc, num_blocks.shape[1], min(positions.size, num_tokens))
    if bad >= 0:
        return bad
    is_run = _are_consecutive(request_rows, query_start_loc, positions)
    for group in range(params.shape[0]):
        slots[group, : query_start_loc[0]] = PAD_SLOT_ID
        slots[group, query_start_loc[num_requests] : num_tokens] = PAD_SLOT_ID
        first, width = params[group, TABLE_START], params[group, TABLE_COLS]
        size, ranks = params[group, TABLE_BLOCK_SIZE] & INT32_MAX, params[group, TABLE_CP_SIZE] & INT32_MAX
        rank, turn = params[group, TABLE_CP_RANK], params[group, TABLE_CP_INTERLEAVE] & INT32_MAX
        for request in range(num_requests):
            start, end = int64(query_start_loc[request]), int64(query_start_loc[request + 1])
            row, num_cols = int64(request_rows[request]), int64(0)
            if (row >= 0) & (params[group, TABLE_HAS_SLOTS] != 0):
                num_cols = min(int64(num_blocks[group, uint64(row)]), width)
            row_start = entry_index(first, row, width, 0)
            if is_run & (ranks == 1) & (start < end):
                position = int64(positions[uint64(start)]) & INT32_MAX
                _map_run(entries, position, slots, group, start, end, size, row_start, num_cols)
            else:
                _map_tokens(entries, positions, slots, group, start, end, size, row_start, num_cols, ranks, rank, turn)
    return -1


@kernel
def _slot_mapping_kernel(params, entries, num_blocks, request_rows, query_start_loc, positions, slots, num_tokens):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    for group in strided(cuda.blockIdx.y, params.shape[0], cuda.gridDim.y):
        size, ranks = params[group, TABLE_BLOCK_SIZE], params[group, TABLE_CP_SIZE]
        for token in strided(first, num_tokens, global_index(cuda.gridDim.x, cuda.blockDim.x, 0)):
            slots[group, token] = PAD_SLOT_ID
            # The last request that starts at or before the token.
            request, beyond = -1, request_rows.size
            while request + 1 < beyond:
                middle = (request + beyond) // 2
                if query_start_loc[middle] <= token:
                    request = middle
                else:
                    beyond = middle
            row = request_rows[request] if (request >= 0) & (params[group, TABLE_HAS_SLOTS] != 0) else -1
            num_given = min(int64(query_start_loc[request_rows.size]), int64(positions.size))
            if is_inside(row, num_blocks.shape[1]) & is_inside(token, num_given):
                col = token_col(positions[token], size, ranks)
                if is_inside(col, min(num_blocks[group, row], params[group, TABLE_COLS])):
                    entry = entry_index(params[group, TABLE_START], row, params[group, TABLE_COLS], col)
                    rank, turn = params[group, TABLE_CP_RANK], params[group, TABLE_CP_INTERLEAVE]
                    slots[group, token] = slot_of(positions[token], entries[entry], size, ranks, rank, turn)


def _refuse_request(request_rows: np.ndarray, query_start_loc: np.ndarray, sizes: tuple[int, int], bad: int) -> None:
    num_rows, num_tokens = sizes
    if bad < request_rows.size and not -1 <= request_rows[bad] < num_rows:
        refuse_table_row(request_rows, bad, num_rows)
    got = f"{query_start_loc[bad : bad + 2].tolist()} at entry {bad}"
    do = "pass cumulative query lengths, and room for all tokens"
    refuse("query_start_loc", f"ascending starts in [0, {num_tokens}]", got, do)


def _check_slots(slots: Array, num_groups: int) -> None:
    check_array("slots", slots, 2, "i")
    if slots.dtype != np.int64:
        refuse("slots", "int64", slots.dtype, "slot numbers exceed 32 bits in large caches", ArgumentTypeError)
    if slots.shape[0] != num_groups:
        refuse("slots", f"{num_groups} rows, one for each group", slots.shape[0], "make it for the layout's groups")
    check_writable("slots", slots)


def slot_mapping(
    tables: TableArrays,
    request_rows: Array,
    query_start_loc: Array,
    positions: Array,
    slots: Array,
    num_tokens: int | None = None,
) -> None:
    """Write the cache slot of each token for each group.

    Parameters
    ----------
    tables : TableArrays
        The block tables.
    request_rows : ndarray or cupy.ndarray
        Integer [N], table row of each request of the batch; `DUMMY_ROW` (-1) for one whose tokens are not stored.
    query_start_loc : ndarray or cupy.ndarray
        Integer [N + 1], where each request's tokens begin in the batch.
    positions : ndarray or cupy.ndarray
        Integer [>= T], position of each token in its sequence.
    slots : ndarray or cupy.ndarray
        int64 [groups, >= T], written. `PAD_SLOT_ID` (-1) stands where a token is not stored: beyond the batch's tokens,
        in dummy requests, in groups without slots, on another context-parallel rank, and where the token's column is
        not in use in its row.
    num_tokens : int, optional
        Write this many columns of `slots` (the captured size); all by default.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, arrays of different devices; on the host also rows outside the tables and starts that
        do not ascend or do not fit. Nothing is written then.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation; values out of range yield `PAD_SLOT_ID`.

    Examples
    --------
    >>> from numba_ckpt.planning import TableGroup, TableLayout
    >>> layout = TableLayout([TableGroup(block_size=4, width=3)], num_rows=2)
    >>> entries, slots = np.zeros(64, np.int32), np.zeros((1, 6), np.int64)
    >>> layout.views(entries)[0][1] = 7, 9, 8
    >>> tables = TableArrays(layout, layout.params, entries, np.array([[0, 2]], np.int32))
    >>> slot_mapping(tables, np.array([1]), np.array([0, 4]), np.array([3, 4, 5, 8]), slots)
    >>> slots.tolist()  # position 8 lies in column 2, which is not in use
    [[31, 36, 37, -1, -1, -1]]
    """
    arrays: dict[str, Any] = {"request_rows": request_rows, "query_start_loc": query_start_loc, "positions": positions}
    check_tables(tables)
    backend = backend_of(entries=tables.entries, slots=slots, **arrays)
    for name, array in arrays.items():
        check_array(name, array, 1, "i")
    check_shape("query_start_loc", query_start_loc, (request_rows.shape[0] + 1,), "it has one entry more than requests")
    _check_slots(slots, len(tables.layout.groups))
    room = slots.shape[1]
    size = room if num_tokens is None else check_int("num_tokens", num_tokens, 0, room)
    arguments = tables.params, tables.entries, tables.num_blocks, request_rows, query_start_loc, positions, slots, size
    if isinstance(backend, DeviceBackend):
        launch_grid(backend, _slot_mapping_kernel, (slots.shape[0], size), arguments)
    elif (bad := int(_slot_mapping_host(*arguments))) >= 0:
        sizes = tables.layout.num_rows, min(positions.shape[0], size)
        _refuse_request(request_rows, query_start_loc, sizes, bad)
