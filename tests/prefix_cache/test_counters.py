"""Every counter is what a log of the events adds up to, whatever happens in between."""

import random
from collections import Counter

import numpy as np
import pytest

from numba_ckpt.prefix_cache import CacheConfig, CacheCounters, CacheGroup, HybridPrefixCache
from tests.prefix_cache.cache_world import CacheWorld
from tests.prefix_cache.prefix_oracle import held_cols, last_boundary, longest_hit
from tests.property.test_prefix_cache import draw_world, live

PROMPT = np.arange(100)


class CountedWorld(CacheWorld):
    """A world that writes down what it sees happen, and looks at no counter to do so."""

    def __init__(self, config, num_blocks, retention):
        super().__init__(config, num_blocks, retention)
        self.log, self.served = Counter(), Counter()

    def look_up(self, name):
        prompt = self.prompts[name]
        hit, ceiling = longest_hit(self.config, self.published(), prompt)
        pending = max(super().look_up(name).pending_tokens, hit)
        last = last_boundary(self.config, len(prompt.text)) // self.config.hit_step * self.config.hit_step
        # Without attention groups, nothing but states can be lacking.
        ceiling = max(ceiling, 0 if any(group.kind != "state" for group in self.config.groups) else last)
        # Each token of the prompt by the first of these that holds.
        for token in range(len(prompt.text)):
            causes = {
                "hit_tokens": token < hit,
                "lost_to_writing": token < pending,
                "lost_to_states": token < ceiling,
                "lost_to_attention": token < last,
                "lost_to_boundaries": True,
            }
            self.log[next(cause for cause, holds in causes.items() if holds)] += 1
        self.log += Counter(lookups=1, prompt_tokens=len(prompt.text), waits=int(pending > hit))
        for index, group in enumerate(self.config.groups if hit else ()):
            is_state = group.kind == "state"
            self.log["states_reused"] += is_state
            first = 0 if is_state else min(held_cols(group, hit), default=hit // group.block_size)
            self.served[index] += hit - first * group.block_size

    def run_step(self, names, length, fate, split):
        before = self.published()
        super().run_step(names, length, fate, split)
        self.log["evictions"] += len(before - self.published())
        step = self.open[-1].step
        self.log["checkpoints_reserved"] += _num_checkpoints(step)
        self.log["checkpoints_skipped"] += _num_skipped(step)
        self.log["copies"] += _num_copies(step)

    def commit(self, opened):
        super().commit(opened)
        if opened not in self.open:
            declined = [chunk for chunk in opened.step.reservations if chunk.request.request_id in opened.declined]
            num_declined = sum(int((chunk.groups[:, 0] > 0).sum()) for chunk in declined)
            num_written = _num_checkpoints(opened.step) - num_declined
            self.log += Counter(steps_committed=1, checkpoints_declined=num_declined, checkpoints_written=num_written)

    def abort(self, opened):
        super().abort(opened)
        if opened not in self.open:
            self.log += Counter(steps_aborted=1, checkpoints_aborted=_num_checkpoints(opened.step))
            self.log["checkpoints_skipped"] -= _num_skipped(opened.step)
            self.log["copies"] -= _num_copies(opened.step)

    def occupancy(self):
        """(held, idle, free) blocks, told from tables and keys."""
        held = {block for request in self.requests.values() for block in request.table.ravel().tolist()}
        for opened in self.open:
            held |= {source for chunk in opened.step.reservations for _, source, _ in chunk.copies}
        held -= {0}
        idle = set(np.nonzero(self.pool.arrays.blocks["group"] >= 0)[0].tolist()) - held
        return len(held), len(idle), self.pool.num_blocks - 1 - len(held) - len(idle)

    def check(self):
        super().check()
        blocks = dict(zip(("blocks_held", "blocks_idle", "blocks_free"), self.occupancy(), strict=True))
        by_group = tuple(self.served[index] for index in range(len(self.config.groups)))
        assert self.cache.counters == CacheCounters(**self.log, **blocks, hit_tokens_by_group=by_group)


def _num_checkpoints(step):
    return sum(int((chunk.groups[:, 0] > 0).sum()) for chunk in step.reservations)


def _num_skipped(step):
    return sum(int((chunk.groups[:, 6] > 0).sum()) for chunk in step.reservations)


def _num_copies(step):
    return sum(len(chunk.copies) for chunk in step.reservations)


SEEN = Counter()


@pytest.mark.parametrize("seed", range(40))
def test_counters_are_what_the_events_add_up_to(seed):
    rng = random.Random(seed)
    world = draw_world(rng.choice, CountedWorld)
    live(world, rng, 150)
    world.close()
    counters = world.cache.counters
    causes = counters.lost_to_boundaries, counters.lost_to_attention, counters.lost_to_states, counters.lost_to_writing
    assert sum(causes) == counters.lost_tokens == counters.prompt_tokens - counters.hit_tokens
    assert counters.blocks_held == 0
    SEEN.update(world.log)


def test_the_lives_have_counted_everything():
    assert not [name for name in CacheCounters.__slots__ if not name.startswith(("blocks_", "hit_")) and not SEEN[name]]


def reserve(cache, request, length):
    step = cache.begin_step()
    assert cache.reserve(step, request, length)
    return step


def test_outputs_are_no_tokens_of_the_prompt():
    cache = HybridPrefixCache(CacheConfig([CacheGroup("full", 16)], 16), 64)
    request = cache.add("request", PROMPT)
    cache.append_tokens(request, PROMPT)
    cache.look_up(request)
    cache.commit(reserve(cache, request, 200))
    cache.preempt(request)
    cache.look_up(request)
    counters = cache.counters
    assert (counters.prompt_tokens, counters.hit_tokens, counters.lost_to_boundaries) == (200, 96, 8)


def test_no_state_is_reused_where_there_is_none():
    cache = HybridPrefixCache(CacheConfig([CacheGroup("full", 16)], 16), 64)
    cache.commit(reserve(cache, cache.add("first", PROMPT), 100))
    cache.look_up(cache.add("second", PROMPT))
    assert (cache.counters.hit_tokens, cache.counters.states_reused) == (96, 0)


def test_each_group_of_states_is_reused():
    groups = [CacheGroup("full", 16), *[CacheGroup("state", 16, checkpoint_alignment=16)] * 2]
    cache = HybridPrefixCache(CacheConfig(groups, 16), 64)
    cache.commit(reserve(cache, cache.add("first", PROMPT), 100))
    cache.look_up(cache.add("second", PROMPT))
    assert (cache.counters.states_reused, cache.counters.hit_tokens_by_group) == (2, (96, 96, 96))


def test_a_window_serves_what_is_still_read():
    groups = CacheGroup("full", 16), CacheGroup("sliding_window", 16, window=20)
    cache = HybridPrefixCache(CacheConfig(groups, 16), 64)
    cache.commit(reserve(cache, cache.add("first", PROMPT), 100))
    cache.look_up(cache.add("second", PROMPT))
    assert cache.counters.hit_tokens_by_group == (96, 32)


def test_an_aborted_step_has_copied_and_skipped_nothing():
    groups = CacheGroup("full", 16), CacheGroup("state", 64, checkpoint_alignment=16)
    cache = HybridPrefixCache(CacheConfig(groups, 16), 16)
    request = cache.add("first", np.arange(96))
    cache.commit(reserve(cache, request, 80))
    cache.preempt(request)
    assert cache.look_up(request).num_tokens == 80
    step = reserve(cache, request, 16)
    assert cache.counters.copies == 1
    cache.abort(step, has_run=False)
    assert cache.counters.copies == 0
    cache.preempt(request)
    other = cache.add("other", np.arange(96) + 1)
    cache.pool.allocate(cache.pool.num_available - 7)
    step = reserve(cache, other, 96)
    assert cache.counters.checkpoints_skipped == 1
    cache.abort(step)
    assert cache.counters.checkpoints_skipped == 0


def test_losses_name_what_was_lacking():
    states = HybridPrefixCache(CacheConfig((CacheGroup("state", 64, checkpoint_alignment=16),), 16), 50)
    states.look_up(states.add("a", PROMPT))
    assert (states.counters.lost_to_states, states.counters.lost_to_attention) == (96, 0)
    # Hits end on attention blocks: what lies behind the last one was never to be had.
    groups = CacheGroup("full", 64), CacheGroup("state", 64, checkpoint_alignment=16)
    coarse = HybridPrefixCache(CacheConfig(groups, 16, cache_hit_alignment_tokens=16), 50)
    coarse.look_up(coarse.add("a", np.arange(125)))
    assert (coarse.counters.lost_to_attention, coarse.counters.lost_to_boundaries) == (64, 61)
