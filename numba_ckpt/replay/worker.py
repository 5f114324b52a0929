"""The worker's side of a step: copy, gather, compute, export; what it writes goes into blocks that others reserved."""

from collections.abc import Sequence

import numpy as np

from numba_ckpt.checkpoint import CheckpointTargets, ConvInput, InitialConvState, PrefillCheckpointBuilder
from numba_ckpt.errors import VerificationError
from numba_ckpt.planning import BatchLayout, CheckpointPlan, compute_prefill_checkpoints
from numba_ckpt.prefix_cache import ChunkReservation, WriteLedger
from numba_ckpt.prefix_cache.chunk_loops import (
    CHECKPOINT_BLOCK,
    COPY_FROM,
    INITIAL_BLOCK,
    OFFSET,
    RUNNING_BLOCK,
    SKIPPED_OFFSET,
)
from numba_ckpt.replay.model import CHANNELS, LayerModel, LayerStates
from numba_ckpt.replay.options import STATE_GROUP, ReplayOptions
from numba_ckpt.replay.result import StageTimes
from numba_ckpt.replay.scheduler import ActiveRequest
from numba_ckpt.replay.state_store import StateStore
from numba_ckpt.replay.verify import Verifier
from numba_ckpt.rules import NULL_BLOCK_ID, floor_div, is_multiple

__all__ = ["StepRows", "Worker"]


class StepRows:
    """The rows of one step, and what their chunks reserved of the state group, as arrays."""

    def __init__(self, rows: Sequence[tuple[ActiveRequest, ChunkReservation]]) -> None:
        self.actives = [active for active, _ in rows]
        self.starts = np.array([chunk.start for _, chunk in rows], np.int64)
        self.ends = np.array([chunk.end for _, chunk in rows], np.int64)
        self.query_lens = self.ends - self.starts
        self.query_start_loc = np.concatenate(([0], np.cumsum(self.query_lens)))
        reserved = np.stack([chunk.groups[STATE_GROUP] for _, chunk in rows])
        self.offsets, self.checkpoint_blocks = reserved[:, OFFSET], reserved[:, CHECKPOINT_BLOCK]
        # Where the pool was short of blocks the planner still sees a checkpoint, and its export finds no block.
        self.planned_offsets = self.offsets + reserved[:, SKIPPED_OFFSET]
        self.running_blocks, self.copied_blocks = reserved[:, RUNNING_BLOCK], reserved[:, COPY_FROM]
        self.is_copied = self.copied_blocks != NULL_BLOCK_ID
        self.read_blocks = np.where(self.is_copied, self.running_blocks, reserved[:, INITIAL_BLOCK])
        self.has_initial = self.read_blocks != NULL_BLOCK_ID

    @property
    def positions(self) -> np.ndarray:
        """Token positions of the checkpoints, int64 [N]; 0 where there is none."""
        return np.where(self.offsets > 0, self.starts + self.offsets, 0)

    def new_blocks(self) -> np.ndarray:
        """Return the blocks that are about to be written and hold nothing yet."""
        fresh = self.running_blocks[(self.running_blocks != self.read_blocks) & ~self.is_copied]
        return np.concatenate((self.checkpoint_blocks[self.offsets > 0], fresh))

    def block_table(self) -> np.ndarray:
        """Return the state group's block table, int32 [N, C]."""
        tables = [active.cached.table[STATE_GROUP] for active in self.actives]
        batch = np.full((len(tables), max(table.size for table in tables)), NULL_BLOCK_ID, np.int32)
        for row, table in zip(batch, tables, strict=True):
            row[: table.size] = table
        return batch


