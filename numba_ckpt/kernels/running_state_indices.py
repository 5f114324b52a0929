"""The blocks that a step's recurrent layers start from and write to, for every row of the batch in one launch."""

from typing import NamedTuple, NoReturn

import numpy as np

from numba_ckpt._array import Array, Backend, DeviceBackend, backend_of
from numba_ckpt._check import INT32_MAX, check_array, check_int, check_shape, check_writable, refuse
from numba_ckpt._jit import cuda, host_loop, int64, kernel, strided
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.kernels.gather_state_indices import check_table_extent
from numba_ckpt.rules import NULL_BLOCK_ID, global_index, is_inside, running_state_col
from numba_ckpt.rules.batch_rows import initial_state_col, step_state_col

__all__ = ["StateIndices", "StateRows", "check_running_states", "running_state_indices"]


class StateRows(NamedTuple):
    """The rows of a step, as the columns of their states follow from them.

    Attributes
    ----------
    seq_lens : ndarray or cupy.ndarray
        int32 or int64 [>= N], tokens of each sequence after the step.
    query_start_loc : ndarray or cupy.ndarray
        int32 or int64 [>= N+1], where each row's tokens begin.
    num_accepted_tokens : ndarray or cupy.ndarray or None
        int32 or int64 [>= decodes], tokens that each decode's last step computed and kept, from 1 to S+1 (a prefill's
        count as 1); None where every decode kept one. Entries of rows that start from no state are not read.
    num_reqs : int
        N, rows of the batch, padding included.
    num_decodes : int
        The leading rows, which leave a state after every token.
    state_block_size : int
        Tokens per block-table column.
    max_seq_len : int
        Tokens of the longest sequence after the step; bounds the columns that are read.
    """

    seq_lens: Array
    query_start_loc: Array
    num_accepted_tokens: Array
    num_reqs: int
    num_decodes: int
    state_block_size: int
    max_seq_len: int


class StateIndices(NamedTuple):
    """Buffers for the outcome, of at least N rows (M); rows beyond the batch become null blocks.

    Attributes
    ----------
    initial : ndarray or cupy.ndarray
        int32 [M], block of the state that a row starts from; `NULL_BLOCK_ID` for none.
    written : ndarray or cupy.ndarray
        int32 [M, S+1], blocks that take a row's states: after each token of a decode, at the end of a prefill (the
        first entry); `NULL_BLOCK_ID` where there is no such state.
    has_initial : ndarray or cupy.ndarray
        bool [M], whether a row starts from a state at all.
    """

    initial: Array
    written: Array
    has_initial: Array


@host_loop
def _running_state_indices_host(table, seq_lens, starts, accepted, sizes, initial, written, has_initial):  # type: ignore[no-untyped-def]
    num_reqs, num_decodes, num_counts, block_size = sizes
    for row in range(initial.size):
        computed, query_len = int64(0), int64(0)
        if row < num_reqs:
            query_len = int64(starts[row + 1]) - int64(starts[row])
            computed = int64(seq_lens[row]) - query_len
        count = int64(accepted[row]) if row < num_counts else int64(1)
        col = initial_state_col(computed, query_len, count, block_size)
        has_initial[row] = col >= 0
        initial[row] = table[row, col] if is_inside(col, table.shape[1]) else NULL_BLOCK_ID
        for slot in range(written.shape[1]):
            col = step_state_col(computed, query_len, slot, row < num_decodes, block_size)
            written[row, slot] = table[row, col] if is_inside(col, table.shape[1]) else NULL_BLOCK_ID


