"""From caches and inputs to the checked moves that the export kernel makes."""

import numpy as np

from numba_ckpt._array import Array, Backend, backend_of
from numba_ckpt._check import check_shape, refuse
from numba_ckpt.checkpoint.caches import ConvCache, RecurrentCache, as_words, cast_between, state_rows
from numba_ckpt.checkpoint.inputs import ConvInput, InitialConvState, RecurrentInput
from numba_ckpt.checkpoint.targets import CheckpointTargets
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.check_export import (
    check_conv_sources,
    check_conv_spans,
    check_recurrent_sources,
    check_targets,
)
from numba_ckpt.kernels.checkpoint_export import ConvMove, RecurrentMove, no_conv, no_recurrent

__all__ = ["conv_move", "recurrent_move", "target_arrays"]


def _indices(backend: Backend, array: Array) -> Array:
    # Host loops are compiled for one index type; kernels take what there is.
    return np.ascontiguousarray(array, np.int64) if backend.is_host else array


def target_arrays(backend: Backend, targets: CheckpointTargets) -> tuple[Array, Array, Array]:
    """Return rows (empty for one per row), offsets and state indices."""
    rows = no_recurrent(backend).rows if targets.rows is None else _indices(backend, targets.rows)
    return rows, _indices(backend, targets.offsets), _indices(backend, targets.state_indices)


def _check_apart(backend: Backend, cache: tuple[str, Array], source: tuple[str, Array]) -> None:
    if backend.may_overlap(cache[1], source[1]):
        refuse(source[0], f"memory apart from {cache[0]}", "overlapping memory", "read from a separate array")


def conv_move(backend: Backend, cache: ConvCache, source: ConvInput) -> ConvMove:
    """Check shapes, dtypes and memory of the convolution side, and view it as bit patterns."""
    num_channels, state_len = int(cache.words.shape[1]), int(cache.state_len or 0)
    check_shape("tokens", source.tokens, (source.tokens.shape[0], num_channels), "one column per cached channel")
    _check_apart(backend, ("conv_cache.states", cache.states), ("tokens", source.tokens))
    cast = cast_between("tokens", source.tokens.dtype, cache.states.dtype, cache.dtype)
    none = no_conv(backend)
    initial, indices, flags = none.initial, none.initial_indices, none.has_initial
    if source.initial is not None:
        initial = _initial_words(cache, source.initial, (num_channels, state_len))
        indices = _indices(backend, source.initial.indices)
        flags = flags if source.initial.has_initial_state is None else source.initial.has_initial_state
    mapped = none.token_indices if source.token_indices is None else _indices(backend, source.token_indices)
    tokens, starts = as_words("tokens", source.tokens), _indices(backend, source.query_start_loc)
    return ConvMove(cache.words, tokens, starts, mapped, initial, indices, flags, state_len, cast)


def _initial_words(cache: ConvCache, initial: InitialConvState, shape: tuple[int, int]) -> Array:
    words = cache.by_channel(as_words("initial.states", initial.states))
    if initial.states.dtype != cache.states.dtype:
        expected, got = cache.states.dtype.name, initial.states.dtype.name
        refuse("initial.states", f"{expected} like the cache", got, "keep both in one dtype", ArgumentTypeError)
    if words.shape[1] != shape[0] or words.shape[2] < shape[1]:
        expected = f"{shape[0]} channels and at least {shape[1]} slots in the cache's layout"
        refuse("initial.states", expected, f"shape {initial.states.shape}", "pass windows laid out like the cache")
    return words


