"""What looks on while a cache works: counters, prefixes being written, and why states were not kept."""

from collections import deque
from typing import NamedTuple

from numba_ckpt.prefix_cache.chunk_loops import COPY_FROM, OFFSET
from numba_ckpt.prefix_cache.counters import CacheCounters
from numba_ckpt.prefix_cache.groups import CacheConfig
from numba_ckpt.prefix_cache.request import CachedRequest, ChunkReservation, PrefixHit
from numba_ckpt.rules import NULL_BLOCK_ID, is_state_kept

__all__ = ["CacheObserver", "UnkeptState"]

Prefix = tuple[int, int]
Boundary = tuple[int, Prefix]

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

    def __init__(self, config: CacheConfig, interval: int) -> None:
        self._interval = interval
        self.counters = CacheCounters()
        self.unkept: deque[UnkeptState] = deque(maxlen=_NUM_REMEMBERED)
        self._unit = config.hash_block_size
        self._hit_step = config.hit_step
        self._state_groups = [index for index, group in enumerate(config.groups) if group.kind == "state"]
        self._block_sizes = [group.block_size for group in config.groups]
        self._pending: dict[Boundary, int] = {}
        self._announced: dict[tuple[str, int], list[Boundary]] = {}

    def adding(self, num_tokens: int, last_boundary: int) -> None:
        """Warn, once, of prompts that can never be hit."""
        if last_boundary < self._hit_step:
            self.counters.warn_of_short_prompt(num_tokens, self._hit_step)

    def looked_up(self, request: CachedRequest, num_tokens: int, attention_tokens: int) -> PrefixHit:
        """Count a look-up, and add what is being written to its result."""
        hit = PrefixHit(num_tokens, attention_tokens, self.longest_pending(request, num_tokens, request.last_boundary))
        self.counters.count_lookup(request.num_tokens, hit)
        return hit

    def reserved(self, chunk: ChunkReservation) -> None:
        """Count the checkpoints and copies of a chunk, and announce the boundaries that it is about to write."""
        request, start, end, groups = chunk
        positions = {end}
        for row in groups.tolist():
            if row[OFFSET]:
                self.counters.checkpoints_reserved += 1
                positions.add(start + row[OFFSET])
            self.counters.copies += row[COPY_FROM] != NULL_BLOCK_ID
        proven = positions & {request.last_boundary, request.junction}
        boundaries = [(p, self._prefix(request, p)) for p in proven if p % self._unit == 0]
        self._announced[request.request_id, end] = boundaries
        for boundary in boundaries:
            self._pending[boundary] = self._pending.get(boundary, 0) + 1

    def _prefix(self, request: CachedRequest, position: int) -> Prefix:
        first, second = request.keys[position // self._unit - 1].tolist()
        return first, second

    def _settled(self, chunk: ChunkReservation) -> None:
        for boundary in self._announced.pop((chunk.request.request_id, chunk.end)):
            self._pending[boundary] -= 1
            if not self._pending[boundary]:
                del self._pending[boundary]

    def committed(self, chunk: ChunkReservation, was_declined: bool) -> None:
        """Count the checkpoints of a chunk that is done, and remember the states that it did not leave behind."""
        self._settled(chunk)
        request, start, end, _ = chunk
        rows = chunk.groups.tolist()
        for group in self._state_groups:
            offset = rows[group][OFFSET]
            if offset and was_declined:
                self.counters.checkpoints_declined += 1
            elif offset:
                self.counters.checkpoints_written += 1
            planned = start + offset if offset else request.last_boundary
            if start < planned < end and (not offset or was_declined or not self._is_kept(request, planned, group)):
                self._remember(request, (group, planned, start, end, offset > 0, was_declined))
            if end % self._unit == 0 and not self._is_kept(request, end, group):
                self._remember(request, (group, end, start, end, True, False))

    def _remember(self, request: CachedRequest, rest: tuple[int, int, int, int, bool, bool]) -> None:
        self.unkept.append(UnkeptState(self._prefix(request, rest[1]), *rest))

    def _is_kept(self, request: CachedRequest, position: int, group: int) -> bool:
        if position in (request.last_boundary, request.junction):
            return True  # spares the usual case the call
        proven = request.last_boundary, request.junction
        return bool(is_state_kept(position, self._interval, *proven, self._block_sizes[group]))

    def aborted(self, chunk: ChunkReservation) -> None:
        """Count the checkpoints of a chunk that was undone."""
        self._settled(chunk)
        self.counters.checkpoints_aborted += sum(row[OFFSET] > 0 for row in chunk.groups.tolist())

    def longest_pending(self, request: CachedRequest, above: int, limit: int) -> int:
        """Return the longest boundary of the prompt in (above, limit] that a step is writing; 0 if there is none."""
        if not self._pending:
            return 0
        positions = {position for position, _ in self._pending if above < position <= limit}
        found = (p for p in sorted(positions, reverse=True) if (p, self._prefix(request, p)) in self._pending)
        return next(found, 0)
