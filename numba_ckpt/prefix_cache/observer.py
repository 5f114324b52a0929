"""What looks on while a cache works: counters, prefixes being written, and why states were not kept."""

from collections import deque
from typing import NamedTuple

from numba_ckpt.prefix_cache.chunk_loops import COPY_FROM, OFFSET
from numba_ckpt.prefix_cache.counters import CacheCounters
from numba_ckpt.prefix_cache.groups import CacheConfig
from numba_ckpt.prefix_cache.request import (
    INTERVAL,
    JUNCTION,
    LAST_BOUNDARY,
    CachedRequest,
    ChunkReservation,
    PrefixHit,
)

__all__ = ["CacheObserver", "UnkeptState"]

Prefix = tuple[int, int]

# How many chunks `explain` can look back.
_NUM_REMEMBERED = 65_536


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
    was_planned : bool
        Whether the chunk had a checkpoint there, or ended there.
    was_declined : bool
        Whether the worker declined to write it.
    """

    prefix: Prefix
    group: int
    position: int
    start: int
    end: int
    was_planned: bool
    was_declined: bool


class CacheObserver:
    """Counters, pending prefixes and memory of one cache; the cache tells it what happens.

    Attributes
    ----------
    counters : CacheCounters
        What has happened so far.
    unkept : deque of UnkeptState
        The latest states that were not kept, oldest first.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.counters = CacheCounters()
        self.unkept: deque[UnkeptState] = deque(maxlen=_NUM_REMEMBERED)
        self._unit = config.hash_block_size
        self._hit_step = config.hit_step
        self._state_groups = [index for index, group in enumerate(config.groups) if group.kind == "state"]
        self._pending: dict[tuple[int, Prefix], int] = {}

    def looked_up(self, request: CachedRequest, num_tokens: int, attention_tokens: int) -> PrefixHit:
        """Count a look-up, and add what is being written to its result."""
        last_boundary = int(request.kept[LAST_BOUNDARY])
        hit = PrefixHit(num_tokens, attention_tokens, self.longest_pending(request, num_tokens, last_boundary))
        self.counters.count_lookup(request.num_tokens, hit)
        if last_boundary < self._hit_step:
            self.counters.warn_of_short_prompt(request.num_tokens, self._hit_step)
        return hit

    def reserved(self, chunk: ChunkReservation) -> None:
        """Count the checkpoints and copies of a chunk, and announce the boundaries that it is about to write."""
        for group in self._state_groups:
            row = chunk.groups[group]
            self.counters.checkpoints_reserved += bool(row[OFFSET])
            self.counters.copies += bool(row[COPY_FROM])
        for boundary in self._boundaries(chunk):
            self._pending[boundary] = self._pending.get(boundary, 0) + 1

    def _boundaries(self, chunk: ChunkReservation) -> set[tuple[int, Prefix]]:
        request, start, end, groups = chunk
        kept = request.kept[LAST_BOUNDARY], request.kept[JUNCTION]
        positions = {start + int(groups[group, OFFSET]) for group in self._state_groups} | {end}
        return {(p, self._prefix(request, p)) for p in positions if p > start and p in kept and p % self._unit == 0}

    def _prefix(self, request: CachedRequest, position: int) -> Prefix:
        first, second = request.keys[position // self._unit - 1].tolist()
        return first, second

    def _settled(self, chunk: ChunkReservation) -> None:
        for boundary in self._boundaries(chunk):
            self._pending[boundary] -= 1
            if not self._pending[boundary]:
                del self._pending[boundary]

    def committed(self, chunk: ChunkReservation, was_declined: bool) -> None:
        """Count the checkpoints of a chunk that is done, and remember the states that it did not leave behind."""
        self._settled(chunk)
        request, start, end, groups = chunk
        for group in self._state_groups:
            offset = int(groups[group, OFFSET])
            self.counters.checkpoints_declined += bool(offset) and was_declined
            self.counters.checkpoints_written += bool(offset) and not was_declined
            planned = start + offset if offset else int(request.kept[LAST_BOUNDARY])
            if start < planned < end and (not offset or was_declined or not self._is_kept(request, planned)):
                self._remember(request, (group, planned, start, end, offset > 0, was_declined))
            if end % self._unit == 0 and not self._is_kept(request, end):
                self._remember(request, (group, end, start, end, True, False))

    def _remember(self, request: CachedRequest, rest: tuple[int, int, int, int, bool, bool]) -> None:
        self.unkept.append(UnkeptState(self._prefix(request, rest[1]), *rest))

    @staticmethod
    def _is_kept(request: CachedRequest, position: int) -> bool:
        interval = request.kept[INTERVAL]
        kept = request.kept[LAST_BOUNDARY], request.kept[JUNCTION]
        return position in kept or bool(interval and position % interval == 0)

    def aborted(self, chunk: ChunkReservation) -> None:
        """Count the checkpoints of a chunk that was undone."""
        self._settled(chunk)
        self.counters.checkpoints_aborted += sum(bool(chunk.groups[group, OFFSET]) for group in self._state_groups)

    def longest_pending(self, request: CachedRequest, above: int, limit: int) -> int:
        """Return the longest boundary of the prompt in (above, limit] that a step is writing; 0 if there is none."""
        if not self._pending:
            return 0
        positions = {position for position, _ in self._pending if above < position <= limit}
        found = (p for p in sorted(positions, reverse=True) if (p, self._prefix(request, p)) in self._pending)
        return next(found, 0)
