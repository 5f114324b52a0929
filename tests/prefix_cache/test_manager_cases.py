"""Failures reported for other engines (B01 and on) in the prefix cache's field: each one, and its kind."""

import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.prefix_cache import (
    DENSE,
    CacheConfig,
    CacheGroup,
    ExtraKey,
    HybridPrefixCache,
    PrefillProgress,
    SplitPolicy,
    split_prefill,
)
from numba_ckpt.prefix_cache.chunk_loops import CHECKPOINT_BLOCK, CHECKPOINT_COL, INITIAL_BLOCK, OFFSET, RUNNING_BLOCK

STATE = 1


def make_cache(attention, state, unit, num_blocks=4096, alignment=16, drop_eagle_block=False, **options):
    groups = CacheGroup("full", attention), CacheGroup("state", state, None, alignment)
    config = CacheConfig(groups, unit, drop_eagle_block=drop_eagle_block)
    return HybridPrefixCache(config, num_blocks, **options)


def compute(cache, request, length=None, **options):
    step = cache.begin_step()
    chunk = cache.reserve(step, request, length or request.num_tokens - request.num_computed_tokens)
    cache.commit(step, **options)
    return chunk


def serve(cache, name, prompt, budget=8192):
    """Serve a prompt to its end; returns its hit."""
    policy = SplitPolicy(cache.config.geometry_of(cache.config.groups[STATE]), budget)
    request = cache.add(name, prompt)
    hit, total = cache.look_up(request).num_tokens, request.num_tokens
    while (done := request.num_computed_tokens) < total:
        wish = min(budget, total - done)
        compute(cache, request, split_prefill(PrefillProgress(done, total, total, request.junction), wish, policy))
    cache.finish(request)
    return hit


def test_b01_no_block_where_the_worker_drops_an_unaligned_offset():
    cache = make_cache(8, 2048, 8, retention=DENSE)
    request = cache.add("request", np.arange(5000))
    compute(cache, request, 8)
    chunk = compute(cache, request)
    assert (chunk.groups[STATE, [OFFSET, CHECKPOINT_COL, CHECKPOINT_BLOCK]] == [0, -1, 0]).all()
    assert np.count_nonzero(request.table[STATE]) == 1
    # What was written, the state after 8 tokens, can be hit, and nothing else.
    assert cache.look_up(cache.add("again", np.arange(5000))).num_tokens == 8


def test_b02_prompts_that_part_inside_a_block_meet_at_the_block_before():
    cache = make_cache(528, 528, 528)
    prompts = [np.concatenate([np.arange(1500), np.arange(700) + 10_000 * number]) for number in range(1, 5)]
    assert [serve(cache, str(number), prompt) for number, prompt in enumerate(prompts)] == [0, 0, 1056, 1056]


def test_b04_prompts_shorter_than_two_units_cannot_be_reused_with_the_eagle_block_dropped():
    config = CacheConfig((CacheGroup("full", 1536), CacheGroup("state", 1536)), 1536, drop_eagle_block=True)
    for length, hit in ((1535, 0), (3000, 0), (3072, 1536)):
        cache = HybridPrefixCache(config, 64)
        assert [serve(cache, name, np.arange(length)) for name in "ab"] == [0, hit]


@pytest.mark.parametrize(("length", "hit"), [(480, 464), (552, 544), (979, 976)])
def test_b05_a_unit_finer_than_the_state_block_reuses_short_prompts(length, hit):
    cache = make_cache(16, 528, 16)
    assert [serve(cache, name, np.arange(length)) for name in "ab"] == [0, hit]


def test_b44_b46_a_prefill_from_the_start_reads_no_state():
    cache = make_cache(100, 100, 100, num_blocks=12)
    request = cache.add("request", np.arange(900))
    compute(cache, request, 450)
    assert compute(cache, request, 50).groups[STATE, INITIAL_BLOCK] != 0
    cache.preempt(request)
    assert cache.look_up(request).num_tokens == 0
    assert compute(cache, request, 450).groups[STATE, INITIAL_BLOCK] == 0
    cache.finish(request)
    for number in range(4):  # other tenants in the same blocks
        other = cache.add(str(number), np.arange(450) + number)
        assert compute(cache, other).groups[STATE, INITIAL_BLOCK] == 0
        cache.finish(other)


