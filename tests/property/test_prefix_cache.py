"""The prefix cache under any order of events: what it serves is the text that was asked for, and nothing leaks."""

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from numba_ckpt.prefix_cache import CacheConfig, CacheGroup, Retention
from tests.prefix_cache.cache_world import DECLINES, FAILS, RUNS, WAITS, CacheWorld
from tests.prefix_cache.content_worker import Prompt

# Some runs end early; 200 at least have 100 steps.
NUM_RUNS, NUM_STEPS = 300, 110
LONG = os.environ.get("NUMBA_CKPT_LONG_TESTS") == "1"
FATES = [RUNS, RUNS, RUNS, RUNS, DECLINES, FAILS, WAITS]
MODELS = [
    ("full", "state"),
    ("full", "state"),
    ("full", "sliding_window", "state"),
    ("full", "chunked_local", "state"),
    ("full", "state", "state"),
    ("sliding_window", "state"),
    ("chunked_local", "sliding_window"),
    ("state",),
    ("full", "full", "state"),
]


def draw_config(choose):
    """A model of few groups with small blocks; `choose` picks from a list."""
    unit = choose([1, 2, 2, 3])
    alignments = [choose([1, 1, 2, 3]), choose([1, 2])] if choose([True, True, True, False]) else [None, 2]
    num_drafts = choose([0, 0, 0, 1, 2, 3])
    groups = []
    for kind in choose(MODELS):
        window = choose([1, 2, 3, 5, 6, 8]) if kind in ("sliding_window", "chunked_local") else None
        size = unit * (choose([1, 2, 3, 4]) if kind == "state" else choose([1, 1, 1, 2]))
        own = (alignments[len(groups) % 2], num_drafts) if kind == "state" else (None, 0)
        groups.append(CacheGroup(kind, size, window, *own))
    alignment = choose([None, None, unit, 2 * unit])
    return CacheConfig(groups, unit, alignment, choose([False, False, True]), choose([0, 0, 0, 1, 4]))


def draw_world(choose, kind=CacheWorld):
    return kind(draw_config(choose), choose([8, 16, 32, 64, 128]), Retention(choose([0, 0, 1, 4, 6])))


def draw_prompt(choose, prompts):
    """A prompt that often begins like an earlier one."""
    base = choose(prompts) if prompts else Prompt("", "")
    shared = base.text[: choose(range(33))]
    salt = base.salt if shared else choose(["", "", "x"])
    return Prompt(salt, (shared + choose(["a", "b", "abc", "cb"]) * choose(range(1, 12)))[:40])


class PrefixCacheMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def start(self, data):
        self.world = draw_world(lambda options: data.draw(st.sampled_from(options)))
        self.prompts = [Prompt("", "abcabcabcabcabcabcab")]
        self.world.add(self.prompts[0])

    def pick(self, index):
        """A request by any number; the machine has one always."""
        names = list(self.world.requests)
        return names[index % len(names)]

    @rule(data=st.data())
    def add(self, data):
        if len(self.world.requests) < 6:
            self.prompts.append(draw_prompt(lambda options: data.draw(st.sampled_from(options)), self.prompts))
            self.world.add(self.prompts[-1])

    @rule(
        picks=st.lists(st.integers(0, 5), min_size=1, max_size=3),
        length=st.integers(1, 14),
        fate=st.sampled_from(FATES),
        split=st.booleans(),
        settles=st.sampled_from([0, 0, None]),
    )
    def step(self, picks, length, fate, split, settles):
        if len(self.world.open) < 3:
            self.world.run_step(map(self.pick, picks), length, fate, split)
        if settles is not None:
            self.world.settle(settles)

    @rule(place=st.integers(0, 2))
    def settle(self, place):
        self.world.settle(place)

    @rule(index=st.integers(0, 5), output=st.sampled_from(["a", "b", "a", "bcbcbcb"]))
    def decode(self, index, output):
        self.world.append(self.pick(index), output)
        self.world.run_step([self.pick(index)], 1, RUNS, split=False)

    @rule(event=st.sampled_from(["abort", "preempt", "finish", "finish", "reset", "explain"]), index=st.integers(0, 5))
    def disturb(self, event, index):
        if event == "abort" and self.world.open:
            self.world.abort(self.world.open[-1 - index % len(self.world.open)])
        elif event == "preempt":
            self.world.preempt(self.pick(index))
        elif event == "reset":
            self.world.reset()
        elif event == "explain":
            self.world.explain(self.pick(index))
        elif len(self.world.requests) > 1:
            self.world.finish(self.pick(index))

    @invariant()
    def holds(self):
        self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.close()


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(
    max_examples=NUM_RUNS,
    stateful_step_count=NUM_STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def live(world, rng, num_events):
    """Let `num_events` random events happen to a world."""
    prompts = []
    for _ in range(num_events):
        names, event = list(world.requests), rng.random()
        if len(names) < 2 or (event < 0.12 and len(names) < 6):
            prompts = [*prompts[-30:], draw_prompt(rng.choice, prompts)]
            world.add(prompts[-1])
        elif event < 0.55 and len(world.open) < 3:
            picks = rng.choices(names, k=rng.randint(1, 3))
            world.run_step(picks, rng.randint(1, 14), rng.choice(FATES), rng.random() < 0.5)
        elif event < 0.8:
            world.settle(rng.choice([0, 0, 1, 2]))
        elif event < 0.83 and world.open:
            world.abort(world.open[-1])
        elif event < 0.88:
            world.append(rng.choice(names), rng.choice(["a", "b", "bcbcbcb"]))
        elif event < 0.92:
            world.preempt(rng.choice(names))
        elif event < 0.93:
            world.reset()
        else:
            world.finish(rng.choice(names))
        world.check()


@pytest.mark.parametrize("seed", range(100 if LONG else 3))
def test_a_long_life(seed):
    rng = random.Random(seed)
    world = draw_world(rng.choice)
    live(world, rng, 1000 if LONG else 300)
    world.close()
