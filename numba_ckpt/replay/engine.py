"""The step loop of a replay: look up, plan, reserve, gather, compute, export, publish."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from numba_ckpt.checkpoint import CheckpointTargets, ConvInput, InitialConvState, PrefillCheckpointBuilder
from numba_ckpt.planning import BatchLayout, CheckpointPlan, compute_prefill_checkpoints
from numba_ckpt.prefix_cache import PrefixIndex
from numba_ckpt.replay.model import CHANNELS, LayerModel, LayerStates
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.result import ReplayResult, RequestTimeline
from numba_ckpt.replay.scheduler import ActiveRequest, Chunk, ChunkScheduler
from numba_ckpt.replay.state_store import StateStore, array_module
from numba_ckpt.replay.trace import TraceRequest
from numba_ckpt.replay.verify import Verifier
from numba_ckpt.rules import NULL_BLOCK_ID, is_multiple, running_state_col

__all__ = ["ReplayEngine"]


@dataclass(slots=True, eq=False)
class _Row:
    """A request's place in a step: it computes the tokens [start, end)."""

    active: ActiveRequest
    start: int
    end: int
    offset: int = 0
    checkpoint_block: int = NULL_BLOCK_ID
    running_block: int = NULL_BLOCK_ID

    @property
    def position(self) -> int:
        """Token position of the checkpoint, or 0."""
        return self.start + self.offset if self.offset else 0


class _Step:
    """The rows of one step, and their lengths as arrays."""

    def __init__(self, rows: list[_Row]) -> None:
        self.rows = rows
        self.seq_lens = np.array([row.end for row in rows], np.int64)
        self.query_lens = self.seq_lens - np.array([row.start for row in rows], np.int64)
        self.query_start_loc = np.concatenate(([0], np.cumsum(self.query_lens)))
        self.read_blocks = np.array([row.active.block for row in rows], np.int32)