class Worker:
    """Runs steps over one layer's recurrent states.

    Parameters
    ----------
    options : ReplayOptions
        Geometry and seed.
    store : StateStore
        The paged states.
    verifier : Verifier
        Is shown what sampled requests read and write.
    ledger : WriteLedger or None
        Is told what is written.
    times : StageTimes
        Timed into.
    """

    def __init__(
        self,
        options: ReplayOptions,
        store: StateStore,
        verifier: Verifier,
        ledger: WriteLedger | None,
        times: StageTimes,
    ) -> None:
        self.model = LayerModel(options.seed)
        self._geometry = options.geometry
        self._builder = PrefillCheckpointBuilder(options.geometry)
        self._store, self._verifier, self._ledger, self._times = store, verifier, ledger, times

    def run(self, rows: StepRows) -> None:
        """Compute a step, and write its checkpoints and running states.

        Raises
        ------
        VerificationError
            The planner puts a checkpoint elsewhere than the scheduler reserved one.
        """
        plan = self._plan(rows)
        with self._times.measure("gather"):
            self._prepare(rows)
            batch = BatchLayout(rows.ends, rows.query_start_loc, self._store.to_device(rows.block_table()))
            metadata = self._builder.build(batch, np.arange(len(rows.actives)))
        windows, states = self._initial(rows)
        tokens, computed = self._compute(rows, plan, windows, states)
        conv_input = self._conv_input(rows, tokens, windows)
        if metadata is not None:
            checkpoint_states = self._store.to_device(computed.checkpoint_states)
            with self._times.measure("export"):
                self._store.export(metadata, conv_input, checkpoint_states)
        targets, final_states = self._running_targets(rows), self._store.to_device(computed.final_states)
        with self._times.measure("running"):
            self._store.export(targets, conv_input, final_states)
        self._write_down(rows)
        self._watch_written(rows)

    def _plan(self, rows: StepRows) -> CheckpointPlan:
        with self._times.measure("plan"):
            plan = compute_prefill_checkpoints(rows.ends, rows.query_lens, self._geometry)
        differs = np.flatnonzero(plan.offsets != rows.planned_offsets)
        if differs.size:
            row = int(differs[0])
            raise VerificationError(
                f"request {rows.actives[row].number}: expected a checkpoint at offset {rows.planned_offsets[row]} of "
                f"its chunk [{rows.starts[row]}, {rows.ends[row]}), got {plan.offsets[row]} from the planner; "
                "scheduler and worker must have the same geometry"
            )
        return plan

    def _prepare(self, rows: StepRows) -> None:
        """Poison what is about to be written, and copy states that go on in a block of their own."""
        new_blocks = rows.new_blocks()
        self._store.poison(new_blocks)
        if self._ledger is not None:
            for block in new_blocks.tolist():
                self._ledger.forget(STATE_GROUP, block)
        if rows.is_copied.any():
            self._store.copy(rows.copied_blocks[rows.is_copied], rows.running_blocks[rows.is_copied])

    def _initial(self, rows: StepRows) -> tuple[np.ndarray, np.ndarray]:
        windows, states = self._store.read(rows.read_blocks)
        # The null block is poisoned for ever; a sequence that starts here starts from zeros.
        windows[~rows.has_initial], states[~rows.has_initial] = 0, 0
        self._watch_resumed(rows, windows, states)
        return windows, states

    def _compute(
        self, rows: StepRows, plan: CheckpointPlan, windows: np.ndarray, states: np.ndarray
    ) -> tuple[np.ndarray, LayerStates]:
        with self._times.measure("model"):
            tokens = np.empty((int(rows.query_start_loc[-1]), CHANNELS), np.float32)
            for row, active in enumerate(rows.actives):
                ids = active.tokens_between(int(rows.starts[row]), int(rows.ends[row]))
                self.model.embed(ids, tokens[rows.query_start_loc[row] : rows.query_start_loc[row + 1]])
            return tokens, self.model.prefill(tokens, rows.query_start_loc, windows, states, plan.offsets)

    def _conv_input(self, rows: StepRows, tokens: np.ndarray, windows: np.ndarray) -> ConvInput:
        device = self._store.to_device
        # A state that goes on in its block is read and written there: windows come from what has been read before.
        entries = np.arange(len(rows.actives), dtype=np.int32)
        initial = InitialConvState(device(windows), device(entries), device(rows.has_initial))
        starts = rows.query_start_loc.astype(np.int32)
        return ConvInput(device(tokens), device(starts), initial=initial, query_start_loc_cpu=starts)

    def _running_targets(self, rows: StepRows) -> CheckpointTargets:
        """Name the state at the end of each row, to be written like a checkpoint."""
        device = self._store.to_device
        query_lens, blocks = rows.query_lens.astype(np.int32), rows.running_blocks.astype(np.int32)
        return CheckpointTargets(device(query_lens), device(blocks), offsets_cpu=query_lens)

    def _write_down(self, rows: StepRows) -> None:
        """Tell the ledger which prefix each written block holds the state of."""
        if self._ledger is None:
            return
        for row, active in enumerate(rows.actives):
            if rows.offsets[row]:
                self._write_entry(active, int(rows.checkpoint_blocks[row]), int(rows.positions[row]))
            self._write_entry(active, int(rows.running_blocks[row]), int(rows.ends[row]))

    def _write_entry(self, active: ActiveRequest, block: int, position: int) -> None:
        assert self._ledger is not None
        unit = self._geometry.hash_block_size
        if is_multiple(position, unit):
            first, second = active.cached.keys[floor_div(position, unit) - 1].tolist()
            self._ledger.write(STATE_GROUP, block, (first, second), position)
        else:
            self._ledger.forget(STATE_GROUP, block)

    def _watch_resumed(self, rows: StepRows, windows: np.ndarray, states: np.ndarray) -> None:
        for row, active in enumerate(rows.actives):
            if active.num_hit_tokens and not active.chunks:
                self._verifier.consider(active.number)
                if self._verifier.wants(active.number):
                    args = active.num_hit_tokens, windows[row], states[row]
                    self._verifier.record(active.number, "resumed from", *args)

    def _watch_written(self, rows: StepRows) -> None:
        for row, active in enumerate(rows.actives):
            if not self._verifier.wants(active.number):
                continue
            windows, states = self._store.read([rows.running_blocks[row], rows.checkpoint_blocks[row]])
            self._verifier.record(active.number, "wrote", int(rows.ends[row]), windows[0], states[0])
            if rows.offsets[row]:
                self._verifier.record(active.number, "wrote", int(rows.positions[row]), windows[1], states[1])
