"""Every miss has an explanation, pending prefixes are announced, and counters add up."""

import warnings

import numpy as np
import pytest

from numba_ckpt.prefix_cache import (
    DENSE,
    PROVEN,
    CacheConfig,
    CacheGroup,
    CacheWarning,
    HybridPrefixCache,
    Retention,
)


def make(num_blocks=200, retention=PROVEN, alignment=16, block=16, **config):
    groups = CacheGroup("full", block), CacheGroup("state", block, checkpoint_alignment=alignment)
    return HybridPrefixCache(CacheConfig(groups, 16, **config), num_blocks, retention=retention)


def prompt(num_tokens, start=0):
    return np.arange(start, start + num_tokens)


def serve(cache, name, tokens, chunks=None, declined=(), finish=True):
    request = cache.add(name, tokens)
    hit = cache.look_up(request)
    for num_tokens in chunks or [len(tokens) - hit.num_tokens]:
        step = cache.begin_step()
        assert cache.reserve(step, request, num_tokens) is not None
        cache.commit(step, declined=set(declined))
    if finish:
        cache.finish(request)
    return hit


def verdicts(cache, tokens, name="asker"):
    request = cache.add(name, tokens)
    said = {(v.num_tokens, v.group): (v.verdict, v.reason) for v in cache.explain(request)}
    cache.finish(request)
    return said


def test_a_hit_and_the_token_that_no_hit_may_take():
    cache = make()
    serve(cache, "first", prompt(64))
    said = verdicts(cache, prompt(64))
    assert said[64, -1][0] == "margin"
    assert said[48, 0][0] == said[48, 1][0] == "hit"
    assert set(said) == {(64, -1), (48, 0), (48, 1)}


def test_the_eagle_margin():
    cache = make(drop_eagle_block=True)
    serve(cache, "first", prompt(64))
    assert verdicts(cache, prompt(64))[64, -1] == ("margin", "EAGLE margin: the last unit is given up")


def test_a_prefix_that_nobody_computed():
    cache = make()
    serve(cache, "first", prompt(64))
    assert verdicts(cache, prompt(64, start=1000))[16, 0][0] == "unknown prefix"


def test_attention_longer_than_state():
    cache = make()
    serve(cache, "first", prompt(64))
    said = verdicts(cache, np.concatenate((prompt(32), prompt(32, start=500))))
    assert said[32, 0][0] == "hit"
    assert said[32, 1] == ("never stored", "attention longer than state: no chunk left one here")


def test_a_state_that_retention_did_not_keep():
    cache = make()
    serve(cache, "first", prompt(70), chunks=[32, 38])
    said = verdicts(cache, np.concatenate((prompt(32), prompt(32, start=500))))
    assert said[32, 1] == ("never stored", "retention did not keep it")
    dense = make(retention=DENSE)
    serve(dense, "first", prompt(70), chunks=[32, 38])
    assert verdicts(dense, np.concatenate((prompt(32), prompt(32, start=500))))[32, 1][0] == "hit"


def test_a_block_end_that_retention_kept_is_not_called_dropped():
    # The last boundary is 96; a chunk that cannot stop there stops on the block end before it, and that is kept.
    groups = CacheGroup("full", 16), CacheGroup("state", 64, checkpoint_alignment=16)
    cache = HybridPrefixCache(CacheConfig(groups, 16), 100)
    serve(cache, "first", prompt(100), chunks=[64, 36])
    assert not [state for state in cache.observer.unkept() if state.position == 64]
    assert verdicts(cache, np.concatenate((prompt(64), prompt(32, start=500))))[64, 1][0] == "hit"


def test_a_declined_checkpoint():
    cache = make()
    serve(cache, "first", prompt(70), declined=["first"])
    assert verdicts(cache, prompt(70))[64, 1] == ("never stored", "the worker declined to write the checkpoint")


@pytest.mark.parametrize(
    ("alignment", "chunks", "tokens", "boundary", "words"),
    [
        (None, [70], 70, 64, "alignment: the backend cannot export states"),
        (48, [70], 70, 64, "alignment: offset 64 is no multiple of 48"),
        (16, [40, 30], 70, 64, "start 40 is not on the hash grid of 16"),
    ],
)
def test_a_checkpoint_that_the_rule_does_not_allow(alignment, chunks, tokens, boundary, words):
    cache = make(alignment=alignment)
    serve(cache, "first", prompt(tokens), chunks=chunks)
    verdict, reason = verdicts(cache, prompt(tokens))[boundary, 1]
    assert verdict == "never stored"
    assert words in reason


