"""`pending_tokens` is the hit that a prompt will have once the open steps are committed."""

import numpy as np
import pytest

from numba_ckpt.prefix_cache import DENSE, CacheConfig, CacheGroup, HybridPrefixCache
from numba_ckpt.prefix_cache import pending as pending_module
from tests.prefix_cache.test_explain import make, prompt, serve


def start(cache, name, tokens, length):
    request, step = cache.add(name, tokens), cache.begin_step()
    cache.look_up(request)
    cache.reserve(step, request, length)
    return step


def pending_of(cache, tokens):
    request = cache.add("looker", tokens)
    hit = cache.look_up(request)
    cache.finish(request)
    return hit.num_tokens, hit.pending_tokens


@pytest.mark.parametrize("retention", [{}, {"retention": DENSE}], ids=["proven", "dense"])
def test_every_state_that_will_be_kept_is_announced(retention):
    cache = make(**retention)
    step = start(cache, "first", prompt(100), 64)
    promised = 64 if retention else 0
    assert pending_of(cache, prompt(100)) == (0, promised)
    cache.commit(step)
    assert pending_of(cache, prompt(100)) == (promised, 0)


def test_all_groups_must_have_the_boundary():
    groups = [CacheGroup("full", 16)] + [CacheGroup("state", size, checkpoint_alignment=16) for size in (16, 128)]
    cache = HybridPrefixCache(CacheConfig(groups, 16), 200)
    # The checkpoint at 80 has a column of its own in one state group, and none in the other.
    step = start(cache, "first", prompt(90), 90)
    assert step.reservations[0].groups[1:, 0].tolist() == [80, 0]
    assert pending_of(cache, prompt(90)) == (0, 0)
    cache.commit(step)
    assert pending_of(cache, prompt(90)) == (0, 0)


def test_attention_that_is_not_written_yet_is_no_promise():
    cache = make()
    first = start(cache, "first", prompt(100), 64)
    second = cache.begin_step()
    cache.reserve(second, first.reservations[0].request, 36)
    # The state at 96 is promised by the second step, the blocks before 64 by the first alone.
    assert pending_of(cache, prompt(100)) == (0, 96)
    cache.abort(second, has_run=False)
    assert pending_of(cache, prompt(100)) == (0, 0)
    cache.abort(first, has_run=False)


def test_the_eagle_margin_is_kept():
    cache = make(drop_eagle_block=True, retention=DENSE)
    step = start(cache, "first", prompt(100), 64)
    # The state at 64 is promised, but token 64 will not be known; there is no state at 48.
    assert pending_of(cache, prompt(100)) == (0, 48)
    cache.commit(step)
    assert pending_of(cache, prompt(100)) == (48, 0)


def test_groups_without_states_are_announced():
    cache = HybridPrefixCache(CacheConfig((CacheGroup("full", 16),), 16), 200)
    serve(cache, "zero", prompt(40))
    step = start(cache, "first", prompt(100), 48)
    assert pending_of(cache, prompt(100)) == (32, 80)
    assert pending_of(cache, np.concatenate((prompt(50), prompt(50, start=900)))) == (32, 48)
    assert pending_of(cache, prompt(100, start=3)) == (0, 0)
    cache.commit(step)
    assert pending_of(cache, prompt(100)) == (80, 0)


def test_two_that_write_the_same_are_one_promise():
    cache = make()
    steps = [start(cache, name, prompt(100), 100) for name in ("first", "second")]
    assert pending_of(cache, prompt(100)) == (0, 96)
    cache.abort(steps[0])
    assert pending_of(cache, prompt(100)) == (0, 96)
    cache.abort(steps[1])
    assert pending_of(cache, prompt(100)) == (0, 0)


def test_any_number_of_keys_can_be_pending(monkeypatch):
    monkeypatch.setattr(pending_module, "MIN_BLOCKS", 4)
    cache = make(num_blocks=1000)
    steps = [start(cache, str(number), prompt(100, start=1000 * number), 100) for number in range(20)]
    for number in range(20):
        assert pending_of(cache, prompt(100, start=1000 * number)) == (0, 96)
    for step in steps:
        cache.commit(step)
    for number in range(20):
        assert pending_of(cache, prompt(100, start=1000 * number)) == (96, 0)
