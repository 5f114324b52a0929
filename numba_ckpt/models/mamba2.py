"""Mamba2's state-space scan, chunk by chunk, handing out the state at every chunk's end.

Per token and head, with a state h of P rows and N columns (orientation "HPN" of a paged cache)::

    h <- exp(dt a) h + dt x B^T          y = h C + d x

A chunk computes its tokens' mutual part at once (quadratic in the chunk) and passes one state on, so states exist only
at chunk ends: a checkpoint needs a chunk boundary, which `compute_chunk_layout` puts there.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._check import check_shape, refuse
from numba_ckpt._jit import host_loop
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.models._varlen import check_floats, check_results, check_starts
from numba_ckpt.planning import ChunkLayout

__all__ = ["ORIENTATION", "Mamba2Result", "Mamba2Tokens", "mamba2_recurrence", "mamba2_scan"]

ORIENTATION = "HPN"
"""Axes of a Mamba2 state: heads, head dim, state dim."""


class Mamba2Tokens(NamedTuple):
    """The projected tokens of a batch and the decay of each head, float32.

    Attributes
    ----------
    x : ndarray
        [T, H, P].
    dt : ndarray
        [T, H], step sizes, at least 0 (after softplus).
    b, c : ndarray
        [T, G, N], input and output projections of the state; head h uses group h // (H / G).
    a : ndarray
        [H], at most 0.
    d : ndarray
        [H], skip connection.
    """

    x: np.ndarray
    dt: np.ndarray
    b: np.ndarray
    c: np.ndarray
    a: np.ndarray
    d: np.ndarray


class Mamba2Result(NamedTuple):
    """What a scan leaves, float32.

    Attributes
    ----------
    outputs : ndarray
        [T, H, P].
    chunk_states : ndarray
        [chunks, H, P, N], the state at each chunk's end.
    """

    outputs: np.ndarray
    chunk_states: np.ndarray


@host_loop
def _chunk_outputs(x, b, c, dt, log_decay, d, state, outputs):  # type: ignore[no-untyped-def]
    """One head of one chunk: what the incoming state and the chunk's own earlier tokens give each token."""
    head_dim, state_dim = state.shape
    for token in range(x.shape[0]):
        reach = math.exp(log_decay[token])
        for p in range(head_dim):
            total = np.float32(0)
            for n in range(state_dim):
                total += state[p, n] * c[token, n]
            outputs[token, p] = reach * total + d * x[token, p]
        for source in range(token + 1):
            score = np.float32(0)
            for n in range(state_dim):
                score += c[token, n] * b[source, n]
            score *= math.exp(log_decay[token] - log_decay[source]) * dt[source]
            for p in range(head_dim):
                outputs[token, p] += score * x[source, p]


@host_loop
def _chunk_state(x, b, dt, log_decay, state, new_state):  # type: ignore[no-untyped-def]
    """One head of one chunk: the state at its end."""
    head_dim, state_dim = state.shape
    last = log_decay[x.shape[0] - 1]
    kept = math.exp(last)
    for p in range(head_dim):
        for n in range(state_dim):
            new_state[p, n] = kept * state[p, n]
    for token in range(x.shape[0]):
        weight = math.exp(last - log_decay[token]) * dt[token]
        for p in range(head_dim):
            for n in range(state_dim):
                new_state[p, n] += weight * x[token, p] * b[token, n]


@host_loop
def _scan_chunk(tokens, start, end, state, new_state, outputs):  # type: ignore[no-untyped-def]
    x, dt, b, c, a, d = tokens
    heads_per_group = x.shape[1] // max(b.shape[1], 1)
    log_decay = np.empty(end - start, np.float32)
    for head in range(x.shape[1]):
        group = head // heads_per_group
        total = np.float32(0)
        for token in range(end - start):
            total += dt[start + token, head] * a[head]
            log_decay[token] = total
        steps, x_head = dt[start:end, head], x[start:end, head]
        b_head, c_head = b[start:end, group], c[start:end, group]
        _chunk_outputs(x_head, b_head, c_head, steps, log_decay, d[head], state[head], outputs[start:end, head])
        _chunk_state(x_head, b_head, steps, log_decay, state[head], new_state[head])


@host_loop
def _mamba2_scan_host(tokens, cu_chunk_seqlens, chunk_rows, initial_states, result):  # type: ignore[no-untyped-def]
    outputs, chunk_states = result
    for chunk in range(chunk_rows.size):
        row = chunk_rows[chunk]
        is_first = chunk == 0 or chunk_rows[chunk - 1] != row
        state = initial_states[row] if is_first else chunk_states[chunk - 1]
        start, end = cu_chunk_seqlens[chunk], cu_chunk_seqlens[chunk + 1]
        if start < end:
            _scan_chunk(tokens, start, end, state, chunk_states[chunk], outputs)
        else:
            chunk_states[chunk] = state


def _check_tokens(tokens: Mamba2Tokens) -> Mamba2Tokens:
    x = check_floats("tokens.x", tokens.x, (None, None, None))
    num_tokens, heads, _ = x.shape
    dt = check_floats("tokens.dt", tokens.dt, (num_tokens, heads))
    b = check_floats("tokens.b", tokens.b, (num_tokens, None, None))
    c = check_floats("tokens.c", tokens.c, b.shape)
    groups = b.shape[1]
    if groups == 0 or heads % groups:
        refuse("tokens.b", f"groups that divide the {heads} heads", groups, "repeat it to fit")
    a, d = check_floats("tokens.a", tokens.a, (heads,)), check_floats("tokens.d", tokens.d, (heads,))
    return Mamba2Tokens(x, dt, b, c, a, d)


