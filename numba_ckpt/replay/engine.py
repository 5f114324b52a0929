"""The step loop of a replay: look up, split, reserve, compute, export, commit."""

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import numpy as np

from numba_ckpt._check import refuse
from numba_ckpt._jit import host_loop
from numba_ckpt.cache.pool_memory import NUM_IDLE
from numba_ckpt.prefix_cache import CacheStep, ChunkReservation, HybridPrefixCache, PrefixHasher, WriteLedger
from numba_ckpt.replay.options import STATE_GROUP, ReplayOptions
from numba_ckpt.replay.result import Chunk, ReplayResult
from numba_ckpt.replay.scheduler import ActiveRequest, Scheduler
from numba_ckpt.replay.series import Sample
from numba_ckpt.replay.state_store import StateStore, array_module
from numba_ckpt.replay.trace import TraceRequest
from numba_ckpt.replay.verify import Verifier
from numba_ckpt.replay.worker import StepRows, Worker
from numba_ckpt.rules import NULL_BLOCK_ID

__all__ = ["ReplayEngine"]


class ReplayEngine:
    """Serves a trace's requests from a prefix cache over one layer's recurrent states.

    Parameters
    ----------
    requests : sequence of TraceRequest
        In the order in which they are served, unless they arrive by time stamp.
    options : ReplayOptions
        What to do, and where.

    Raises
    ------
    MissingDependencyError
        The device is "cuda" and CuPy is not installed.
    ArgumentError
        The device is "cuda" and there is none, or a request does not fit into the pool.

    Examples
    --------
    >>> from numba_ckpt.replay.generate import generate_trace
    >>> result = ReplayEngine(generate_trace(20), ReplayOptions(verify_sample=2)).run()
    >>> result.counts.requests, result.counts.verified_requests
    (20, 2)
    """

    def __init__(self, requests: Sequence[TraceRequest], options: ReplayOptions) -> None:
        self.options = options
        self._result = ReplayResult()
        ledger = WriteLedger() if options.verify_sample else None
        self.cache, self.store = _new_memory(options, ledger)
        self._requests = requests
        self._scheduler = Scheduler(requests, self.cache, options, self._result)
        self._verifier = Verifier(options.verify_sample, options.seed)
        self._worker = Worker(options, self.store, self._verifier, ledger, self._result.times)
        self._now = 0.0

    def run(self, on_tokens: Callable[[int], None] = lambda num_tokens: None) -> ReplayResult:
        """Serve all requests.

        Parameters
        ----------
        on_tokens : callable
            Called after each step with the prompt tokens that it brought behind us, computed or spared.

        Raises
        ------
        VerificationError
            A sampled request read or wrote a state that differs from one computed from scratch.
        LedgerError
            A state was about to be published under the key of another prefix.
        """
        begin = perf_counter_ns()
        while not self._scheduler.is_done:
            step = self.cache.begin_step()
            rows = self._scheduler.schedule(step, self._now)
            if rows:
                on_tokens(self._run_step(step, rows))
            else:
                self._now = max(self._now, self._scheduler.next_arrival)
        with self._result.times.measure("verify"):
            self._result.counts.verified_requests = self._verifier.check(self._requests, self._worker.model)
        self._sum_up()
        self._result.elapsed_ns = perf_counter_ns() - begin
        return self._result

    def _run_step(self, step: CacheStep, reservations: list[tuple[ActiveRequest, ChunkReservation]]) -> int:
        rows = StepRows(reservations)
        try:
            self._worker.run(rows)
            with self._result.times.measure("commit"):
                self.cache.commit(step)
        except BaseException:
            if step.is_open:
                self.cache.abort(step)
            raise
        return self._finish(rows)

    def _finish(self, rows: StepRows) -> int:
        """Count a step's rows and let go of those that are done; return the prompt tokens that are behind us now."""
        counts, num_progress = self._result.counts, 0
        self._now += self.options.step_ms / 1e3 + int(rows.query_start_loc[-1]) / self.options.tokens_per_second
        for active, start, end, position in zip(
            rows.actives, rows.starts.tolist(), rows.ends.tolist(), rows.positions.tolist(), strict=True
        ):
            if start < active.num_prompt_tokens:
                active.chunks.append(Chunk(counts.steps, start, end, position))
            self._count(active, start, end, position > 0)
            before, active.num_progress_tokens = active.num_progress_tokens, max(end, active.num_progress_tokens)
            prompt = active.num_prompt_tokens
            num_progress += min(active.num_progress_tokens, prompt) - min(before, prompt)
            if active.is_done:
                counts.requests += 1
                self._result.timelines.append(active.timeline())
                self._scheduler.finish(active)
        counts.steps += 1
        self._sample()
        return num_progress

    def _count(self, active: ActiveRequest, start: int, end: int, has_checkpoint: bool) -> None:
        counts = self._result.counts
        is_prefill = start < active.num_prompt_tokens
        counts.prefills += is_prefill
        counts.output_tokens += end - active.num_prompt_tokens if active.is_done else 0
        counts.running_states_written += 1
        counts.checkpoints_written += has_checkpoint
        counts.bytes_moved += self.store.bytes_per_block * (1 + has_checkpoint)
        counts.passes_saved += has_checkpoint and end == active.num_prompt_tokens
        counts.recomputed_tokens += max(min(end, active.num_progress_tokens) - start, 0)

    def _sample(self) -> None:
        counts, pool = self._result.counts, self.cache.pool
        if not self._result.series.is_due(counts.steps):
            return
        self._result.series.append(
            Sample(
                self._now,
                counts.steps,
                len(self._scheduler.running),
                counts.input_tokens,
                counts.hit_tokens,
                pool.num_blocks - 1 - pool.num_available,
                int(pool.arrays.counts[NUM_IDLE]),
                self._num_states(),
                pool.num_evicted,
            )
        )

    def _num_states(self) -> int:
        """Blocks with a state in them: cached ones, and what running requests hold besides."""
        held = [active.cached.table[STATE_GROUP] for active in self._scheduler.running]
        held_ids = np.unique(np.concatenate(held)) if held else np.empty(0, np.int32)
        return int(_count_states(self.cache.pool.arrays.blocks, held_ids, STATE_GROUP))

    def _sum_up(self) -> None:
        counts, pool = self._result.counts, self.cache.pool
        self._result.cache = self.cache.counters
        counts.blocks_evicted = pool.num_evicted
        counts.blocks_published = pool.num_cached + pool.num_evicted


def _new_memory(options: ReplayOptions, ledger: WriteLedger | None) -> tuple[HybridPrefixCache, StateStore]:
    xp, hasher = array_module(options.device), PrefixHasher(options.geometry.hash_block_size)
    try:
        cache = HybridPrefixCache(options.cache_config(), options.num_blocks, hasher, options.retention, ledger)
        return cache, StateStore(options.num_blocks, xp)
    except MemoryError:
        refuse("num_blocks", "a pool that fits into memory", options.num_blocks, "give the pool fewer blocks")


@host_loop
def _count_states(blocks: np.ndarray, held_ids: np.ndarray, group: int) -> int:
    count = 0
    for block in range(blocks.size):
        count += blocks[block].group == group
    for index in range(held_ids.size):
        count += held_ids[index] != NULL_BLOCK_ID and blocks[held_ids[index]].group != group
    return count
