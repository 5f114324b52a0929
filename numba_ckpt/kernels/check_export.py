"""A host-side look at the values an export is about to use, so that a bad one is refused before anything is written.

Where arrays live on a device, only their host mirrors can be looked at without waiting.
"""

from typing import NoReturn

import numpy as np

from numba_ckpt._check import refuse
from numba_ckpt._jit import host_loop
from numba_ckpt.kernels.checkpoint_export import ConvMove, RecurrentMove
from numba_ckpt.rules import conv_tap, is_inside, is_written

__all__ = ["check_conv_sources", "check_conv_spans", "check_recurrent_sources", "check_targets"]

_NONE = -1
# Up to here comparing all pairs is quicker than a table of all blocks.
_FEW = 64


@host_loop
def _first_bad_target(offsets, state_indices, num_blocks):  # type: ignore[no-untyped-def]
    for k in range(offsets.size):
        if offsets[k] < 0 or state_indices[k] < -1 or (offsets[k] > 0 and state_indices[k] >= num_blocks):
            return k
    return _NONE


@host_loop
def _first_twice_written(offsets, state_indices, num_blocks):  # type: ignore[no-untyped-def]
    if offsets.size <= _FEW:
        for k in range(offsets.size):
            again = False
            for other in range(k):
                again |= (state_indices[other] == state_indices[k]) & (offsets[other] > 0)
            if again and is_written(offsets[k], state_indices[k]):
                return k
        return _NONE
    written = np.zeros(num_blocks, np.bool_)
    for k in range(offsets.size):
        if is_written(offsets[k], state_indices[k]):
            if written[state_indices[k]]:
                return k
            written[state_indices[k]] = True
    return _NONE


def check_targets(offsets: np.ndarray, state_indices: np.ndarray, num_blocks: int) -> None:
    """Refuse negative offsets, blocks outside the pool, and a block that two checkpoints write."""
    if (k := int(_first_bad_target(offsets, state_indices, num_blocks))) != _NONE:
        if offsets[k] < 0:
            refuse("offsets", "at least 0", f"{offsets[k]} for checkpoint {k}", "0 stands for no checkpoint")
        expected = f"block ids in [0, {num_blocks}), or -1 for padding"
        refuse(
            "state_indices", expected, f"{state_indices[k]} for checkpoint {k}", "gather them from this pool's table"
        )
    if (k := int(_first_twice_written(offsets, state_indices, num_blocks))) != _NONE:
        got = f"block {state_indices[k]} again for checkpoint {k}"
        refuse("state_indices", "one checkpoint per block", got, "allocate a block for each checkpoint")


_BAD_ROW, _BAD_START, _BAD_OFFSET, _SHORT = range(1, 5)


@host_loop
def _first_bad_span(rows, offsets, state_indices, starts, num_tokens, min_offset):  # type: ignore[no-untyped-def]
    """(fault, checkpoint) of the first checkpoint whose tokens are not there; fault 0 if there is none."""
    for k in range(offsets.size):
        if is_written(offsets[k], state_indices[k]):
            row = rows[k] if rows.size > 0 else k
            if not is_inside(row, starts.size - 1):
                return _BAD_ROW, k
            if starts[row] < 0 or starts[row + 1] > num_tokens:
                return _BAD_START, k
            if offsets[k] > starts[row + 1] - starts[row]:
                return _BAD_OFFSET, k
            if offsets[k] < min_offset:
                return _SHORT, k
    return 0, _NONE


def check_conv_spans(
    targets: tuple[np.ndarray, np.ndarray, np.ndarray], starts: np.ndarray, num_tokens: int, min_offset: int
) -> None:
    """Refuse checkpoints outside their row's query, rows outside the batch, and offsets below `min_offset`."""
    rows, offsets, _ = targets
    fault, k = _first_bad_span(*targets, starts, num_tokens, min_offset)
    if fault:
        _refuse_span(fault, int(rows[k]) if rows.size else k, int(offsets[k]), (starts, num_tokens, min_offset))


