"""From caches and inputs to the checked moves that the export kernel makes."""

import numpy as np

from numba_ckpt._array import Array, Backend, backend_of
from numba_ckpt._check import check_shape, refuse
from numba_ckpt.checkpoint.caches import ConvCache, RecurrentCache, as_words, cast_between, state_rows
from numba_ckpt.checkpoint.inputs import ConvInput, InitialConvState, RecurrentInput
from numba_ckpt.checkpoint.overlap import check_caches_apart, is_cache_itself
from numba_ckpt.checkpoint.targets import CheckpointTargets
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.check_export import (
    check_conv_sources,
    check_conv_spans,
    check_recurrent_sources,
    check_targets,
)
from numba_ckpt.kernels.checkpoint_export import ConvMove, RecurrentMove, no_conv, no_recurrent
from numba_ckpt.planning import ChunkLayout

__all__ = ["conv_move", "recurrent_move", "target_arrays"]

TargetArrays = tuple[Array, Array, Array]


def _indices(backend: Backend, array: Array) -> Array:
    # Host loops are compiled for one index type; kernels take what there is.
    return np.ascontiguousarray(array, np.int64) if backend.is_host else array


def target_arrays(backend: Backend, targets: CheckpointTargets) -> TargetArrays:
    """Return rows (empty for one per row), offsets and state indices."""
    rows = no_recurrent(backend).rows if targets.rows is None else _indices(backend, targets.rows)
    return rows, _indices(backend, targets.offsets), _indices(backend, targets.state_indices)


def conv_move(backend: Backend, cache: ConvCache, source: ConvInput) -> ConvMove:
    """Check shapes, dtypes and memory of the convolution side, and view it as bit patterns."""
    num_channels, state_len = int(cache.words.shape[1]), int(cache.state_len or 0)
    check_shape("tokens", source.tokens, (source.tokens.shape[0], num_channels), "one column per cached channel")
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


def check_conv_move(
    backend: Backend, targets: CheckpointTargets, arrays: TargetArrays, source: ConvInput, move: ConvMove
) -> None:
    """Check what the host knows of the values that a convolution move uses."""
    min_offset = move.state_len if source.initial is None else 0
    aliased = is_cache_itself(backend, move)
    known = arrays if backend.is_host else _mirrors(targets)
    starts = source.query_start_loc_cpu
    if known is None or starts is None:
        if min_offset and (targets.offsets_cpu is None or _has_short(targets.offsets_cpu, min_offset)):
            expected = f"offsets of at least {min_offset} (the convolution window), known on the host"
            do = "pass ConvInput.initial, or targets.offsets_cpu to show that none is shorter"
            refuse("offsets", expected, "a shorter or unknown one without an initial window", do)
        return
    check_conv_spans(known, np.ascontiguousarray(starts, np.int64), source.num_tokens, min_offset)
    if backend.is_host:
        check_conv_sources(known, move, aliased)


def _has_short(offsets: np.ndarray, min_offset: int) -> bool:
    return bool(((offsets > 0) & (offsets < min_offset)).any())


def _mirrors(targets: CheckpointTargets) -> TargetArrays | None:
    """Return what the host knows of a device's rows and offsets; every block is taken for a real one."""
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
    cast = cast_between("recurrent.states", source.states.dtype, cache.states.dtype, cache.dtype)
    rows = no_recurrent(backend).rows
    if source.rows is not None:
        check_shape("recurrent.rows", source.rows, (num_checkpoints,), "pass one source for each checkpoint")
        rows = _indices(backend, source.rows)
    return RecurrentMove(cache.words, state_rows("recurrent.states", source.states), rows, cast)


def check_layout(layout: ChunkLayout, conv: ConvInput, chunk_states: Array) -> None:
    """Refuse a chunk layout that is not the scan's: of other tokens, or of more chunks than there are states."""
    num_chunks, starts = layout.chunk_rows.size, getattr(conv, "query_start_loc_cpu", None)
    if chunk_states.shape[0] < num_chunks:
        got = f"{chunk_states.shape[0]} states for {num_chunks} chunks"
        refuse("chunk_states", "a state for each chunk of the layout", got, "pass the layout that the scan used")
    if starts is not None and starts[-1] - starts[0] != layout.cu_chunk_seqlens[-1]:
        expected = f"{starts[-1] - starts[0]} tokens, as query_start_loc has"
        refuse("chunks", expected, f"{layout.cu_chunk_seqlens[-1]}", "lay out the scan for these rows")


def check_values(
    backend: Backend,
    targets: CheckpointTargets,
    arrays: TargetArrays,
    moves: tuple[ConvMove, RecurrentMove],
    num_blocks: int,
) -> None:
    """Check blocks, offsets and source states, as far as the host knows them without waiting."""
    if backend.is_host:
        _, offsets, state_indices = arrays
        check_targets(offsets, state_indices, num_blocks)
        if moves[1].cache.size:
            check_recurrent_sources(offsets, state_indices, moves[1])
    elif moves[1].cache.size and moves[1].rows.size == 0 and targets.offsets_cpu is not None:
        # Which blocks are null is not known here, which offsets are is.
        known = np.ascontiguousarray(targets.offsets_cpu, np.int64)
        check_recurrent_sources(known, np.ones(len(targets), np.int64), moves[1])


def backend_of_caches(conv: ConvCache | None, recurrent: RecurrentCache | None) -> Backend:
    """Return the backend of an exporter's caches, which must have equally many blocks of memory of their own."""
    for name, cache, kind in (("conv_cache", conv, ConvCache), ("recurrent_cache", recurrent, RecurrentCache)):
        if cache is not None and not isinstance(cache, kind):
            refuse(name, f"a {kind.__name__}", type(cache).__name__, "wrap the layer's array in one", ArgumentTypeError)
    arrays = [cache.states for cache in (conv, recurrent) if cache is not None]
    if not arrays:
        refuse("caches", "a cache to export into", "None", "pass the layer's paged caches", ArgumentTypeError)
    backend = backend_of(**dict(zip(("conv_cache", "recurrent_cache"), arrays, strict=False)))
    if len(arrays) == 2 and arrays[0].shape[0] != arrays[1].shape[0]:
        got = f"{arrays[1].shape[0]} and {arrays[0].shape[0]}"
        refuse("recurrent_cache", "as many blocks as conv_cache", got, "they share block ids: allocate them together")
    if len(arrays) == 2:
        check_caches_apart(backend, *arrays)
    return backend