@host_loop
def _first_bad_row(table, seq_lens, starts, accepted, sizes, num_slots, max_seq_len):  # type: ignore[no-untyped-def]
    """First row with impossible lengths (as row), counts (as row + N) or blocks (as row + 2 N); -1 if there is none."""
    num_reqs, num_decodes, num_counts, block_size = sizes
    for row in range(num_reqs):
        query_len = int64(starts[row + 1]) - int64(starts[row])
        computed = int64(seq_lens[row]) - query_len
        if query_len == 0:
            continue
        if query_len < 0 or computed < 0 or seq_lens[row] > max_seq_len:
            return row
        count = int64(accepted[row]) if row < num_counts else int64(1)
        if computed > 0 and not 1 <= count <= min(computed, num_slots):
            return row + num_reqs
        # Slot -1 stands for the state that the row starts from.
        for slot in range(-1, num_slots):
            col = step_state_col(computed, query_len, slot, row < num_decodes, block_size)
            col = initial_state_col(computed, query_len, count, block_size) if slot < 0 else col
            if col >= 0 and not is_inside(table[row, col], 2**31):
                return row + 2 * num_reqs
    return -1


@kernel
def _running_state_indices_kernel(  # type: ignore[no-untyped-def]
    table, seq_lens, starts, accepted, num_reqs, num_decodes, num_counts, block_size, initial, written, has_initial,
):  # fmt: skip
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    for row in strided(first, initial.size, global_index(cuda.gridDim.x, cuda.blockDim.x, 0)):
        computed, query_len = int64(0), int64(0)
        if row < num_reqs:
            query_len = int64(starts[row + 1]) - int64(starts[row])
            computed = int64(seq_lens[row]) - query_len
        count = int64(accepted[row]) if row < num_counts else int64(1)
        col = initial_state_col(computed, query_len, count, block_size)
        has_initial[row] = col >= 0
        block = table[row, col] if is_inside(col, table.shape[1]) else NULL_BLOCK_ID
        initial[row] = block if is_inside(block, 2**31) else NULL_BLOCK_ID
        for slot in range(written.shape[1]):
            col = step_state_col(computed, query_len, slot, row < num_decodes, block_size)
            block = table[row, col] if is_inside(col, table.shape[1]) else NULL_BLOCK_ID
            written[row, slot] = block if is_inside(block, 2**31) else NULL_BLOCK_ID


def _check_rows(rows: StateRows, out: StateIndices) -> None:
    num_reqs = check_int("num_reqs", rows.num_reqs, 0, out.initial.shape[0])
    check_int("num_decodes", rows.num_decodes, 0, num_reqs)
    check_int("state_block_size", rows.state_block_size, 1)
    check_int("max_seq_len", rows.max_seq_len, 0)
    lengths = ("seq_lens", num_reqs), ("query_start_loc", num_reqs + 1), ("num_accepted_tokens", rows.num_decodes)
    for name, least in lengths:
        array = getattr(rows, name)
        if array is not None or name != "num_accepted_tokens":
            check_array(name, array, 1, "i")
            if array.shape[0] < least:
                refuse(name, f"at least {least} entries", array.shape[0], "pass one for each row of the batch")


def _check_out(out: StateIndices) -> None:
    num_rows = out.initial.shape[0]
    for name, array, ndim, dtype in (
        ("initial", out.initial, 1, np.int32),
        ("written", out.written, 2, np.int32),
        ("has_initial", out.has_initial, 1, np.bool_),
    ):
        check_array(name, array, ndim)
        if array.dtype != dtype:
            refuse(name, np.dtype(dtype).name, array.dtype, "allocate it with this dtype", ArgumentTypeError)
        check_shape(name, array, (num_rows, *array.shape[1:]), "the buffers have one entry for each row")
        check_writable(name, array)


