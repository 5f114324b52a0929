"""Steps and requests undone: every block that they reserved is given back, and nothing of them is published."""

from typing import TYPE_CHECKING

from numba_ckpt.prefix_cache.checks import check_abort, check_step
from numba_ckpt.prefix_cache.chunk_loops import undo_chunk
from numba_ckpt.prefix_cache.request import CachedRequest, ChunkReservation
from numba_ckpt.prefix_cache.step import CacheStep

if TYPE_CHECKING:
    from numba_ckpt.prefix_cache.manager import HybridPrefixCache

__all__ = ["abort_request", "abort_step"]


def abort_step(cache: "HybridPrefixCache", step: CacheStep, has_run: bool) -> None:
    """Undo all chunks of a step."""
    check_step(step, cache)
    check_abort(step)
    step.is_open = False
    cache.observer.steps_aborted += 1
    for chunk in reversed(step.reservations):
        _undo(cache, chunk, has_run)
        chunk.request.open_steps.remove(step)


def abort_request(cache: "HybridPrefixCache", request: CachedRequest, has_run: bool) -> None:
    """Undo a request's chunks, the latest first, and take them out of their steps."""
    while request.open_steps:
        _undo(cache, request.open_steps[-1].drop(request), has_run)
        request.open_steps.pop()


def _undo(cache: "HybridPrefixCache", chunk: ChunkReservation, has_run: bool) -> None:
    request, start, end, reserved = chunk
    undo_chunk(cache.pool.words, cache._book, request.table, reserved, start, end)
    request.num_computed_tokens = start
    request.has_lost_state |= has_run and chunk.moves_in_place
    cache.pending.settled(chunk)
