"""Write the convolution windows and recurrent states of checkpoints into paged caches, in one launch per layer."""

import functools
from typing import NamedTuple

import numpy as np

from numba_ckpt._array import HOST, Array, Backend, DeviceBackend
from numba_ckpt._jit import address_of, copy_bytes, cuda, int64, kernel, strided, strided_loop
from numba_ckpt.kernels._launch import launch_grid, num_run_threads
from numba_ckpt.kernels._runs import move_run
from numba_ckpt.rules import CAST_NONE, cast_bits, conv_tap, global_index, is_inside, is_written

__all__ = ["ConvMove", "RecurrentMove", "export_checkpoints"]


class ConvMove(NamedTuple):
    """What fills the convolution windows; elements are bit patterns (unsigned words, or int64 for 8 bytes).

    Attributes
    ----------
    cache : Array
        [B, C, slots], written in its first `state_len` slots.
    tokens : Array
        [T, C], inputs of the convolution.
    query_start_loc : Array
        [R+1], cumulative tokens of the rows.
    token_indices : Array
        [batch tokens], row of `tokens` of each batch token; empty if they coincide.
    initial : Array
        [S, C, slots], windows before each row's first token.
    initial_indices : Array
        [R], entry of `initial` of each row.
    has_initial : Array
        bool [R], False where missing taps are zeros; empty if every row has an initial window.
    state_len : int
        Slots of a window.
    cast : int
        How token bits become cache bits (a CAST constant).
    """

    cache: Array
    tokens: Array
    query_start_loc: Array
    token_indices: Array
    initial: Array
    initial_indices: Array
    has_initial: Array
    state_len: int
    cast: int


class RecurrentMove(NamedTuple):
    """What fills the recurrent states; elements are bit patterns.

    Attributes
    ----------
    cache : Array
        [B, E], one flattened state per block.
    states : Array
        [S, E], source states.
    rows : Array
        [K], source of each checkpoint; empty if checkpoint k takes source k.
    cast : int
        How source bits become cache bits (a CAST constant).
    """

    cache: Array
    states: Array
    rows: Array
    cast: int


@kernel
def _checkpoint_export_kernel(  # type: ignore[no-untyped-def]
    rows, offsets, state_indices, conv_cache, tokens, query_start_loc, token_indices, initial, initial_indices,
    has_initial, state_len, conv_cast, recurrent_cache, states, state_rows, recurrent_cast,
):  # fmt: skip
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    step = global_index(cuda.gridDim.x, cuda.blockDim.x, 0)
    for k in strided(cuda.blockIdx.y, offsets.size, cuda.gridDim.y):
        offset, block = offsets[k], state_indices[k]
        row, source = rows[k] if k < rows.size else k, state_rows[k] if k < state_rows.size else k
        there = (states.shape[0] == 0) | is_inside(source, states.shape[0])
        there &= (state_len == 0) | is_inside(row, query_start_loc.size - 1)
        if there & is_written(offset, block) & is_inside(block, max(recurrent_cache.shape[0], conv_cache.shape[0])):
            for slot in range(state_len):
                tap = conv_tap(slot, offset, state_len)
                token = query_start_loc[row] + max(tap, 0)
                token = token_indices[token] if is_inside(token, token_indices.size) else token
                window = initial_indices[row] if is_inside(row, initial_indices.size) else -1
                for channel in strided(first, conv_cache.shape[1], step):
                    if tap < 0:
                        taken = is_inside(window, initial.shape[0]) and (has_initial.size == 0 or has_initial[row])
                        conv_cache[block, channel, slot] = initial[window, channel, state_len + tap] if taken else 0
                    elif is_inside(token, tokens.shape[0]):
                        conv_cache[block, channel, slot] = cast_bits(tokens[token, channel], conv_cast)
            written, read = address_of(recurrent_cache, (block, 0)), address_of(states, (source, 0))
            sizes = recurrent_cache.shape[1], recurrent_cache.itemsize, states.itemsize
            move_run(written, read, *sizes, recurrent_cast, first, step)