def _refuse_span(fault: int, row: int, offset: int, limits: tuple[np.ndarray, int, int]) -> NoReturn:
    starts, num_tokens, min_offset = limits
    if fault == _BAD_ROW:
        expected = f"rows in [0, {starts.size - 1}), the rows of query_start_loc"
        refuse("rows", expected, row, "pass the query_start_loc of the exported rows")
    query = f"[{starts[row]}, {starts[row + 1]}) for row {row}"
    if fault == _BAD_START:
        do = "pass all tokens that query_start_loc counts, or a token_indices that maps them"
        refuse("query_start_loc", f"tokens in [0, {num_tokens})", query, do)
    if fault == _BAD_OFFSET:
        expected = f"at most the {starts[row + 1] - starts[row]} tokens of row {row}"
        refuse("offsets", expected, offset, "plan the offsets from the same query lengths")
    expected = f"at least {min_offset} (the convolution window) where no initial window is given"
    refuse("offsets", expected, f"{offset} for row {row}", "pass ConvInput.initial: the missing taps are in it")


_BAD_TOKEN, _BAD_INITIAL, _WRITTEN_INITIAL = range(1, 4)


@host_loop
def _first_bad_source(rows, offsets, state_indices, move, aliased):  # type: ignore[no-untyped-def]
    """(fault, checkpoint) of the first checkpoint whose taps are not there; fault 0 if there is none."""
    num_tokens, starts, token_indices, num_initial, initial_indices, has_initial, state_len = move
    written = np.zeros(num_initial if aliased else 0, np.bool_)
    for k in range(offsets.size if aliased else 0):
        if is_written(offsets[k], state_indices[k]) and is_inside(state_indices[k], num_initial):
            written[state_indices[k]] = True
    for k in range(offsets.size):
        if is_written(offsets[k], state_indices[k]):
            row = rows[k] if rows.size > 0 else k
            if token_indices.size > 0:
                for slot in range(state_len):
                    tap = conv_tap(slot, offsets[k], state_len)
                    if tap >= 0 and not is_inside(token_indices[starts[row] + tap], num_tokens):
                        return _BAD_TOKEN, k
            if offsets[k] < state_len and (has_initial.size == 0 or has_initial[row]):
                source = initial_indices[row]
                if not is_inside(source, num_initial) or (aliased and source == 0):
                    return _BAD_INITIAL, k
                if aliased and written[source]:
                    return _WRITTEN_INITIAL, k
    return 0, _NONE


def check_conv_sources(targets: tuple[np.ndarray, np.ndarray, np.ndarray], move: ConvMove, aliased: bool) -> None:
    """Refuse tokens and initial windows outside their arrays; `aliased`: initial windows lie in the written cache."""
    rows, *_ = targets
    windows = move.initial.shape[0], move.initial_indices, move.has_initial, move.state_len
    sources = move.tokens.shape[0], move.query_start_loc, move.token_indices, *windows
    fault, k = _first_bad_source(*targets, sources, aliased)
    row = int(rows[k]) if rows.size else k
    if fault == _BAD_TOKEN:
        expected = f"entries in [0, {move.tokens.shape[0]}), the rows of tokens"
        refuse("token_indices", expected, f"one outside in the window of row {row}", "map every batch token")
    if fault == _BAD_INITIAL:
        expected = f"entries in [{int(aliased)}, {move.initial.shape[0]})"
        do = "say has_initial_state False for rows that start a sequence"
        refuse("initial.indices", expected, f"{move.initial_indices[row]} for row {row}", do)
    if fault == _WRITTEN_INITIAL:
        got = f"block {move.initial_indices[row]}, which a checkpoint overwrites, for row {row}"
        refuse("initial.indices", "blocks that this export does not write", got, "allocate a block for the checkpoint")


@host_loop
def _first_bad_state(offsets, state_indices, state_rows, num_states):  # type: ignore[no-untyped-def]
    for k in range(offsets.size):
        source = state_rows[k] if state_rows.size > 0 else k
        if is_written(offsets[k], state_indices[k]) and not is_inside(source, num_states):
            return k
    return _NONE


def check_recurrent_sources(offsets: np.ndarray, state_indices: np.ndarray, move: RecurrentMove) -> None:
    """Refuse source states outside their buffer; on a device only with the sources that follow from the order."""
    num_states = move.states.shape[0]
    rows = move.rows if move.rows.size else np.empty(0, np.int64)
    if (k := int(_first_bad_state(offsets, state_indices, rows, num_states))) != _NONE:
        source = int(rows[k]) if rows.size else k
        expected = f"entries in [0, {num_states}), the states given"
        do = "pass the buffer that the kernel filled, and one row of it per checkpoint"
        refuse("recurrent.rows", expected, f"{source} for checkpoint {k}", do)