def _refuse_row(table: Array, rows: StateRows, bad: int, num_slots: int) -> NoReturn:
    """Say what is wrong with the row that `_first_bad_row` found."""
    what, row = divmod(bad, max(rows.num_reqs, 1))
    if what == 0:
        got = f"{rows.seq_lens[row]} tokens, queries at {rows.query_start_loc[row : row + 2].tolist()}, in row {row}"
        do = "count the query's tokens too, and bound all with max_seq_len"
        refuse("seq_lens", f"ascending starts, and query <= sequence <= {rows.max_seq_len}", got, do)
    if what == 1:
        computed = rows.seq_lens[row] - rows.query_start_loc[row + 1] + rows.query_start_loc[row]
        got = f"{rows.num_accepted_tokens[row]} in row {row}"
        do = "count the one token that is always kept, and the drafts that were accepted"
        refuse("num_accepted_tokens", f"counts in [1, {min(computed, num_slots)}]", got, do)
    got = f"{next(block for block in table[row].tolist() if not 0 <= block <= INT32_MAX)} in row {row}"
    refuse("block_table", f"block ids in [0, {INT32_MAX}]", got, "check who filled the table")


def _arguments(
    block_table: Array, rows: StateRows
) -> tuple[tuple[Array, Array, Array, Array], tuple[int, int, int, int]]:
    """Return the arrays and sizes that loops and kernel read."""
    accepted = rows.num_accepted_tokens
    num_counts = 0 if accepted is None else rows.num_decodes
    # Where nothing is counted any array will do: it is not read.
    counts = rows.seq_lens if accepted is None else accepted
    sizes = rows.num_reqs, rows.num_decodes, num_counts, rows.state_block_size
    return (block_table, rows.seq_lens, rows.query_start_loc, counts), sizes


def check_running_states(block_table: Array, rows: StateRows, out: StateIndices) -> Backend:
    """Refuse what `running_state_indices` refuses; return the arrays' backend. Nothing is written."""
    backend = backend_of(
        block_table=block_table,
        seq_lens=rows.seq_lens,
        query_start_loc=rows.query_start_loc,
        accepted=rows.num_accepted_tokens,
        **out._asdict(),
    )
    _check_out(out)
    _check_rows(rows, out)
    num_slots = int(out.written.shape[1])
    num_cols = int(running_state_col(rows.max_seq_len, rows.state_block_size)) + num_slots
    check_table_extent(block_table, rows.num_reqs, num_cols if rows.num_reqs else 0)
    if backend.is_host:
        arrays, sizes = _arguments(block_table, rows)
        bad = int(_first_bad_row(*arrays, sizes, num_slots, rows.max_seq_len))
        if bad >= 0:
            _refuse_row(block_table, rows, bad, num_slots)
    return backend


def running_state_indices(block_table: Array, rows: StateRows, out: StateIndices) -> None:
    """Look up the blocks of the states that a step starts from and leaves.

    Parameters
    ----------
    block_table : ndarray or cupy.ndarray
        int32 or int64 [>= N, C], block ids of the state group; any strides.
    rows : StateRows
        The batch, decodes first.
    out : StateIndices
        Overwritten, all M rows: a captured graph that reads more rows than this batch has finds null blocks there.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, a table without the columns of `max_seq_len` tokens, buffers smaller than the batch, or
        arrays of different devices; on the host also impossible lengths, counts or block ids. Nothing is written then.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation; a column outside the table, or a block id beyond
    int32, yields `NULL_BLOCK_ID`. A row without tokens reads and leaves nothing.

    Examples
    --------
    >>> table = np.array([[3, 4, 5, 6], [7, 8, 0, 0]], np.int32)
    >>> rows = StateRows(np.array([19, 8]), np.array([0, 2, 10]), np.array([2]), 2, 1, 8, 19)
    >>> out = StateIndices(np.empty(3, np.int32), np.empty((3, 2), np.int32), np.empty(3, np.bool_))
    >>> running_state_indices(table, rows, out)
    >>> out.initial.tolist(), out.written.tolist(), out.has_initial.tolist()
    ([5, 0, 0], [[5, 6], [7, 0], [0, 0]], [True, False, False])
    """
    backend = check_running_states(block_table, rows, out)
    arrays, sizes = _arguments(block_table, rows)
    if isinstance(backend, DeviceBackend):
        launch_grid(backend, _running_state_indices_kernel, (1, int(out.initial.shape[0])), (*arrays, *sizes, *out))
    else:
        _running_state_indices_host(*arrays, sizes, *out)