def check_conv_move(backend: Backend, targets: CheckpointTargets, source: ConvInput, move: ConvMove) -> None:
    """Check what the host knows of the values that a convolution move uses."""
    min_offset = move.state_len if source.initial is None else 0
    known = _known_on_host(backend, targets)
    starts = source.query_start_loc_cpu
    if known is None or starts is None:
        if min_offset and (targets.offsets_cpu is None or _has_short(targets.offsets_cpu, min_offset)):
            expected = f"offsets of at least {min_offset} (the convolution window), known on the host"
            do = "pass ConvInput.initial, or targets.offsets_cpu to show that none is shorter"
            refuse("offsets", expected, "a shorter or unknown one without an initial window", do)
        return
    check_conv_spans(known, np.ascontiguousarray(starts, np.int64), source.num_tokens, min_offset)
    if backend.is_host:
        check_conv_sources(known, move, _is_cache_itself(move))


def _is_cache_itself(move: ConvMove) -> bool:
    """Say whether initial windows are blocks of the written cache; another view of its memory is refused."""
    cache, initial = move.cache, move.initial
    if not np.may_share_memory(cache, initial):
        return False
    if cache.ctypes.data != initial.ctypes.data or cache.strides != initial.strides:
        do = "pass the cache itself, or a copy of the windows"
        refuse("initial.states", "the conv cache or memory apart from it", "another view of it", do)
    return True


def _has_short(offsets: np.ndarray, min_offset: int) -> bool:
    return bool(((offsets > 0) & (offsets < min_offset)).any())


def _known_on_host(backend: Backend, targets: CheckpointTargets) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Rows, offsets and state indices; on a device, mirrors, with every block taken for a real one."""
    if backend.is_host:
        return target_arrays(backend, targets)
    if targets.offsets_cpu is None or (targets.rows is not None and targets.rows_cpu is None):
        return None
    rows = np.empty(0, np.int64) if targets.rows is None else np.ascontiguousarray(targets.rows_cpu, np.int64)
    return rows, np.ascontiguousarray(targets.offsets_cpu, np.int64), np.ones(len(targets), np.int64)


def recurrent_move(
    backend: Backend, cache: RecurrentCache, source: RecurrentInput, num_checkpoints: int
) -> RecurrentMove:
    """Check shapes, dtypes and memory of the recurrent side, and view it as bit patterns."""
    do = "the exported states must have the cache's shape"
    check_shape("recurrent.states", source.states, (source.states.shape[0], *cache.states.shape[1:]), do)
    if source.orientation != cache.orientation:
        expected = f"the cache's orientation {cache.orientation!r}"
        refuse("recurrent.orientation", expected, repr(source.orientation), "transpose the states, or relabel them")
    _check_apart(backend, ("recurrent_cache.states", cache.states), ("recurrent.states", source.states))
    cast = cast_between("recurrent.states", source.states.dtype, cache.states.dtype, cache.dtype)
    rows = no_recurrent(backend).rows
    if source.rows is not None:
        check_shape("recurrent.rows", source.rows, (num_checkpoints,), "pass one source for each checkpoint")
        rows = _indices(backend, source.rows)
    return RecurrentMove(cache.words, state_rows("recurrent.states", source.states), rows, cast)


def check_values(
    backend: Backend, targets: CheckpointTargets, moves: tuple[ConvMove, RecurrentMove], num_blocks: int
) -> None:
    """Check blocks, offsets and source states of a host export; a device's values cannot be seen without waiting."""
    if backend.is_host:
        _, offsets, state_indices = target_arrays(backend, targets)
        check_targets(offsets, state_indices, num_blocks)
        if moves[1].cache.size:
            check_recurrent_sources(offsets, state_indices, moves[1])


def backend_of_caches(conv: ConvCache | None, recurrent: RecurrentCache | None) -> Backend:
    """Return the backend of an exporter's caches, which must have equally many blocks of memory of their own."""
    arrays = [cache.states for cache in (conv, recurrent) if cache is not None]
    backend = backend_of(**dict(zip(("conv_cache", "recurrent_cache"), arrays, strict=False)))
    if len(arrays) == 2 and arrays[0].shape[0] != arrays[1].shape[0]:
        got = f"{arrays[1].shape[0]} and {arrays[0].shape[0]}"
        refuse("recurrent_cache", "as many blocks as conv_cache", got, "they share block ids: allocate them together")
    return backend