def test_b47_a_hit_names_the_cached_block_that_holds_its_state():
    cache = make_cache(16, 16, 16)
    prompts = {name: np.arange(100) + shift for name, shift in (("a", 0), ("b", 500))}
    holder = {}
    for name, prompt in prompts.items():
        request = cache.add(name, prompt)
        holder[name] = int(compute(cache, request).groups[STATE, CHECKPOINT_BLOCK])
        cache.finish(request)
    step, chunks = cache.begin_step(), []
    for name in ("b", "a", "b"):
        request = cache.add(f"{name} {len(chunks)}", prompts[name])
        assert cache.look_up(request).num_tokens == 96
        chunks.append(cache.reserve(step, request, 4))
    assert [int(chunk.groups[STATE, INITIAL_BLOCK]) for chunk in chunks] == [holder[name] for name in "bab"]
    assert len({int(chunk.groups[STATE, RUNNING_BLOCK]) for chunk in chunks} | set(holder.values())) == 5


@pytest.mark.parametrize("leave", ["abort", "abort and finish", "abort and preempt"])
def test_b50_what_was_scheduled_and_never_written_is_not_found(leave):
    cache = make_cache(16, 16, 16)
    request = cache.add("request", np.arange(100))
    step = cache.begin_step()
    cache.reserve(step, request, 100)
    assert cache.look_up(cache.add("meanwhile", np.arange(100))).num_tokens == 0
    cache.abort(step)
    if leave == "abort and finish":
        cache.finish(request)
    elif leave == "abort and preempt":
        cache.preempt(request)
    assert cache.look_up(cache.add("again", np.arange(100))) == (0, 0, 0)
    assert (cache.pool.num_cached, cache.pool.num_available) == (0, 4095)


def test_b52_a_shorter_prompt_takes_no_state_from_a_longer_one():
    cache = make_cache(16, 16, 16, retention=DENSE)
    longer = cache.add("abc", np.arange(49))
    for _ in range(3):
        compute(cache, longer, 16)
    cache.finish(longer)
    assert cache.look_up(cache.add("ab", np.arange(33))).num_tokens == 32
    assert cache.look_up(cache.add("abc again", np.arange(49))).num_tokens == 48


def test_b55_a_pool_without_a_block_for_the_checkpoint_goes_without_it():
    # 32 slots: the owner holds one state and one attention block, the holder 15 and one, the rest is held below.
    cache = make_cache(16, 16, 16, num_blocks=33)
    owner, holder = (cache.add(name, np.arange(250) + n) for n, name in enumerate(("a", "b")))
    compute(cache, owner, 16)
    compute(cache, holder, 240)
    spare = cache.pool.num_available
    locked = cache.pool.allocate(spare - 3)
    chunk = compute(cache, owner, 32)  # two attention blocks and a running state, and none left for its checkpoint
    assert chunk.groups[STATE, [OFFSET, CHECKPOINT_COL, CHECKPOINT_BLOCK]].tolist() == [0, -1, 0]
    assert (cache.counters.checkpoints_skipped, cache.pool.num_available) == (1, 1)
    cache.pool.release(locked)
    cache.pool.check_integrity()


def test_b55_a_pool_without_a_block_to_spare_refuses_and_changes_nothing():
    cache = make_cache(16, 16, 16, num_blocks=33)
    owner, holder, waiting = (cache.add(name, np.arange(250) + n) for n, name in enumerate(("a", "b", "c")))
    compute(cache, owner, 14)
    compute(cache, holder, 240)
    compute(cache, waiting, 16)
    step = cache.begin_step()
    before = [array.tobytes() for array in cache.pool.arrays]
    assert cache.reserve(step, waiting, 234) is None
    assert before == [array.tobytes() for array in cache.pool.arrays]
    cache.finish(holder)
    assert cache.reserve(step, waiting, 234) is not None


def test_skipped_checkpoints_are_explained():
    cache = make_cache(16, 16, 16, num_blocks=12)
    request = cache.add("request", np.arange(100))
    locked = cache.pool.allocate(3)
    compute(cache, request, 100)  # seven attention blocks and a state
    cache.pool.release(locked)
    again = cache.add("again", np.arange(100))
    assert cache.look_up(again) == (0, 96, 0)
    reasons = [verdict.reason for verdict in cache.explain(again) if verdict.num_tokens == 96]
    assert "the pool had no block left for the checkpoint" in reasons


def test_the_eagle_drop_gives_up_the_last_unit_of_any_hit():
    # The draft head's last token of a unit depends on the next token, in which two prompts may differ.
    cache = make_cache(16, 16, 16, retention=DENSE, drop_eagle_block=True)
    request = cache.add("first", np.arange(100))
    compute(cache, request, 48)
    other = np.arange(100)
    other[60:] += 1
    # 48 tokens are known to both groups, states among them at 32 and 48.
    assert cache.look_up(cache.add("other", other))[:2] == (32, 32)
    assert cache.pool.find(request.keys[2:3], STATE).size == 1