def _check_layout(layout: ChunkLayout, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(layout, ChunkLayout):
        refuse("layout", "a ChunkLayout", type(layout).__name__, "use compute_chunk_layout", ArgumentTypeError)
    num_rows = layout.last_chunk_indices.size
    cu, rows = check_starts(layout.cu_chunk_seqlens, num_tokens, "cu_chunk_seqlens"), layout.chunk_rows
    check_shape("layout.chunk_rows", rows, (cu.size - 1,), "one row for each chunk")
    if rows.size and not 0 <= rows.min() <= rows.max() < num_rows:
        refuse("layout.chunk_rows", f"rows in [0, {num_rows})", rows.tolist(), "use compute_chunk_layout")
    return cu, rows


def _initial_states(states: Any, num_rows: int, tokens: Mamba2Tokens) -> np.ndarray:
    shape = (num_rows, *tokens.x.shape[1:], tokens.b.shape[2])
    return np.zeros(shape, np.float32) if states is None else check_floats("initial_states", states, shape)


def mamba2_scan(
    tokens: Mamba2Tokens, layout: ChunkLayout, initial_states: Any = None, *, out: Mamba2Result | None = None
) -> Mamba2Result:
    """Scan each row of a batch chunk by chunk.

    Parameters
    ----------
    tokens : Mamba2Tokens
        The tokens of all rows, one row after the other.
    layout : ChunkLayout
        How the batch is cut; its chunks cover the T tokens.
    initial_states : ndarray, optional
        float32 [N, H, P, N], the state before each row's first token; not changed. Zeros when None.
    out : Mamba2Result, optional
        C-contiguous arrays to write instead of new ones.

    Returns
    -------
    Mamba2Result
        Outputs and the state at each chunk's end, which `Mamba2Exporter` takes as it is.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A shape, dtype or chunk does not fit; nothing is written then.

    Notes
    -----
    Bit-reproducible between runs that cut a row at the same positions; other cuts round differently, to about 1e-6 of
    the largest output.

    T. Dao, A. Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space
    Duality" (2024).

    Examples
    --------
    >>> from numba_ckpt.planning import compute_chunk_layout
    >>> one, zero = np.ones((3, 1, 1), np.float32), np.zeros(1, np.float32)
    >>> layout = compute_chunk_layout([0], [0, 3], 2)
    >>> result = mamba2_scan(Mamba2Tokens(one, one[..., 0], one, one, zero, zero), layout)
    >>> result.outputs.ravel().tolist(), result.chunk_states.ravel().tolist()
    ([1.0, 2.0, 3.0], [2.0, 3.0])
    """
    tokens = _check_tokens(tokens)
    cu_chunk_seqlens, chunk_rows = _check_layout(layout, tokens.x.shape[0])
    initial_states = _initial_states(initial_states, layout.last_chunk_indices.size, tokens)
    shapes = tokens.x.shape, (chunk_rows.size, *initial_states.shape[1:])
    inputs = {**tokens._asdict(), "initial_states": initial_states}
    result = Mamba2Result(*check_results(out, Mamba2Result._fields, shapes, inputs))
    _mamba2_scan_host(tokens, cu_chunk_seqlens, chunk_rows, initial_states, result)
    return result


def mamba2_recurrence(
    tokens: Mamba2Tokens, query_start_loc: Any, initial_states: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Run the same layer token by token, as it is defined: slow, and the oracle of `mamba2_scan`.

    Parameters
    ----------
    tokens : Mamba2Tokens
        As for `mamba2_scan`.
    query_start_loc : sequence of int or ndarray
        [N+1], first token of each row and T at the end.
    initial_states : ndarray, optional
        float32 [N, H, P, N]; zeros when None.

    Returns
    -------
    outputs : ndarray
        float64 [T, H, P].
    states : ndarray
        float64 [T, H, P, N], the state after each token.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A shape, dtype or start does not fit.

    Examples
    --------
    >>> one, zero = np.ones((2, 1, 1), np.float32), np.zeros(1, np.float32)
    >>> outputs, states = mamba2_recurrence(Mamba2Tokens(one, one[..., 0], one, one, zero, zero), [0, 2])
    >>> outputs.ravel().tolist(), states.ravel().tolist()
    ([1.0, 2.0], [1.0, 2.0])
    """
    tokens = _check_tokens(tokens)
    starts = check_starts(query_start_loc, tokens.x.shape[0])
    initial_states = _initial_states(initial_states, starts.size - 1, tokens)
    x, dt, b, c, a, d = (array.astype(np.float64) for array in tokens)
    b, c = (np.repeat(array, x.shape[1] // array.shape[1], axis=1) for array in (b, c))
    outputs, states = np.empty_like(x), np.empty((x.shape[0], *initial_states.shape[1:]))
    for row in range(starts.size - 1):
        state = initial_states[row].astype(np.float64)
        for token in range(starts[row], starts[row + 1]):
            decay = np.exp(dt[token] * a)[:, None, None]
            state = decay * state + np.einsum("h,hp,hn->hpn", dt[token], x[token], b[token])
            states[token] = state
            outputs[token] = np.einsum("hpn,hn->hp", state, c[token]) + d[:, None] * x[token]
    return outputs, states
