"""No array that an export reads may lie in what it writes: it would be read after it was overwritten."""

from numba_ckpt._array import Array, Backend
from numba_ckpt._check import refuse
from numba_ckpt.kernels.checkpoint_export import ConvMove, RecurrentMove

__all__ = ["check_caches_apart", "check_sources_apart", "is_cache_itself"]

CONV, RECURRENT = "conv_cache.states", "recurrent_cache.states"


def check_caches_apart(backend: Backend, conv: Array, recurrent: Array) -> None:
    """Refuse two caches that share bytes; pages of one buffer that interleave are fine."""
    if backend.may_overlap(conv, recurrent):
        refuse(RECURRENT, f"memory apart from {CONV}", "overlapping memory", "give each state its bytes of the page")


def check_sources_apart(
    backend: Backend, targets: tuple[Array, Array, Array], conv: ConvMove, recurrent: RecurrentMove
) -> None:
    """Refuse sources and index arrays that share bytes with a cache; initial windows may be the conv cache itself."""
    caches = [(name, cache) for name, cache in ((CONV, conv.cache), (RECURRENT, recurrent.cache)) if cache.size]
    sources = {
        "rows": targets[0],
        "offsets": targets[1],
        "state_indices": targets[2],
        "tokens": conv.tokens,
        "query_start_loc": conv.query_start_loc,
        "token_indices": conv.token_indices,
        "initial.indices": conv.initial_indices,
        "initial.has_initial_state": conv.has_initial,
        "recurrent.states": recurrent.states,
        "recurrent.rows": recurrent.rows,
    }
    for cache_name, cache in caches:
        for name, source in sources.items():
            if source.size and backend.may_overlap(cache, source):
                refuse(name, f"memory apart from {cache_name}", "overlapping memory", "read from a separate array")
    if recurrent.cache.size and conv.initial.size and backend.may_overlap(recurrent.cache, conv.initial):
        refuse("initial.states", f"memory apart from {RECURRENT}", "overlapping memory", "read from a separate array")


def is_cache_itself(backend: Backend, move: ConvMove) -> bool:
    """Say whether initial windows are blocks of the written cache; another view of its memory is refused."""
    cache, initial = move.cache, move.initial
    if not initial.size or not backend.may_overlap(cache, initial):
        return False
    if backend.address(cache) != backend.address(initial) or cache.strides != initial.strides:
        do = "pass the cache itself, or a copy of the windows"
        refuse("initial.states", "the conv cache or memory apart from it", "another view of it", do)
    return True