def test_a_checkpoint_without_a_column_of_its_own():
    groups = CacheGroup("full", 16), CacheGroup("state", 64, checkpoint_alignment=16)
    cache = HybridPrefixCache(CacheConfig(groups, 16), 100)
    serve(cache, "first", prompt(100), chunks=[64, 36])
    said = verdicts(cache, prompt(100))
    assert said[96, 1] == (
        "never stored",
        "no block-table column between the initial state's and the running one's for [64, 100)",
    )


def test_an_evicted_state():
    cache = make(num_blocks=12)
    serve(cache, "first", prompt(64))
    for index in range(1, 6):
        serve(cache, f"other {index}", prompt(64, start=1000 * index))
    verdict, reason = verdicts(cache, prompt(64))[48, 1]
    assert verdict == "evicted"
    assert reason.startswith("in step ")


def test_a_prefix_that_is_being_written_is_worth_waiting_for():
    cache = make()
    first = cache.add("first", prompt(64))
    cache.look_up(first)
    step = cache.begin_step()
    cache.reserve(step, first, 64)
    assert verdicts(cache, prompt(64))[48, 1][0] == "being written"
    second = cache.add("second", prompt(80))
    assert cache.look_up(second).pending_tokens == 48
    assert cache.look_up(second).num_tokens == 0
    other = cache.add("other", prompt(64, start=7))
    assert cache.look_up(other).pending_tokens == 0
    cache.commit(step)
    assert cache.look_up(second) == (48, 64, 0)
    assert cache.counters.waits == 2


def test_an_aborted_step_is_pending_no_more():
    cache = make()
    first = cache.add("first", prompt(64))
    cache.look_up(first)
    step = cache.begin_step()
    cache.reserve(step, first, 64)
    cache.abort(step)
    second = cache.add("second", prompt(64))
    assert cache.look_up(second) == (0, 0, 0)
    assert cache.counters.checkpoints_aborted == cache.counters.checkpoints_reserved == 1


def test_counters_add_up():
    cache = make()
    serve(cache, "first", prompt(64))
    serve(cache, "second", prompt(64))
    serve(cache, "third", np.concatenate((prompt(32), prompt(40, start=900))))
    serve(cache, "fourth", prompt(200, start=5000), declined=["fourth"])
    counters = cache.counters
    assert (counters.lookups, counters.states_reused) == (4, 1)
    assert counters.prompt_tokens == 64 + 64 + 72 + 200
    assert (counters.hit_tokens, counters.lost_to_states) == (48, 32)
    settled = counters.checkpoints_written + counters.checkpoints_declined + counters.checkpoints_aborted
    assert counters.checkpoints_reserved == settled == 3
    assert counters.checkpoints_declined == 1
    assert counters.steps_committed == 4


def test_a_state_that_moves_on_inside_a_published_block_is_copied():
    groups = CacheGroup("full", 16), CacheGroup("state", 64, checkpoint_alignment=16)
    cache = HybridPrefixCache(CacheConfig(groups, 16), 100, retention=Retention(16))
    request = cache.add("first", prompt(60))
    cache.look_up(request)
    for num_tokens in (16, 16):
        step = cache.begin_step()
        chunk = cache.reserve(step, request, num_tokens)
        cache.commit(step)
    [(group, source, destination)] = chunk.copies
    assert group == 1
    assert source != destination
    assert cache.counters.copies == 1


def test_a_prompt_that_can_never_be_hit_is_warned_about_once():
    cache = make()
    with pytest.warns(CacheWarning, match="can never be hit: hits are multiples of 16 tokens"):
        cache.add("short", prompt(16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.add("shorter", prompt(9))


def test_explaining_changes_nothing():
    cache = make()
    serve(cache, "first", prompt(64))
    request = cache.add("asker", prompt(64))
    before = [array.tobytes() for array in cache.pool.arrays], str(cache.counters)
    cache.explain(request)
    assert before == ([array.tobytes() for array in cache.pool.arrays], str(cache.counters))
