"""Which tokens the next step computes: requests in order of arrival, cut into chunks that fit the budget.

::

    queue ──arrives──► ready ──look up, reserve──► running ──chunk by chunk──► done
                         ▲                            │
                         └──── preempted: no blocks ──┘
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from numba_ckpt._check import refuse
from numba_ckpt.prefix_cache import (
    CachedRequest,
    CacheStep,
    ChunkReservation,
    HybridPrefixCache,
    PrefillProgress,
    PrefixHit,
    split_prefill,
)
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.result import Chunk, ReplayResult, RequestTimeline
from numba_ckpt.replay.trace import TraceRequest, output_tokens, prompt_tokens, reuse_ceiling
from numba_ckpt.rules import floor_to

__all__ = ["ActiveRequest", "Scheduler"]


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request that has arrived.

    Attributes
    ----------
    number : int
        Place in the trace, from 0.
    request : TraceRequest
        Its prompt.
    cached : CachedRequest
        What the cache keeps of it.
    tokens : ndarray
        int32 [num_prompt_tokens], the prompt.
    num_target_tokens : int
        Tokens to compute: the prompt's, and all outputs but the last.
    hit : PrefixHit or None
        What its latest look-up found; None before it begins.
    num_progress_tokens : int
        Tokens computed or spared at most so far; a preemption does not take them back.
    chunks : list of Chunk
        What has been computed of the prompt since it last began.
    """

    number: int
    request: TraceRequest
    cached: CachedRequest
    tokens: np.ndarray
    num_target_tokens: int
    hit: PrefixHit | None = None
    num_progress_tokens: int = 0
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.request.num_input_tokens

    @property
    def num_hit_tokens(self) -> int:
        """Tokens that its latest look-up spared it."""
        return self.hit.num_tokens if self.hit else 0

    @property
    def is_done(self) -> bool:
        """Whether all of its tokens have been computed."""
        return self.cached.num_computed_tokens == self.num_target_tokens

    def tokens_between(self, start: int, end: int) -> np.ndarray:
        """Return the tokens [start, end) of prompt and outputs."""
        prompt = self.tokens[start:end]
        if (num_outputs := end - self.num_prompt_tokens) <= 0:
            return prompt
        outputs = output_tokens(self.number, num_outputs)[max(start - self.num_prompt_tokens, 0) :]
        return np.concatenate((prompt, outputs))

    def timeline(self) -> RequestTimeline:
        """Return how the request was served."""
        return RequestTimeline(self.number, self.num_prompt_tokens, self.num_hit_tokens, tuple(self.chunks))