def test_speculative_blocks_move_with_the_running_state():
    groups = CacheGroup("full", 16), CacheGroup("state", 16, checkpoint_alignment=16, num_speculative_blocks=2)
    cache = HybridPrefixCache(CacheConfig(groups, 16), 64)
    request = cache.add("request", np.arange(100))
    assert request.table.shape == (2, 9)
    compute(cache, request, 40)
    first = request.table[STATE].tolist()
    assert [col for col, block in enumerate(first) if block] == [2, 3, 4]
    compute(cache, request, 30)
    second = request.table[STATE].tolist()
    assert [col for col, block in enumerate(second) if block] == [4, 5, 6]
    assert second[5:7] == first[3:5]
    step = cache.begin_step()
    cache.reserve(step, request, 30)
    cache.abort(step, has_run=False)
    assert request.table[STATE].tolist() == second
    cache.finish(request)
    assert cache.pool.num_available == 63


def test_a_reset_forgets_all_prefixes():
    cache = make_cache(16, 16, 16)
    request = cache.add("request", np.arange(100))
    compute(cache, request)
    with pytest.raises(ArgumentError, match=r"requests: expected none that holds blocks, got 'request' with 100"):
        cache.reset()
    cache.finish(request)
    assert cache.pool.num_cached > 0
    cache.reset()
    assert (cache.pool.num_cached, cache.pool.num_available) == (0, cache.pool.num_blocks - 1)
    assert cache.look_up(cache.add("again", np.arange(100))) == (0, 0, 0)


def test_extra_keys_keep_adapters_apart():
    cache = make_cache(16, 16, 16)
    compute(cache, cache.add("one", np.arange(100), extra_keys=[ExtraKey(0, b"adapter 1")]))
    assert cache.look_up(cache.add("plain", np.arange(100))).num_tokens == 0
    assert cache.look_up(cache.add("two", np.arange(100), extra_keys=[ExtraKey(0, b"adapter 2")])).num_tokens == 0
    assert cache.look_up(cache.add("same", np.arange(100), extra_keys=[ExtraKey(0, b"adapter 1")])).num_tokens == 96


def test_b56_a_reservation_that_the_worker_declined_is_dropped():
    cache = make_cache(16, 16, 16)
    request = cache.add("request", np.arange(100))
    chunk = compute(cache, request, declined={"request"})
    block = int(chunk.groups[STATE, CHECKPOINT_BLOCK])
    assert block != 0
    assert cache.pool.arrays.blocks[block]["ref_count"] == 0
    assert cache.look_up(cache.add("again", np.arange(100))) == (0, 96, 0)


def test_b60_b61_boundaries_without_a_state_have_null_blocks_and_no_key():
    cache = make_cache(1616, 1616, 16)
    request = cache.add("request", np.arange(4538))
    chunk = compute(cache, request)
    assert (chunk.groups[STATE, [OFFSET, CHECKPOINT_COL]] == [3232, 1]).all()
    held = request.table[STATE].tolist()
    assert (held[:2], held[2] > 0) == ([0, 0], True)
    states = [cache.pool.find(request.keys[[boundary // 16 - 1]], STATE).size for boundary in (1616, 3232, 4528)]
    assert states == [0, 1, 0]
    assert cache.pool.publish([0, 0], request.keys[:2], STATE) == 0


def test_b78_the_next_turn_computes_what_is_new():
    cache = make_cache(16, 512, 16)
    assert serve(cache, "turn 1", np.arange(12_146)) == 0
    assert serve(cache, "turn 2", np.arange(12_146 + 31)) == 12_144
    assert serve(cache, "turn 3", np.arange(12_146 + 62)) == 12_176
    assert [serve(cache, f"short {number}", np.arange(40) + 50_000) for number in range(2)] == [0, 32]


def test_b80_a_state_is_never_trimmed_to_a_shorter_prompt():
    cache = make_cache(1, 64, 1, alignment=1)
    assert serve(cache, "longer", np.arange(431)) == 0
    assert serve(cache, "shorter by 7", np.arange(424)) == 0
    assert serve(cache, "shorter by 7 again", np.arange(424)) == 423
    assert serve(cache, "longer again", np.arange(431)) == 430


def test_a_long_prefill_holds_few_states():
    cache = make_cache(3584, 3584, 3584)
    request, held = cache.add("request", np.arange(480_000)), []
    policy = SplitPolicy(cache.config.geometry_of(cache.config.groups[STATE]), 8192)
    while (done := request.num_computed_tokens) < 480_000:
        wish = min(8192, 480_000 - done)
        step = cache.begin_step()
        cache.reserve(step, request, split_prefill(PrefillProgress(done, 480_000, 480_000), wish, policy))
        held.append(np.count_nonzero(request.table[STATE]))
        cache.commit(step)
    assert max(held) <= 3  # initial, checkpoint, running; the requirement is 9
    assert np.count_nonzero(request.table[STATE]) == 1
