"""The longest hit: what attention groups have been seen to know, the EAGLE margin, and time."""

import random
import time
import warnings

import numpy as np
import pytest

from numba_ckpt.prefix_cache import (
    DENSE,
    CacheConfig,
    CacheGroup,
    CacheWarning,
    HybridPrefixCache,
    PrefillProgress,
    Retention,
    SplitPolicy,
    split_prefill,
)
from tests.prefix_cache.test_explain import prompt, serve

STATE = CacheGroup("state", 16, checkpoint_alignment=16)


def hit_of(cache, tokens):
    request = cache.add("looker", tokens)
    hit = cache.look_up(request)
    junction = request.junction
    cache.finish(request)
    return (*hit, junction)


@pytest.mark.parametrize(
    "groups",
    [
        (STATE,),
        (CacheGroup("chunked_local", 16, 32), STATE),
        (CacheGroup("sliding_window", 16, 1), STATE),
    ],
    ids=["state alone", "chunk's edge", "window of 1"],
)
def test_an_empty_cache_knows_nothing(groups):
    cache = HybridPrefixCache(CacheConfig(groups, 16), 100)
    assert hit_of(cache, prompt(100)) == (0, 0, 0, 0)
    # Without attention groups, nothing but states can be lacking.
    assert cache.counters.lost_to_states == (0 if len(groups) > 1 else 96)


@pytest.mark.parametrize("group", [CacheGroup("chunked_local", 16, 32), CacheGroup("sliding_window", 16, 1)])
def test_what_was_seen_is_known_where_nothing_is_needed(group):
    cache = HybridPrefixCache(CacheConfig((group, STATE), 16), 100)
    serve(cache, "first", prompt(100), declined=["first"])
    assert hit_of(cache, prompt(100)) == (0, 96, 0, 96)
    assert hit_of(cache, np.concatenate((prompt(70), prompt(30, start=500)))) == (0, 64, 0, 64)
    serve(cache, "second", prompt(100))
    assert hit_of(cache, prompt(100)) == (96, 96, 0, 0)


def test_states_alone_are_hit():
    cache = HybridPrefixCache(CacheConfig((STATE,), 16), 100)
    assert [serve(cache, name, prompt(100)) for name in "ab"] == [(0, 0, 0), (96, 96, 0)]


def test_full_groups_of_two_sizes_each_know_what_they_hold():
    # 144 tokens: the smaller blocks end on 128, the larger on 144; token 96 is known to both.
    groups = CacheGroup("full", 32), CacheGroup("full", 48)
    cache = HybridPrefixCache(CacheConfig(groups, 16, 96, drop_eagle_block=True), 100)
    serve(cache, "first", prompt(150))
    assert hit_of(cache, np.concatenate((prompt(150), prompt(150, start=900))))[:2] == (96, 96)


def test_the_eagle_margin_is_one_unit_whatever_the_alignment():
    # Boundaries 32 apart, attention blocks of 16: token 64 is known to an earlier prompt with 80 tokens.
    groups = CacheGroup("full", 16), CacheGroup("state", 32, checkpoint_alignment=16)
    cache = HybridPrefixCache(CacheConfig(groups, 16, 32, drop_eagle_block=True), 100, retention=DENSE)
    serve(cache, "first", prompt(90), chunks=[32, 32, 26])
    assert hit_of(cache, np.concatenate((prompt(80), prompt(80, start=900))))[0] == 64
    assert hit_of(cache, np.concatenate((prompt(79), prompt(80, start=900))))[0] == 32


def coarse(**options):
    """Attention blocks of 64 tokens, hits aligned to 16, the last unit dropped."""
    groups = CacheGroup("full", 64), CacheGroup("state", 64, checkpoint_alignment=16)
    return HybridPrefixCache(CacheConfig(groups, 16, 16, drop_eagle_block=True), 400, **options)


def test_a_prompt_whose_next_token_no_whole_attention_block_knows_is_warned_about():
    cache = coarse(retention=DENSE)
    # 64 tokens could be hit if token 64 were known, but the block with it ends on 128.
    with pytest.warns(CacheWarning, match="a prompt of 100 tokens can never be hit: hits are multiples of 64 tokens"):
        request = cache.add("first", prompt(100))
    said = {(verdict.num_tokens, verdict.group): verdict for verdict in cache.explain(request)}
    assert said[64, 0].verdict == "margin"
    assert "known by a block that ends on 128" in said[64, 0].reason


def test_a_prompt_whose_states_lie_where_no_hit_reaches_is_warned_about_once():
    cache = coarse()
    words = r"a prompt of 1000 tokens can never be hit by itself.*: its last one lies at 976, .* of 64 up to 896"
    with pytest.warns(CacheWarning, match=words):
        cache.add("first", prompt(1000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.add("second", prompt(1000))
        for retention in (DENSE, Retention(128)):
            coarse(retention=retention).add("first", prompt(1000))
        even = CacheConfig((CacheGroup("full", 64), STATE), 16, drop_eagle_block=True)
        HybridPrefixCache(even, 400).add("first", prompt(1000))


def chunks_of(config, num_tokens):
    """Chunks of a whole prefill as a scheduler splits it."""
    policy, done, chunks = SplitPolicy(config.geometry_of(config.groups[-1]), 1000), 0, []
    while done < num_tokens:
        chunks.append(split_prefill(PrefillProgress(done, num_tokens, num_tokens), num_tokens - done, policy))
        done += chunks[-1]
    return chunks


def draw_config(rng):
    unit = 4
    full, state = unit * rng.randint(1, 3), unit * rng.randint(1, 4)
    groups = CacheGroup("full", full), CacheGroup("state", state, checkpoint_alignment=unit)
    return CacheConfig(groups, unit, rng.choice([None, unit, 2 * unit, 3 * unit]), rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(60))
def test_warnings_are_right(seed):
    """A prompt that is warned about is not hit when it is repeated; any other is, where attention is no coarser."""
    rng = random.Random(seed)
    config, num_tokens = draw_config(rng), rng.randint(20, 80)
    cache = HybridPrefixCache(config, 400)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.add("announced", prompt(num_tokens))
        serve(cache, "first", prompt(num_tokens), chunks=chunks_of(config, num_tokens))
    is_hit = hit_of(cache, prompt(num_tokens))[0] > 0
    assert not (caught and is_hit)
    assert caught or is_hit or config.hit_step != config.cache_hit_alignment_tokens


def test_a_window_longer_than_the_prompt_takes_linear_time():
    groups = CacheGroup("sliding_window", 16, 10**6), STATE
    cache = HybridPrefixCache(CacheConfig(groups, 16), 40_000)
    tokens = prompt(262_144)
    serve(cache, "first", tokens, declined=["first"])
    parted = np.concatenate((tokens[:131_072], tokens[131_072:] + 1))
    request, start = cache.add("looker", parted), time.perf_counter()
    assert cache.look_up(request).attention_tokens == 131_072
    # 3 ms on an idle machine; one window for each boundary took 1.8 s.
    assert time.perf_counter() - start < 0.2
