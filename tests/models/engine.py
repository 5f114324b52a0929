"""A toy engine around the hybrid stack: requests, their block tables and stores, and a pool that starts as NaN."""

from dataclasses import dataclass, field

import numpy as np

from numba_ckpt.checkpoint import PrefillCheckpointBuilder
from numba_ckpt.models import BlockShape, HybridCaches, HybridConfig, HybridModel, KvStore
from numba_ckpt.planning import BatchLayout, CheckpointGeometry
from numba_ckpt.rules import NULL_BLOCK_ID, running_state_col

NUM_COLS = NUM_BLOCKS = CAPACITY = 72
GEOMETRY = CheckpointGeometry(4, 16, 4, checkpoint_alignment=1)
"""Tiny blocks: a prompt of 17 tokens has a checkpoint."""


@dataclass
class Request:
    prompt: np.ndarray
    store: KvStore
    table: np.ndarray = field(default_factory=lambda: np.full(NUM_COLS, NULL_BLOCK_ID, np.int32))
    num_computed: int = 0
    borrowed: int = NULL_BLOCK_ID


class Engine:
    def __init__(self, geometry=GEOMETRY, chunk_size=8, **shape):
        sizes = BlockShape(hidden=12, heads=2, key_dim=4, value_dim=6, **shape)
        self.state_block = geometry.state_block_size
        self.model = HybridModel(HybridConfig(self.state_block, chunk_size, recurrent=sizes))
        self.states = self.model.new_states(NUM_BLOCKS)
        self.builder = PrefillCheckpointBuilder(geometry)
        self._free = list(range(NUM_BLOCKS - 1, NULL_BLOCK_ID, -1))

    def new_request(self, prompt, prefix=None, position=0, block=NULL_BLOCK_ID):
        """Make a request; one with a `prefix` request shares its keys up to `position` and resumes from `block`."""
        store = self.model.new_kv_store(CAPACITY) if prefix is None else prefix.store.fork(position)
        request = Request(np.asarray(prompt), store, num_computed=position, borrowed=block)
        if position:
            request.table[running_state_col(position, self.state_block)] = block
        return request

    def step(self, *work, plan_rows=None):
        """Compute (request, token count) pairs in one pass; returns the outputs of each and the checkpoints.

        `plan_rows` are the rows that the builder plans for, all by default.
        """
        for request, count in work:
            self._allocate(request, request.num_computed + count)
        counts = [count for _, count in work]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        seq_lens = np.array([request.num_computed + count for request, count in work])
        batch = BatchLayout(seq_lens, starts, np.array([request.table for request, _ in work]))
        checkpoint = self.builder.build(batch, list(range(len(work))) if plan_rows is None else plan_rows)
        tokens = [request.prompt[request.num_computed :][:count] for request, count in work]
        caches = HybridCaches(self.states, [request.store for request, _ in work])
        outputs = self.model.prefill(np.concatenate(tokens), batch, caches, checkpoint)
        for request, count in work:
            request.num_computed += count
        return np.split(outputs, starts[1:-1]), checkpoint

    def prefill(self, request):
        """Compute the rest of a prompt in one pass; returns its outputs and (position, block) or None."""
        start = request.num_computed
        (outputs,), checkpoint = self.step((request, len(request.prompt) - start))
        if checkpoint is None:
            return outputs, None
        return outputs, (start + int(checkpoint.offsets_cpu[0]), int(checkpoint.state_indices[0]))

    def running_states(self, request):
        """Bytes of a request's running states, layer by layer: window, recurrent state."""
        return self.block_bytes(request.table[running_state_col(request.num_computed, self.state_block)])

    def block_bytes(self, block):
        return [(pool.conv.states[block].tobytes(), pool.recurrent.states[block].tobytes()) for pool in self.states]

    def snapshot(self):
        return [self.block_bytes(block) for block in range(NUM_BLOCKS)]

    def _allocate(self, request, seq_len):
        """Give a request its running column, and the column before it, which takes the checkpoint."""
        start, last = (running_state_col(n, self.state_block) for n in (request.num_computed, seq_len))
        for col in range(max(last - 1, start + 1, 0), last + 1):
            if request.table[col] == NULL_BLOCK_ID:
                request.table[col] = self._free.pop()
        if request.borrowed and request.table[last] == request.borrowed:
            self._own(request, last)

    def _own(self, request, col):
        """Copy on write: a running state must not replace a borrowed checkpoint."""
        block = self._free.pop()
        for pool in self.states:
            for states in (pool.conv.states, pool.recurrent.states):
                states[block] = states[request.borrowed]
        request.table[col] = block


def cold_run(prompt, plan=True, **options):
    """Prefill a prompt alone in a fresh engine, with a checkpoint where one is planned or without any."""
    engine = Engine(**options)
    if not plan:
        engine.builder = PrefillCheckpointBuilder(None)
    request = engine.new_request(prompt)
    outputs, checkpoint = engine.prefill(request)
    return engine.running_states(request), outputs, checkpoint
