"""Requests dropped in the middle of steps, and refusals that change nothing."""

import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.prefix_cache import CacheConfig, CacheGroup, HybridPrefixCache

PROMPT = np.arange(200)
GROUPS = CacheGroup("full", 16), CacheGroup("state", 64, checkpoint_alignment=16)


def cache_with_two_in_a_step():
    cache = HybridPrefixCache(CacheConfig(GROUPS, 16), 100)
    step, requests = cache.begin_step(), [cache.add(name, PROMPT + 1000 * index) for index, name in enumerate("ab")]
    for request in requests:
        cache.reserve(step, request, 112)
    return cache, step, requests


def test_a_request_is_dropped_from_its_open_steps_and_others_go_on():
    cache, step, (first, second) = cache_with_two_in_a_step()
    later = cache.begin_step()
    cache.reserve(later, first, 88)
    cache.reserve(later, second, 88)
    cache.abort(first)
    assert [chunk.request for opened in (step, later) for chunk in opened.reservations] == [second, second]
    with pytest.raises(ArgumentError, match="declined"):
        cache.commit(step, declined={"a"})
    cache.commit(step)
    cache.commit(later)
    assert cache.look_up(cache.add("a", PROMPT)).num_tokens == 0  # the name is free, and nothing was published
    assert cache.look_up(cache.add("c", PROMPT + 1000)).num_tokens == 192
    for request in list(cache._requests.values()):
        cache.finish(request)
    cache.pool.check_integrity()
    assert cache.counters.blocks_held == 0
    assert (second.open_steps, second.num_in_flight) == ([], 0)


def test_an_aborted_request_is_unknown():
    cache, _, (first, _) = cache_with_two_in_a_step()
    cache.abort(first)
    with pytest.raises(ArgumentError, match="request"):
        cache.abort(first)


@pytest.mark.parametrize("has_run", [None, "", "no", 1])
def test_a_refused_abort_changes_nothing(has_run):
    cache, step, (first, second) = cache_with_two_in_a_step()
    held = cache.counters
    for what in (step, first):
        with pytest.raises(ArgumentError, match="has_run: expected True or False"):
            cache.abort(what, has_run=has_run)
    assert cache.counters == held
    assert (step.is_open, first.num_in_flight, second.num_in_flight) == (True, 1, 1)
    cache.abort(step)
    assert cache.counters.blocks_held == 0


def test_both_warnings_are_given():
    sizes = CacheGroup("full", 64), CacheGroup("state", 2048, checkpoint_alignment=16)
    cache = HybridPrefixCache(CacheConfig(sizes, 16, cache_hit_alignment_tokens=16), 100)
    with pytest.warns(match="a prompt of 5 tokens can never be hit"):
        cache.add("short", PROMPT[:5])
    with pytest.warns(match="a prompt of 100 tokens can never be hit by itself"):
        cache.add("long", PROMPT[:100])


def test_without_attention_nobody_claims_that_tokens_were_never_computed():
    cache = HybridPrefixCache(CacheConfig(GROUPS[1:], 16), 50)
    [verdict] = [verdict for verdict in cache.explain(cache.add("a", PROMPT[:100])) if verdict.num_tokens == 96]
    assert verdict.reason == "no state was left here; without attention nothing else tells of the tokens"