class ReplayEngine:
    """Serves a trace's requests through a prefix index over one layer's recurrent states.

    Parameters
    ----------
    requests : sequence of TraceRequest
        In the order in which they are served.
    options : ReplayOptions
        What to do, and where.

    Raises
    ------
    MissingDependencyError
        The device is "cuda" and CuPy is not installed.
    ArgumentError
        The device is "cuda" and there is none.

    Examples
    --------
    >>> from numba_ckpt.replay.generate import generate_trace
    >>> result = ReplayEngine(generate_trace(20), ReplayOptions(verify_sample=2)).run()
    >>> result.counts.requests, result.counts.verified_requests
    (20, 2)
    """

    def __init__(self, requests: Sequence[TraceRequest], options: ReplayOptions) -> None:
        self.options = options
        self.index = PrefixIndex(options.num_blocks)
        self.store = StateStore(options.num_blocks, array_module(options.device))
        self._requests = requests
        self._scheduler = ChunkScheduler(requests, self.index, options)
        self._builder = PrefillCheckpointBuilder(options.geometry)
        self._model = LayerModel(options.seed)
        self._verifier = Verifier(options.verify_sample, options.seed)
        self._result = ReplayResult()

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
        """
        begin = perf_counter_ns()
        while rows := self._next_rows():
            self._run_step(_Step(rows))
            on_tokens(sum(row.end - (row.start if row.active.chunks[:-1] else 0) for row in rows))
        with self._result.times.measure("verify"):
            self._result.counts.verified_requests = self._verifier.check(self._requests, self._model)
        self._result.counts.states_evicted = self.index.counters.evicted
        self._result.counts.duplicate_states = self.index.counters.duplicates
        self._result.elapsed_ns = perf_counter_ns() - begin
        return self._result

    def _next_rows(self) -> list[_Row]:
        with self._result.times.measure("lookup"):
            chosen = self._scheduler.next_rows()
        return [_Row(active, active.num_computed_tokens, end) for active, end in chosen]

    def _run_step(self, step: _Step) -> None:
        times = self._result.times
        with times.measure("plan"):
            plan = compute_prefill_checkpoints(step.seq_lens, step.query_lens, self.options.geometry)
        block_table = self.store.to_device(self._reserve(step.rows, plan))
        request_rows = np.arange(len(step.rows))
        with times.measure("gather"):
            batch = BatchLayout(step.seq_lens, step.query_start_loc, block_table)
            metadata = self._builder.build(batch, request_rows)
        tokens, states = self._compute(step, plan)
        conv_input = self._conv_input(step, tokens)
        if metadata is not None:
            checkpoint_states = self.store.to_device(states.checkpoint_states)
            with times.measure("export"):
                self.store.export(metadata, conv_input, checkpoint_states)
        targets, final_states = self._running_targets(step), self.store.to_device(states.final_states)
        with times.measure("running"):
            self.store.export(targets, conv_input, final_states)
        self._finish(step)

    def _reserve(self, rows: list[_Row], plan: CheckpointPlan) -> np.ndarray:
        """Give each row a block for its running state, and one for its checkpoint where the plan has one."""
        state_block = self.options.geometry.state_block_size
        blocks = self.index.reserve(len(rows) + int(np.count_nonzero(plan.offsets)))
        self.store.poison(blocks)
        running_cols = [running_state_col(row.end, state_block) for row in rows]
        table = np.full((len(rows), max(running_cols) + 1), NULL_BLOCK_ID, np.int32)
        for index, row in enumerate(rows):
            row.offset = int(plan.offsets[index])
            row.running_block = table[index, running_cols[index]] = blocks.pop()
            if row.offset:
                row.checkpoint_block = table[index, plan.block_cols[index]] = blocks.pop()
        return table

    def _compute(self, step: _Step, plan: CheckpointPlan) -> tuple[np.ndarray, LayerStates]:
        """Read the rows' initial states and run their tokens through the layer."""
        has_initial = step.read_blocks != NULL_BLOCK_ID
        windows, states = self.store.read(step.read_blocks)
        # The null block is poisoned for ever; a sequence that starts here starts from zeros.
        windows[~has_initial], states[~has_initial] = 0, 0
        self._watch_resumed(step.rows, windows, states)
        with self._result.times.measure("model"):
            tokens = np.empty((int(step.query_start_loc[-1]), CHANNELS), np.float32)
            for row, start, end in zip(step.rows, step.query_start_loc, step.query_start_loc[1:], strict=False):
                self._model.embed(row.active.request.block_ids, row.start, tokens[start:end])
            computed = self._model.prefill(tokens, step.query_start_loc, windows, states, plan.offsets)
        return tokens, computed

    def _conv_input(self, step: _Step, tokens: np.ndarray) -> ConvInput:
        device = self.store.to_device
        has_initial = step.read_blocks != NULL_BLOCK_ID
        initial = InitialConvState(self.store.windows, device(step.read_blocks), device(has_initial))
        starts = step.query_start_loc.astype(np.int32)
        return ConvInput(device(tokens), device(starts), initial=initial, query_start_loc_cpu=starts)

    def _running_targets(self, step: _Step) -> CheckpointTargets:
        """Name the state at the end of each row, to be written like a checkpoint."""
        device = self.store.to_device
        query_lens = step.query_lens.astype(np.int32)
        blocks = np.array([row.running_block for row in step.rows], np.int32)
        return CheckpointTargets(device(query_lens), device(blocks), offsets_cpu=query_lens)

    def _finish(self, step: _Step) -> None:
        """Publish what has been written, and let go of what has been read."""
        self._watch_written(step.rows)
        for row in step.rows:
            active = row.active
            self._commit(active, row.position, row.checkpoint_block)
            self._commit(active, row.end, row.running_block)
            if active.block != NULL_BLOCK_ID:
                self.index.release(active.block)
            if row.checkpoint_block != NULL_BLOCK_ID:
                self.index.release(row.checkpoint_block)
            active.block, active.num_computed_tokens = row.running_block, row.end
            active.chunks.append(Chunk(self._result.counts.steps, row.start, row.end, row.position))
            if active.is_done:
                self.index.release(active.block)
                self._result.timelines.append(RequestTimeline.of(active))
            self._count(row)
        self._result.counts.steps += 1

    def _commit(self, active: ActiveRequest, position: int, block: int) -> None:
        """Publish a written state if a later prompt could resume from its position."""
        if block == NULL_BLOCK_ID:
            return
        self.index.mark_written([block])
        if is_multiple(position, self.options.geometry.cache_hit_alignment_tokens):
            self._result.counts.states_published += self.index.publish(active.keys.at(position), block)

    def _count(self, row: _Row) -> None:
        counts, active = self._result.counts, row.active
        counts.prefills += 1
        counts.running_states_written += 1
        counts.bytes_moved += self.store.bytes_per_block * (1 + (row.offset > 0))
        counts.checkpoints_written += row.offset > 0
        counts.passes_saved += row.offset > 0 and active.is_done
        if active.is_done:
            counts.requests += 1
            counts.resumed_requests += active.num_hit_tokens > 0
            counts.input_tokens += active.num_tokens
            counts.hit_tokens += active.num_hit_tokens

    def _watch_resumed(self, rows: list[_Row], windows: np.ndarray, states: np.ndarray) -> None:
        for index, row in enumerate(rows):
            number, hit = row.active.number, row.active.num_hit_tokens
            if hit and row.start == hit:
                self._verifier.consider(number)
                if self._verifier.wants(number):
                    self._verifier.record(number, "resumed from", hit, windows[index], states[index])

    def _watch_written(self, rows: list[_Row]) -> None:
        for row in rows:
            if not self._verifier.wants(row.active.number):
                continue
            windows, states = self.store.read([row.running_block, row.checkpoint_block])
            self._verifier.record(row.active.number, "wrote", row.end, windows[0], states[0])
            if row.offset:
                self._verifier.record(row.active.number, "wrote", row.position, windows[1], states[1])
