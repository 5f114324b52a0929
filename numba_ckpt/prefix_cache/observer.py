"""What looks on while a cache works: prefixes being written, states not kept, and warnings."""

import warnings
from typing import NamedTuple

import numpy as np

from numba_ckpt.cache import BlockPool
from numba_ckpt.prefix_cache.book import GROUP, NUM_COUNTERS, NUM_REMEMBERED, NUM_UNKEPT, REASON, Book, cut_book_words
from numba_ckpt.prefix_cache.chunk_loops import OFFSET
from numba_ckpt.prefix_cache.counters import CacheCounters, CacheWarning
from numba_ckpt.prefix_cache.groups import TOKENS_SERVED, CacheConfig
from numba_ckpt.prefix_cache.request import CachedRequest, ChunkReservation

__all__ = ["CacheObserver", "UnkeptState"]

Prefix = tuple[int, int]
Boundary = tuple[int, Prefix]
Place = tuple[str, int]


class UnkeptState(NamedTuple):
    """A state boundary inside a chunk [start, end) that nobody can find, and what is known of it.

    Attributes
    ----------
    prefix : tuple of int
        Key of the boundary.
    group : int
        State group.
    position, start, end : int
        The boundary and the chunk, in tokens.
    reason : int
        `NOT_ASKED`, `NOT_WORTH_IT`, `DECLINED` or `NO_BLOCKS` of `numba_ckpt.prefix_cache.book`.
    """

    prefix: Prefix
    group: int
    position: int
    start: int
    end: int
    reason: int


class CacheObserver:
    """Pending prefixes and memory of one cache; the cache tells it what happens.

    A chunk is announced when somebody looks up while it is in flight: engines that commit before the next look-up pay
    nothing.

    Attributes
    ----------
    waits, steps_committed, steps_aborted : int
        What compiled loops do not count.
    """

    def __init__(self, config: CacheConfig, words: np.ndarray) -> None:
        self.waits = self.steps_committed = self.steps_aborted = 0
        self._words = words
        self._unit, self._hit_step = config.hash_block_size, config.hit_step
        self._has_warned = False
        self._pending: dict[Boundary, int] = {}
        self._unannounced: dict[Place, ChunkReservation] = {}
        self._announced: dict[Place, list[Boundary]] = {}

    @property
    def _book(self) -> Book:
        # Cut when it is read, so that a copy of the cache reads its own.
        return cut_book_words(self._words)

    def count(self, pool: BlockPool) -> CacheCounters:
        """Say what has happened so far, and how full the cache's `pool` is."""
        book = self._book
        counts = [*book.counters[:NUM_COUNTERS].tolist(), self.waits, self.steps_committed, self.steps_aborted]
        counts += [pool.num_evicted, pool.num_held, pool.num_idle, pool.num_free]
        counts.append(tuple(book.groups[:, TOKENS_SERVED].tolist()))
        return CacheCounters(*counts)

    def warn_of_short_prompt(self, num_tokens: int, last_boundary: int) -> None:
        """Warn, once, of prompts into which the unit of a hit does not fit: they are never served."""
        if last_boundary < self._hit_step and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a prompt of {num_tokens} tokens can never be hit: hits are multiples of {self._hit_step} tokens and "
                "leave one token (with EAGLE one unit) to compute; use a finer hash block or smaller attention blocks",
                CacheWarning,
                stacklevel=3,
            )

    def reserved(self, chunk: ChunkReservation) -> None:
        """Take in a chunk whose boundaries are about to be written."""
        self._unannounced[chunk.request.request_id, chunk.end] = chunk

    def settled(self, chunk: ChunkReservation) -> None:
        """Forget a chunk that was committed or undone."""
        place = chunk.request.request_id, chunk.end
        if self._unannounced.pop(place, None) is not None:
            return
        for boundary in self._announced.pop(place):
            self._pending[boundary] -= 1
            if not self._pending[boundary]:
                del self._pending[boundary]

    def _announce(self, place: Place, chunk: ChunkReservation) -> None:
        request, start, end, groups = chunk
        positions = {end, *(start + groups[groups[:, OFFSET] > 0, OFFSET]).tolist()}
        proven = positions & {request.last_boundary, request.junction}
        boundaries = [(p, self._prefix(request, p)) for p in proven if p % self._unit == 0]
        self._announced[place] = boundaries
        for boundary in boundaries:
            self._pending[boundary] = self._pending.get(boundary, 0) + 1

    def _prefix(self, request: CachedRequest, position: int) -> Prefix:
        first, second = request.keys[position // self._unit - 1].tolist()
        return first, second

    def longest_pending(self, request: CachedRequest, above: int, limit: int) -> int:
        """Return the longest boundary of the prompt in (above, limit] that a step is writing; 0 if there is none."""
        if not self._unannounced and not self._pending:
            return 0
        while self._unannounced:
            self._announce(*self._unannounced.popitem())
        positions = {position for position, _ in self._pending if above < position <= limit}
        found = (p for p in sorted(positions, reverse=True) if (p, self._prefix(request, p)) in self._pending)
        return next(found, 0)

    def unkept(self, prefix: Prefix | None = None, group: int = 0) -> list[UnkeptState]:
        """Return the states that were not kept, oldest first: all that are remembered, or those of a prefix."""
        book = self._book
        count = int(book.sizes[NUM_UNKEPT])
        rows = np.roll(book.unkept, -count, axis=0) if count > NUM_REMEMBERED else book.unkept[:count]
        if prefix is not None:
            keys = rows[:, :GROUP].view(np.uint64)
            rows = rows[(keys == np.array(prefix, np.uint64)).all(axis=1) & (rows[:, GROUP] == group)]
        prefixes = rows[:, :GROUP].view(np.uint64).tolist()
        return [
            UnkeptState((first, second), *row)
            for (first, second), row in zip(prefixes, rows[:, GROUP : REASON + 1].tolist(), strict=True)
        ]
