"""The worker writes a checkpoint exactly where the cache has reserved a block for it, whatever the sizes."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.prefix_cache import (
    CacheConfig,
    CacheGroup,
    HybridPrefixCache,
    PrefillProgress,
    Retention,
    SplitPolicy,
    split_prefill,
)
from numba_ckpt.prefix_cache.groups import ALIGNMENT
from tests.prefix_cache.content_worker import ContentWorker

NUM_EXAMPLES, NUM_STEPS = 120, 30


def draw_config(rng):
    """Two state groups at times, with blocks and alignments that need not fit each other."""
    unit = rng.choice([1, 3, 4, 16, 48])
    alignments = rng.choice([(1, 1), (1, 2), (2, 3), (16, 16), (unit, unit), (unit, 1), (None, 1)])
    states = [
        CacheGroup("state", unit * rng.randint(1, 9), checkpoint_alignment=alignment)
        for alignment in alignments[: rng.randint(1, 2)]
    ]
    attention = [CacheGroup("full", unit * rng.choice([1, 1, 2]))] if rng.random() < 0.8 else []
    alignment = rng.choice([None, unit, unit * rng.randint(1, 5)])
    lookahead = rng.choice([0, 0, 0, 1, unit, 2 * unit + 1])
    return CacheConfig((*attention, *states), unit, alignment, rng.random() < 0.3, lookahead)


class Batches:
    """Requests with shared beginnings, served in batches until nothing is left to try."""

    def __init__(self, rng):
        self.rng, self.config, self.seen = rng, draw_config(rng), Counter()
        state = rng.choice([group for group in self.config.groups if group.kind == "state"])
        self.longest = 5 * state.block_size
        self.budget = rng.randint(1, 3 * state.block_size)
        self.policy = SplitPolicy(self.config.geometry_of(state), self.budget, None, rng.random() < 0.5)
        num_blocks = rng.choice([8, 64, 4096])
        self.cache = HybridPrefixCache(self.config, num_blocks, retention=Retention(rng.choice([0, 1])))
        self.worker = ContentWorker(self.cache, None)
        self.requests = {}

    def step(self, number):
        while len(self.requests) < 5:
            name = f"{number} {len(self.requests)}"
            prompt = np.arange(self.rng.randint(1, self.longest))
            prompt[self.rng.choice([0, prompt.size // 2, prompt.size - 1]) :] += self.rng.randint(0, 2)
            self.requests[name] = self.cache.add(name, prompt)
        step = self.cache.begin_step()
        for request in self.rng.sample(list(self.requests.values()), self.rng.randint(1, 5)):
            self._reserve(step, request)
        self.seen["checkpoints"] += self.worker.check_lockstep(step.reservations) if step.reservations else 0
        self.seen["batches"] += len(step.reservations) > 1
        self._settle(step)

    def _reserve(self, step, request):
        if request.num_computed_tokens == 0:
            self.seen["hits"] += self.cache.look_up(request).num_tokens > 0
        done, total = request.num_computed_tokens, request.num_tokens
        wish = min(total - done, self.budget)
        if self.rng.random() < 0.7:
            wish = split_prefill(PrefillProgress(done, total, total, request.junction), wish, self.policy)
        elif self.rng.random() < 0.5:
            wish = self.rng.randint(1, total - done)
        if wish:
            self.seen["exhausted"] += self.cache.reserve(step, request, wish) is None

    def _settle(self, step):
        if self.rng.random() < 0.1:
            self.cache.abort(step, has_run=False)
        else:
            self.cache.commit(step)
        for name, request in list(self.requests.items()):
            if request.num_computed_tokens == request.num_tokens or self.rng.random() < 0.05:
                self.cache.finish(self.requests.pop(name))
            elif self.rng.random() < 0.05:
                self.cache.preempt(request)
                self.seen["preemptions"] += 1


def _serve(seed):
    batches = Batches(random.Random(seed))
    for number in range(NUM_STEPS):
        batches.step(number)
    batches.cache.pool.check_integrity()
    return batches.seen


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_worker_and_cache_agree(seed):
    _serve(seed)


def test_there_is_much_to_agree_about():
    seen = sum((_serve(seed) for seed in range(40)), Counter())
    assert seen["checkpoints"] > 150
    assert min(seen["hits"], seen["batches"], seen["preemptions"], seen["exhausted"]) > 50


def test_a_group_that_goes_by_its_own_alignment_is_noticed(monkeypatch):
    """The fault of taking each group's alignment, or the first one's, instead of what all of them share."""
    shared_rows = CacheConfig.group_rows

    def own_rows(config):
        rows = shared_rows(config)
        for row, group in zip(rows, config.groups, strict=True):
            row[ALIGNMENT] = group.checkpoint_alignment or 0
        return rows

    monkeypatch.setattr(CacheConfig, "group_rows", own_rows)
    with pytest.raises(AssertionError):
        sum((_serve(seed) for seed in range(40)), Counter())
