"""Gated delta rule over a varlen batch, token by token, handing out states in the middle of the pass.

Per token and head, with a state S of K rows and V columns (orientation "HKV" of a paged cache)::

    S <- Diag(decay) S                        forget
    S <- S + beta k (v - S^T k)^T             replace what k recalled by v
    o  = K^-0.5 S^T q
"""

from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._jit import host_loop
from numba_ckpt.models._varlen import check_checkpoints, check_floats, check_results, check_starts

__all__ = ["ORIENTATION", "GatedDeltaResult", "GatedDeltaTokens", "gated_delta"]

ORIENTATION = "HKV"
"""Axes of a gated-delta state: heads, key dim, value dim."""


class GatedDeltaTokens(NamedTuple):
    """The projected tokens of a batch, float32.

    Attributes
    ----------
    query, key : ndarray
        [T, H, K]; keys are expected to have length 1, or the rule need not be stable.
    value : ndarray
        [T, H, V].
    decay : ndarray
        [T, H] (one factor per head: Gated DeltaNet) or [T, H, K] (one per key channel: KDA), in [0, 1].
    beta : ndarray
        [T, H], strength of the write, in [0, 1].
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    decay: np.ndarray
    beta: np.ndarray


class GatedDeltaResult(NamedTuple):
    """What a pass of the gated delta rule leaves, float32.

    Attributes
    ----------
    outputs : ndarray
        [T, H, V].
    final_states : ndarray
        [N, H, K, V], the state after each row; the initial one for an empty row.
    checkpoint_states : ndarray
        [checkpoints, H, K, V], NaN where the offset is 0: a state that nobody asked for must not pass for one.
    """

    outputs: np.ndarray
    final_states: np.ndarray
    checkpoint_states: np.ndarray


@host_loop
def _advance(tokens, scale, start, end, states, outputs, written):  # type: ignore[no-untyped-def]
    """Run the tokens [start, end) of one row through its state; the order of additions does not depend on the range."""
    query, key, value, decay, beta = tokens
    heads, key_dim, value_dim = states.shape
    for head in range(heads):
        state = states[head]
        for token in range(start, end):
            output = outputs[token, head]
            overlap = np.float32(0)
            for v in range(value_dim):
                written[v] = np.float32(0)
                output[v] = np.float32(0)
            for k in range(key_dim):
                factor, key_k, query_k = decay[token, head, k], key[token, head, k], query[token, head, k] * scale
                overlap += key_k * query_k
                for v in range(value_dim):
                    kept = factor * state[k, v]
                    written[v] += key_k * kept
                    output[v] += query_k * kept
            for v in range(value_dim):
                written[v] = beta[token, head] * (value[token, head, v] - written[v])
                output[v] += overlap * written[v]
            for k in range(key_dim):
                factor, key_k = decay[token, head, k], key[token, head, k]
                for v in range(value_dim):
                    state[k, v] = factor * state[k, v] + key_k * written[v]


@host_loop
def _gated_delta_host(tokens, scale, starts, stops, result):  # type: ignore[no-untyped-def]
    """Run all rows; `stops` are the checkpoints' offsets, rows and order. The states hold the initial ones on entry."""
    offsets, rows, order = stops
    outputs, states, checkpoint_states = result
    written = np.empty(outputs.shape[2], np.float32)
    stop = 0
    for row in range(starts.size - 1):
        at = starts[row]
        while stop < order.size and rows[order[stop]] == row:
            checkpoint = order[stop]
            stop += 1
            if offsets[checkpoint] > 0:
                end = starts[row] + offsets[checkpoint]
                _advance(tokens, scale, at, end, states[row], outputs, written)
                # Not one assignment: numba would compile the message of a wrong shape, for seconds.
                for head in range(outputs.shape[1]):
                    for k in range(states.shape[2]):
                        for v in range(states.shape[3]):
                            checkpoint_states[checkpoint, head, k, v] = states[row, head, k, v]
                at = end
        _advance(tokens, scale, at, starts[row + 1], states[row], outputs, written)