@strided_loop
def _export_conv_host(  # type: ignore[no-untyped-def]
    rows, offsets, state_indices, cache, tokens, query_start_loc, token_indices, initial, initial_indices,
    has_initial, state_len, cast,
):  # fmt: skip
    for k in range(offsets.size):
        offset, block = offsets[k], state_indices[k]
        if is_written(offset, block):
            row = rows[k] if rows.size > 0 else k
            for slot in range(state_len):
                tap = conv_tap(slot, offset, state_len)
                if tap >= 0:
                    token = query_start_loc[row] + tap
                    token = token_indices[token] if token_indices.size > 0 else token
                    for channel in range(cache.shape[1]):
                        cache[block, channel, slot] = cast_bits(tokens[token, channel], cast)
                elif has_initial.size == 0 or has_initial[row]:
                    for channel in range(cache.shape[1]):
                        cache[block, channel, slot] = initial[initial_indices[row], channel, state_len + tap]
                else:
                    for channel in range(cache.shape[1]):
                        cache[block, channel, slot] = 0


@strided_loop
def _copy_states_host(offsets, state_indices, cache, states, state_rows, num_bytes):  # type: ignore[no-untyped-def]
    for k in range(offsets.size):
        if is_written(offsets[k], state_indices[k]):
            source = state_rows[k] if state_rows.size > 0 else k
            written = cache.ctypes.data + int64(state_indices[k]) * cache.strides[0]
            copy_bytes(written, states.ctypes.data + int64(source) * states.strides[0], num_bytes)


@strided_loop
def _cast_states_host(offsets, state_indices, cache, states, state_rows, cast):  # type: ignore[no-untyped-def]
    for k in range(offsets.size):
        if is_written(offsets[k], state_indices[k]):
            source = state_rows[k] if state_rows.size > 0 else k
            for e in range(cache.shape[1]):
                cache[state_indices[k], e] = cast_bits(states[source, e], cast)


def _export_on_host(targets: tuple[Array, Array, Array], conv: ConvMove, recurrent: RecurrentMove) -> None:
    _, offsets, state_indices = targets
    cache, states, state_rows, cast = recurrent
    if cast != CAST_NONE:
        _cast_states_host(offsets, state_indices, cache, states, state_rows, cast)
    elif cache.size:
        pages = cache.view(np.uint8), states.view(np.uint8)
        _copy_states_host(offsets, state_indices, *pages, state_rows, pages[0].shape[1])
    if conv.cache.size:
        _export_conv_host(*targets, *conv)


@functools.cache
def _empties(backend: Backend) -> tuple[Array, Array, Array]:
    return backend.empty((0,), np.int64), backend.empty((0, 0), np.uint8), backend.empty((0, 0, 0), np.uint8)


def no_conv(backend: Backend = HOST) -> ConvMove:
    """Return a move that fills no convolution window."""
    rank1, rank2, rank3 = _empties(backend)
    return ConvMove(rank3, rank2, rank1, rank1, rank3, rank1, rank1, 0, CAST_NONE)


def no_recurrent(backend: Backend = HOST) -> RecurrentMove:
    """Return a move that fills no recurrent state."""
    rank1, rank2, _ = _empties(backend)
    return RecurrentMove(rank2, rank2, rank1, CAST_NONE)


def export_checkpoints(
    backend: Backend, targets: tuple[Array, Array, Array], conv: ConvMove, recurrent: RecurrentMove
) -> None:
    """Write the states of all checkpoints of one layer; arguments must have been checked.

    Parameters
    ----------
    backend : Backend
        Where all arrays live.
    targets : tuple of Array
        rows [K] (empty: checkpoint k belongs to row k), offsets [K] and state indices [K].
    conv : ConvMove
        Convolution windows to write.
    recurrent : RecurrentMove
        Recurrent states to write.

    Notes
    -----
    Checkpoints without an offset, or with a null or padding block, write nothing. On a device: one launch on the
    current stream, no synchronisation; nothing outside an array is read or written, and a checkpoint whose block, row
    or source is outside its array is left out whole. A token outside the tokens leaves its slot as it was.
    """
    if not isinstance(backend, DeviceBackend):
        _export_on_host(targets, conv, recurrent)
        return
    num_threads = num_run_threads(recurrent.cache.shape[1], recurrent.cache.itemsize)
    shape = targets[1].size, max(conv.cache.shape[1], num_threads)
    launch_grid(backend, _checkpoint_export_kernel, shape, (*targets, *conv, *recurrent))
