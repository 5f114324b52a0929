"""`explain` names the block that a look-up lacks, and the latest of what became of it."""

import time

import numpy as np
import pytest

from numba_ckpt.prefix_cache import DENSE, CacheConfig, CacheGroup, HybridPrefixCache
from tests.prefix_cache.test_explain import make, prompt, serve, verdicts

STATE = CacheGroup("state", 16, checkpoint_alignment=16)


def of(cache, tokens):
    """{(boundary, group): (verdict, reason)}, and the hit of a look-up after it."""
    said = verdicts(cache, tokens)
    request = cache.add("looker", tokens)
    hit = cache.look_up(request)
    cache.finish(request)
    return said, hit


def evict(cache, tokens, length, group):
    """Let go of one group's block that ends on `length`, as an eviction would."""
    request = cache.add("victim", tokens)
    [block] = cache.pool.find(request.keys[length // 16 - 1 : length // 16], group)
    cache.finish(request)
    others = cache.pool.arrays.blocks
    cached = [b for b in np.nonzero(others["group"] >= 0)[0].tolist() if b != block]
    cache.pool.acquire(cached)
    taken = cache.pool.allocate(cache.pool.num_available)
    cache.pool.release(taken)
    cache.pool.release(cached)
    assert not cache.pool.arrays.blocks["group"][block] >= 0


def test_the_eagle_margin_holds_inside_a_prompt_too():
    cache = make(drop_eagle_block=True, retention=DENSE)
    serve(cache, "first", prompt(64), chunks=[16, 16, 16, 16])
    said, hit = of(cache, np.concatenate((prompt(64), prompt(64, start=900))))
    assert hit.num_tokens == 48
    assert said[64, 0][0] == "margin"
    assert said[64, 0][1].endswith(
        "the block that ends on 80: unknown prefix, nobody computed these tokens with this salt"
    )
    assert said[64, 1][0] == said[48, 0][0] == said[48, 1][0] == "hit"
    assert min(said)[0] == 48


def test_a_hole_before_the_boundary_is_seen():
    cache = make()
    serve(cache, "first", prompt(100))
    evict(cache, prompt(100), 32, 0)
    said, hit = of(cache, prompt(100))
    assert hit.num_tokens == 0
    verdict, reason = said[96, 0]
    assert (verdict, reason[:34]) == ("evicted", "the block that ends on 32: in step")
    assert said[96, 1][0] == "hit"


@pytest.mark.parametrize(("length", "verdict"), [(80, "evicted"), (64, "hit")])
def test_the_whole_window_is_seen(length, verdict):
    groups = CacheGroup("sliding_window", 16, 33), STATE
    cache = HybridPrefixCache(CacheConfig(groups, 16), 200)
    serve(cache, "first", prompt(100))
    evict(cache, prompt(100), length, 0)
    said, hit = of(cache, prompt(100))
    assert said[96, 0][0] == verdict
    assert hit.num_tokens == (96 if verdict == "hit" else 0)


def test_nothing_is_needed_at_the_edge_of_a_local_chunk():
    groups = CacheGroup("chunked_local", 16, 48), STATE
    cache = HybridPrefixCache(CacheConfig(groups, 16), 200)
    serve(cache, "first", prompt(100))
    evict(cache, prompt(100), 96, 0)
    said, hit = of(cache, prompt(100))
    assert hit.num_tokens == 96
    assert said[96, 0] == ("hit", "the chunked_local group needs nothing here")


def test_the_latest_cause_wins():
    cache = make(num_blocks=12)
    serve(cache, "first", prompt(64))
    for index in range(1, 6):
        serve(cache, f"other {index}", prompt(64, start=1000 * index))
    assert of(cache, prompt(64))[0][48, 1][0] == "evicted"
    serve(cache, "second", prompt(64), declined=["second"])
    assert of(cache, prompt(64))[0][48, 1] == ("never stored", "the worker declined to write the checkpoint")
    serve(cache, "third", prompt(64))
    for index in range(1, 6):
        serve(cache, f"one more {index}", prompt(64, start=1000 * index))
    assert of(cache, prompt(64))[0][48, 1][0] == "evicted"


def test_a_reset_is_named():
    cache = make()
    serve(cache, "first", prompt(64))
    serve(cache, "other", prompt(64, start=500), declined=["other"])
    cache.reset()
    for start in (0, 500):
        said, _ = of(cache, prompt(64, start=start))
        assert said[48, 0] == said[48, 1] == ("reset", "what was known of it was forgotten when the cache was reset")
    assert of(cache, prompt(64, start=900))[0][48, 1][0] == "unknown prefix"
    serve(cache, "again", prompt(64), declined=["again"])
    said, _ = of(cache, prompt(64))
    assert said[48, 0][0] == "hit"
    assert said[48, 1] == ("never stored", "the worker declined to write the checkpoint")
    cache.reset()
    assert of(cache, prompt(64, start=500))[0][48, 0][0] == "reset"


@pytest.mark.parametrize(
    ("options", "length", "words"),
    [
        ({}, 64, "one token is left to compute"),
        ({"num_hash_lookahead_tokens": 1}, 64, "one token is left to compute"),
        ({"num_hash_lookahead_tokens": 9}, 70, "minimum lookahead: a boundary's hash needs 9 tokens after it"),
        ({"drop_eagle_block": True, "num_hash_lookahead_tokens": 9}, 70, "EAGLE margin: the last unit is given up"),
    ],
)
def test_what_is_left_beyond_the_last_boundary(options, length, words):
    assert verdicts(make(**options), prompt(length))[64, -1] == ("margin", words)


def test_outputs_that_move_a_chunks_end():
    # The checkpoint of [0, 120) would lie at 112, which the backend cannot export; 64 it could have.
    cache = make(alignment=32)
    request = cache.add("first", prompt(70))
    cache.append_tokens(request, prompt(50, start=70))
    step = cache.begin_step()
    cache.reserve(step, request, 120)
    cache.commit(step)
    words = "the chunk [0, 120) runs past it, outputs included: its one checkpoint belongs on 112"
    assert of(cache, prompt(70))[0][64, 1] == ("never stored", words)


def test_a_checkpoint_that_outputs_moved_beyond_the_prompt():
    cache = make()
    request = cache.add("first", prompt(70))
    cache.append_tokens(request, prompt(50, start=70))
    step = cache.begin_step()
    cache.reserve(step, request, 120)
    cache.commit(step)
    words = "the chunk [0, 120) runs past it, outputs included: its one checkpoint belongs on 112"
    assert of(cache, prompt(70))[0][64, 1] == ("never stored", words)


def test_outputs_are_no_boundaries():
    cache = make()
    request = cache.add("first", prompt(40))
    cache.append_tokens(request, prompt(100, start=40))
    assert max(verdict.num_tokens for verdict in cache.explain(request)) == 32


def test_what_is_being_written_is_said_of_each_group():
    cache = make(retention=DENSE)
    first = cache.add("first", prompt(100))
    step = cache.begin_step()
    cache.reserve(step, first, 64)
    said = verdicts(cache, prompt(100))
    assert said[96, 0][0] == said[96, 1][0] == "unknown prefix"
    assert said[64, 0][0] == said[64, 1][0] == said[48, 0][0] == said[48, 1][0] == said[16, 0][0] == "being written"
    assert said[32, 1] == ("never stored", "attention longer than state: no chunk left one here")
    cache.commit(step)
    assert of(cache, prompt(100))[1].num_tokens == 64


def test_a_long_prompt_is_explained_at_once():
    cache = make(num_blocks=20_000)
    tokens = prompt(262_144)
    serve(cache, "first", tokens, declined=["first"])
    request = cache.add("asker", tokens)
    cache.explain(request)
    start = time.perf_counter()
    said = cache.explain(request)
    # 0.3 s on an idle machine; looking through all memory for each verdict took half a minute.
    assert time.perf_counter() - start < 3
    assert len(said) == 2 * 16_383 + 1