def _check_tokens(tokens: GatedDeltaTokens) -> GatedDeltaTokens:
    query = check_floats("tokens.query", tokens.query, (None, None, None))
    num_tokens, heads, _ = query.shape
    key = check_floats("tokens.key", tokens.key, query.shape)
    value = check_floats("tokens.value", tokens.value, (num_tokens, heads, None))
    beta = check_floats("tokens.beta", tokens.beta, (num_tokens, heads))
    decay = tokens.decay
    if getattr(decay, "ndim", None) == 2:
        # A copy per channel: one compiled loop for both kinds.
        decay = np.repeat(check_floats("tokens.decay", decay, (num_tokens, heads))[..., None], query.shape[2], axis=2)
    else:
        decay = check_floats("tokens.decay", decay, query.shape)
    return GatedDeltaTokens(query, key, value, decay, beta)


def gated_delta(
    tokens: GatedDeltaTokens,
    query_start_loc: Any,
    initial_states: Any = None,
    *,
    checkpoint_offsets: Any = None,
    checkpoint_rows: Any = None,
    out: GatedDeltaResult | None = None,
) -> GatedDeltaResult:
    """Run the gated delta rule over each row of a batch, in one pass.

    Parameters
    ----------
    tokens : GatedDeltaTokens
        Queries, keys, values, decays and write strengths of all rows, one row after the other.
    query_start_loc : sequence of int or ndarray
        [N+1], first token of each row and T at the end. Rows may be empty.
    initial_states : ndarray, optional
        float32 [N, H, K, V], the state before each row's first token; not changed. Zeros when None.
    checkpoint_offsets : sequence of int or ndarray, optional
        Tokens from the row's first token to each wanted state, 0 for none; one per row, or one per entry of
        `checkpoint_rows`. ``offsets_cpu`` of a `PrefillCheckpointMetadata` fits.
    checkpoint_rows : sequence of int or ndarray, optional
        The row of each checkpoint; rows may repeat and come in any order. Row k for checkpoint k when None.
    out : GatedDeltaResult, optional
        C-contiguous arrays to write instead of new ones.

    Returns
    -------
    GatedDeltaResult
        Outputs, final states and the states at the checkpoints.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A shape, dtype, start or offset does not fit; nothing is written then.

    Notes
    -----
    Bit-reproducible: a row cut anywhere, with the state carried over in float32, gives the same bits as in one piece.

    Gated DeltaNet is S. Yang, J. Kautz, A. Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule"
    (2024); a decay per key channel makes it Kimi Delta Attention, Kimi Team, "Kimi Linear" (2025).

    Examples
    --------
    >>> one = np.ones((2, 1, 1), np.float32)
    >>> tokens = GatedDeltaTokens(one, one, np.float32([5, 7]).reshape(2, 1, 1), one[..., 0], one[..., 0])
    >>> result = gated_delta(tokens, [0, 2], checkpoint_offsets=[1])
    >>> result.outputs.ravel().tolist(), result.checkpoint_states.ravel().tolist()
    ([5.0, 7.0], [5.0])
    """
    tokens = _check_tokens(tokens)
    num_tokens, heads, key_dim = tokens.query.shape
    starts = check_starts(query_start_loc, num_tokens)
    offsets, rows = check_checkpoints(checkpoint_offsets, checkpoint_rows, starts)
    state_shape = (heads, key_dim, tokens.value.shape[2])
    shape = (starts.size - 1, *state_shape)
    if initial_states is not None:
        initial_states = check_floats("initial_states", initial_states, shape)
    shapes = tokens.value.shape, shape, (offsets.size, *state_shape)
    result = GatedDeltaResult(*check_results(out, GatedDeltaResult._fields, shapes, tokens._asdict()))
    result.final_states[:] = 0 if initial_states is None else initial_states
    result.checkpoint_states[:] = np.nan
    scale = np.float32(max(key_dim, 1) ** -0.5)
    _gated_delta_host(tokens, scale, starts, (offsets, rows, np.lexsort((offsets, rows))), result)
    return result
