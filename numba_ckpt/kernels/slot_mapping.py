"""Slots of the tokens of a batch, for all cache groups in one pass."""

from typing import Any

import numpy as np

from numba_ckpt._array import Array, Backend, DeviceBackend, backend_of
from numba_ckpt._check import INT32_MAX, check_array, check_int, check_shape, check_writable, refuse
from numba_ckpt._jit import cuda, host_loop, inlined_loop, int64, kernel
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.planning import TableArrays
from numba_ckpt.rules import (
    PAD_SLOT_ID,
    TABLE_BLOCK_SIZE,
    TABLE_COLS,
    TABLE_CP_INTERLEAVE,
    TABLE_CP_RANK,
    TABLE_CP_SIZE,
    TABLE_HAS_SLOTS,
    TABLE_START,
    entry_index,
    global_index,
    is_inside,
    slot_of,
    token_col,
)

__all__ = ["slot_mapping"]


@inlined_loop
def _map_tokens(entries, positions, slots, group, row_start, num_tokens_held):  # type: ignore[no-untyped-def]
    """Slots of consecutive tokens of one row, whose entries hold its first `num_tokens_held` positions."""
    size, ranks = group[TABLE_BLOCK_SIZE] & INT32_MAX, group[TABLE_CP_SIZE] & INT32_MAX
    rank, turn = group[TABLE_CP_RANK], group[TABLE_CP_INTERLEAVE] & INT32_MAX
    for token in range(positions.size):
        position = int64(positions[token])
        held = is_inside(position, num_tokens_held)
        # The mask changes nothing; it tells the compiler that positions are small, which lets it vectorise.
        position = (position if held else int64(0)) & INT32_MAX
        block = entries[row_start + token_col(position, size, ranks)]
        slot = slot_of(position, block, size, ranks, rank, turn)
        slots[token] = slot if held else PAD_SLOT_ID


@host_loop
def _slot_mapping_host(params, entries, num_blocks, request_rows, query_start_loc, positions, slots, num_tokens):  # type: ignore[no-untyped-def]
    num_requests = request_rows.size
    for group in range(params.shape[0]):
        slots[group, : query_start_loc[0]] = PAD_SLOT_ID
        slots[group, query_start_loc[num_requests] : num_tokens] = PAD_SLOT_ID
        tokens_per_col = params[group, TABLE_BLOCK_SIZE] * params[group, TABLE_CP_SIZE]
        for request in range(num_requests):
            start, end = query_start_loc[request], query_start_loc[request + 1]
            row = request_rows[request]
            held = int64(0)
            if row >= 0 and params[group, TABLE_HAS_SLOTS]:
                held = min(int64(num_blocks[group, row]), params[group, TABLE_COLS]) * tokens_per_col
            if held > 0:
                row_start = entry_index(params[group, TABLE_START], row, params[group, TABLE_COLS], 0)
                _map_tokens(entries, positions[start:end], slots[group, start:end], params[group], row_start, held)
            else:
                slots[group, start:end] = PAD_SLOT_ID


@kernel
def _slot_mapping_kernel(params, entries, num_blocks, request_rows, query_start_loc, positions, slots, num_tokens):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    for group in range(cuda.blockIdx.y, params.shape[0], cuda.gridDim.y):
        size, ranks = params[group, TABLE_BLOCK_SIZE], params[group, TABLE_CP_SIZE]
        for token in range(first, num_tokens, global_index(cuda.gridDim.x, cuda.blockDim.x, 0)):
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
            if is_inside(row, num_blocks.shape[1]) & is_inside(token, query_start_loc[request_rows.size]):
                col = token_col(positions[token], size, ranks)
                if is_inside(col, min(num_blocks[group, row], params[group, TABLE_COLS])):
                    entry = entry_index(params[group, TABLE_START], row, params[group, TABLE_COLS], col)
                    rank, turn = params[group, TABLE_CP_RANK], params[group, TABLE_CP_INTERLEAVE]
                    slots[group, token] = slot_of(positions[token], entries[entry], size, ranks, rank, turn)


@host_loop
def _first_bad_request(request_rows, query_start_loc, num_rows, num_tokens):  # type: ignore[no-untyped-def]
    """First request with a row outside the tables or an impossible range of tokens; -1 if there is none."""
    for request in range(request_rows.size):
        start, end = query_start_loc[request], query_start_loc[request + 1]
        if not is_inside(request_rows[request] + 1, num_rows + 1) or not 0 <= start <= end <= num_tokens:
            return request
    return -1


def _check_values(request_rows: np.ndarray, query_start_loc: np.ndarray, num_rows: int, num_tokens: int) -> None:
    bad = int(_first_bad_request(request_rows, query_start_loc, num_rows, num_tokens))
    if bad < 0:
        if not 0 <= query_start_loc[0] <= num_tokens:
            refuse("query_start_loc", f"starts in [0, {num_tokens}]", query_start_loc[0], "count tokens of the batch")
        return
    if not -1 <= request_rows[bad] < num_rows:
        expected = f"table rows in [0, {num_rows}), or -1 for a dummy"
        refuse("request_rows", expected, f"{request_rows[bad]} at entry {bad}", "check where requests get their rows")
    got = f"[{query_start_loc[bad]}, {query_start_loc[bad + 1]}) for request {bad}"
    do = "pass cumulative query lengths, and room for all tokens"
    refuse("query_start_loc", f"ascending starts in [0, {num_tokens}]", got, do)


def _check_slots(slots: Array, num_groups: int) -> None:
    check_array("slots", slots, 2, "i")
    if slots.dtype != np.int64:
        refuse("slots", "int64", slots.dtype, "slot numbers exceed 32 bits in large caches", ArgumentTypeError)
    if slots.shape[0] != num_groups:
        refuse("slots", f"{num_groups} rows, one for each group", slots.shape[0], "make it for the layout's groups")
    check_writable("slots", slots)


def _backend_of(tables: TableArrays, **arrays: Array) -> Backend:
    if not isinstance(tables, TableArrays):
        refuse("tables", "TableArrays", type(tables).__name__, "wrap the tables in it", ArgumentTypeError)
    return backend_of(entries=tables.entries, **arrays)


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
    backend = _backend_of(tables, slots=slots, **arrays)
    for name, array in arrays.items():
        check_array(name, array, 1, "i")
    check_shape("query_start_loc", query_start_loc, (request_rows.shape[0] + 1,), "it has one entry more than requests")
    _check_slots(slots, len(tables.layout.groups))
    room = slots.shape[1]
    size = room if num_tokens is None else check_int("num_tokens", num_tokens, 0, room)
    if backend.is_host:
        _check_values(request_rows, query_start_loc, tables.layout.num_rows, min(positions.shape[0], size))
    arguments = tables.params, tables.entries, tables.num_blocks, request_rows, query_start_loc, positions, slots, size
    if isinstance(backend, DeviceBackend):
        launch_grid(backend, _slot_mapping_kernel, (slots.shape[0], size), arguments)
    else:
        _slot_mapping_host(*arguments)