class Scheduler:
    """Forms steps.

    Parameters
    ----------
    requests : sequence of TraceRequest
        In the order of the trace.
    cache : HybridPrefixCache
        Where requests find what they resume from, and reserve what they write.
    options : ReplayOptions
        Budget, policies, and how requests arrive.
    result : ReplayResult
        Counted and timed into.

    Raises
    ------
    ArgumentError
        A request does not fit into the pool even when it runs alone.

    Notes
    -----
    When the pool is exhausted, the request that began last gives up its blocks and starts over with a look-up. The one
    that began first never has to, so that every step computes something.
    """

    def __init__(
        self, requests: Sequence[TraceRequest], cache: HybridPrefixCache, options: ReplayOptions, result: ReplayResult
    ) -> None:
        self.running: list[ActiveRequest] = []
        self._requests, self._cache, self._options, self._result = requests, cache, options, result
        self._policy = options.split_policy()
        self._longest_chunk = self._policy.max_chunk_tokens
        numbers = range(len(requests))
        by_time = options.arrivals == "trace"
        order = sorted(numbers, key=lambda number: requests[number].timestamp) if by_time else list(numbers)
        self._ceilings = dict(zip(order, reuse_ceiling([requests[number] for number in order]).tolist(), strict=True))
        self._queue = deque(order)
        self._ready: deque[ActiveRequest] = deque()
        # Sessions with a request that has begun, and those that wait for its end; then requests whose turn has come.
        self._sessions: dict[int | None, deque[int]] = {}
        self._turns: deque[int] = deque()
        for number, request in enumerate(requests):
            self._check_fits(number, request)

    @property
    def is_done(self) -> bool:
        """Whether nothing runs and nothing is to come."""
        return not (self.running or self._ready or self._turns or self._queue)

    @property
    def next_arrival(self) -> float:
        """Seconds at which the next request arrives; 0 in a closed loop."""
        return self._requests[self._queue[0]].timestamp / 1000 if self._options.arrivals == "trace" else 0.0

    def schedule(self, step: CacheStep, now: float) -> list[tuple[ActiveRequest, ChunkReservation]]:
        """Reserve the chunks of a step, at `now` seconds; none if nothing runs and nothing has arrived."""
        rows: list[tuple[ActiveRequest, ChunkReservation]] = []
        budget, num_preemptions = self._options.budget_tokens, self._result.counts.preemptions
        index = 0
        while index < len(self.running) and budget:
            active = self.running[index]
            if wanted := self._next_chunk(active, budget):
                chunk = self._reserve_or_preempt(step, active, wanted)
                if chunk is None:
                    break
                rows.append((active, chunk))
                budget -= wanted
            index += 1
        # What just gave up its blocks would only take them back.
        may_admit = num_preemptions == self._result.counts.preemptions
        while may_admit and budget and len(self.running) < self._options.max_running and self._fetch(now):
            chunk = self._admit(step, budget, is_first=not rows)
            if chunk is None:
                break
            rows.append((self.running[-1], chunk))
            budget -= chunk.end - chunk.start
        return rows

    def finish(self, active: ActiveRequest) -> None:
        """Let go of a request that is done, and let its session go on."""
        self._cache.finish(active.cached)
        self.running.remove(active)
        session = active.request.session
        if waiting := self._sessions.get(session):
            self._turns.append(waiting.popleft())
        else:
            self._sessions.pop(session, None)

    def _fetch(self, now: float) -> bool:
        """Move the next request that may begin to the ready ones, if those are empty."""
        while not self._ready and (self._turns or (self._queue and self.next_arrival <= now)):
            if self._turns:
                self._ready.append(self._activate(self._turns.popleft()))
                break
            number = self._queue.popleft()
            session = self._requests[number].session
            if session in self._sessions:
                self._sessions[session].append(number)
                continue
            if session is not None:
                self._sessions[session] = deque()
            self._ready.append(self._activate(number))
        return bool(self._ready)

    def _activate(self, number: int) -> ActiveRequest:
        request, times = self._requests[number], self._result.times
        with times.measure("tokens"):
            tokens = prompt_tokens(request)
        with times.measure("hash"):
            cached = self._cache.add(str(number), tokens)
        return ActiveRequest(number, request, cached, tokens, self._target(request))

    def _target(self, request: TraceRequest) -> int:
        # The last output is sampled, and nothing is computed from it.
        num_outputs = max(request.num_output_tokens - 1, 0) if self._options.decode_tokens else 0
        return request.num_input_tokens + num_outputs

    def _admit(self, step: CacheStep, budget: int, is_first: bool) -> ChunkReservation | None:
        """Let the first of the ready requests begin; None, and it holds nothing, if it has to wait."""
        active = self._ready[0]
        with self._result.times.measure("lookup"):
            hit = self._cache.look_up(active.cached)
        # Only what this step writes can be pending, so the wait is for one step.
        waits = hit.pending_tokens > hit.num_tokens and not is_first
        wanted = 0 if waits else self._next_chunk(active, budget)
        chunk = self._reserve(step, active, wanted) if wanted else None
        if chunk is None:
            self._cache.preempt(active.cached)
            return None
        self.running.append(self._ready.popleft())
        is_new, active.hit = active.hit is None, hit
        if is_new:
            self._count_hit(active, hit)
        return chunk

    def _next_chunk(self, active: ActiveRequest, budget: int) -> int:
        """Return how many tokens the request's next chunk gets; 0 if it has to wait for a step with more room."""
        cached, prompt = active.cached, active.num_prompt_tokens
        if cached.num_computed_tokens == cached.num_tokens:
            num_outputs = cached.num_tokens - prompt
            count = min(self._options.decode_tokens, active.num_target_tokens - cached.num_tokens, budget)
            with self._result.times.measure("hash"):
                made = output_tokens(active.number, num_outputs + count)[num_outputs:]
                self._cache.append_tokens(cached, made)
            return count
        junction = cached.junction if self._options.junction != "none" else 0
        progress = PrefillProgress(cached.num_computed_tokens, prompt, cached.num_tokens, junction)
        asked = min(cached.num_tokens - cached.num_computed_tokens, budget, self._longest_chunk)
        with self._result.times.measure("split"):
            return split_prefill(progress, asked, self._policy)

    def _reserve(self, step: CacheStep, active: ActiveRequest, count: int) -> ChunkReservation | None:
        with self._result.times.measure("reserve"):
            return self._cache.reserve(step, active.cached, count)

    def _reserve_or_preempt(self, step: CacheStep, active: ActiveRequest, count: int) -> ChunkReservation | None:
        """Reserve, taking blocks from those that began later; None if that did not do and the request gave up its own.

        Those have no chunk in this step yet: chunks are formed in the order in which requests began.
        """
        while (chunk := self._reserve(step, active, count)) is None:
            latest = self.running.pop()
            self._preempt(latest)
            if latest is active:
                break
        return chunk

    def _preempt(self, active: ActiveRequest) -> None:
        counts = self._result.counts
        counts.preemptions += 1
        self._cache.preempt(active.cached)
        active.chunks.clear()
        self._ready.appendleft(active)

    def _count_hit(self, active: ActiveRequest, hit: PrefixHit) -> None:
        """Count what the cache spared of a prompt, and which part of the trace's ceiling was lost to what."""
        counts, ceiling = self._result.counts, self._ceilings[active.number]
        step, limit = self._cache.config.hit_step, active.cached.last_boundary
        boundary = max(floor_to(min(ceiling, limit), step), hit.attention_tokens)
        counts.resumed_requests += hit.num_tokens > 0
        counts.input_tokens += active.num_prompt_tokens
        counts.hit_tokens += hit.num_tokens
        counts.lost_states += hit.attention_tokens - hit.num_tokens
        counts.lost_attention += boundary - hit.attention_tokens
        counts.lost_to_boundaries += max(ceiling - boundary, 0)
        counts.ceiling_tokens += max(ceiling, boundary)

    def _check_fits(self, number: int, request: TraceRequest) -> None:
        num_tokens = self._target(request)
        if (needed := self._options.blocks_for(num_tokens)) > self._options.num_blocks:
            expected = f"at least {needed} for the {num_tokens} tokens of request {number}"
            refuse("num_blocks", expected, self._options.num_blocks, "give the pool more blocks, or drop the request")
