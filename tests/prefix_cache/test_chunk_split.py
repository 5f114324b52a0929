"""The chunk split: as recorded, as an obvious search for the first stop says, and with promises in plain language."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt._jit import host_loop
from numba_ckpt.errors import ArgumentError, ArgumentTypeError
from numba_ckpt.planning import CheckpointGeometry, compute_prefill_checkpoints
from numba_ckpt.planning.reference import (
    reference_checkpoint,
    reference_checkpoint_position,
    reference_is_checkpoint_valid,
)
from numba_ckpt.prefix_cache import PrefillProgress, SplitPolicy, split_prefill, split_tokens
from tests.golden import split_cases
from tests.planning.test_bad_input import check_message

GEOMETRY = CheckpointGeometry(16, 256, 16, checkpoint_alignment=None)
POLICY = SplitPolicy(GEOMETRY, max_num_scheduled_tokens=1024)
EXPORTING = SplitPolicy(dataclasses.replace(GEOMETRY, checkpoint_alignment=16), 1024)


def test_every_recorded_split():
    for case in split_cases():
        assert split_prefill(case.progress, case.num_new_tokens, case.policy) == case.result, case


@host_loop
def _split_rows(params, lengths, results):
    for row in range(results.size):
        computed, prompt, total, junction, asked = lengths[row]
        results[row] = split_tokens(params[row], computed, prompt, total, junction, asked)


def test_every_recorded_split_from_compiled_code():
    cases = split_cases()
    lengths = np.array([(*case.progress, case.num_new_tokens) for case in cases])
    results = np.empty(len(cases), np.int64)
    _split_rows(np.array([case.policy.params for case in cases]), lengths, results)
    assert results.tolist() == [case.result for case in cases]


def chunk_ends(policy, num_tokens, start=0, num_prompt_tokens=None, junction=0):
    """Ends of the chunks of a prefill that gets the longest chunk in every step."""
    prompt = num_tokens if num_prompt_tokens is None else num_prompt_tokens
    ends = []
    while start < num_tokens:
        asked = min(num_tokens - start, policy.max_chunk_tokens)
        start += split_prefill(PrefillProgress(start, prompt, num_tokens, junction), asked, policy)
        ends.append(start)
    return ends


STOPS = [
    ("last block, tail, prompt", POLICY, {"num_tokens": 700}, [512, 688, 700]),
    ("no tail where it is the last block", POLICY, {"num_tokens": 520}, [512, 520]),
    ("one token stays behind a boundary", POLICY, {"num_tokens": 512}, [256, 496, 512]),
    ("a prompt below one block has its tail", POLICY, {"num_tokens": 100}, [96, 100]),
    ("whole blocks while more is to come", POLICY, {"num_tokens": 2000}, [1024, 1792, 1984, 2000]),
    ("a block is completed first", POLICY, {"num_tokens": 700, "start": 100}, [256, 512, 688, 700]),
    ("the junction, in whole blocks", POLICY, {"num_tokens": 1000, "junction": 300}, [256, 768, 992, 1000]),
    ("outputs replayed like a prompt", POLICY, {"num_tokens": 700, "num_prompt_tokens": 100}, [512, 700]),
    ("spared: one pass", EXPORTING, {"num_tokens": 700}, [700]),
    ("spared, but for the junction", EXPORTING, {"num_tokens": 1000, "junction": 300}, [256, 1000]),
    ("no column for a checkpoint", EXPORTING, {"num_tokens": 700, "start": 512}, [688, 700]),
    ("a start off the hash grid", EXPORTING, {"num_tokens": 700, "start": 300}, [512, 688, 700]),
]


@pytest.mark.parametrize(("policy", "prefill", "expected"), [row[1:] for row in STOPS], ids=[row[0] for row in STOPS])
def test_stops(policy, prefill, expected):
    assert chunk_ends(policy, **prefill) == expected


def test_the_eagle_block_is_left_out():
    dropping = SplitPolicy(dataclasses.replace(GEOMETRY, drop_eagle_block=True), 1024)
    assert chunk_ends(dropping, 700) == [256, 672, 700]


def test_a_lookahead_before_the_end():
    ahead = SplitPolicy(dataclasses.replace(GEOMETRY, num_hash_lookahead_tokens=16), 1024)
    assert chunk_ends(ahead, 528) == [512, 528]
    # One token less, and the boundary at 512 is too near; the chunk after the tail still completes its block.
    assert chunk_ends(ahead, 527) == [256, 496, 512, 527]


def test_a_junction_on_its_token():
    exact = dataclasses.replace(POLICY, exact_junction=True)
    assert chunk_ends(exact, 700, junction=303) == [303, 512, 688, 700]
    assert chunk_ends(exact, 700, num_prompt_tokens=200, junction=303)[0] == 256  # beyond the prompt: whole blocks


def test_hits_as_coarse_as_blocks_have_no_tail():
    coarse = SplitPolicy(dataclasses.replace(GEOMETRY, cache_hit_alignment_tokens=256), 1024)
    assert chunk_ends(coarse, 700) == [512, 700]


@pytest.mark.parametrize("limits", [(200, None), (1024, 200)])
def test_blocks_longer_than_any_chunk(limits):
    short = SplitPolicy(GEOMETRY, *limits)
    assert chunk_ends(short, 700) == [200, 256, 456, 512, 688, 700]


def test_a_chunk_waits_for_a_step_with_room_for_a_block():
    progress = PrefillProgress(256, 2000, 2000)
    assert [split_prefill(progress, asked, POLICY) for asked in (0, 1, 255, 256, 511, 512)] == [0, 0, 0, 256, 256, 512]


def test_the_prefill_over_all_is_given():
    for progress in [(700, 700, 700), (700, 700, 701), (719, 700, 720), (900, 700, 800)]:
        assert split_prefill(PrefillProgress(*progress), 5, EXPORTING) == 5


def can_export(start, end, position, geometry):
    sizes = geometry.hash_block_size, geometry.state_block_size, geometry.checkpoint_alignment
    return reference_is_checkpoint_valid(start, end, position, *sizes)


def test_replays_are_spared_only_where_the_worker_writes():
    """The prompt's tail could be exported, the boundary that the worker goes by could not: the stop stays."""
    geometry = CheckpointGeometry(16, 64, 16, checkpoint_alignment=64)
    progress = PrefillProgress(0, 140, 180)
    assert can_export(0, 180, 128, geometry)
    assert reference_checkpoint(180, 180, geometry) == (0, -1)
    assert split_prefill(progress, 180, SplitPolicy(geometry, 1024)) == 128


class Prefill(NamedTuple):
    policy: SplitPolicy
    progress: PrefillProgress


@st.composite
def policies(draw):
    hash_block = draw(st.sampled_from([1, 2, 4, 8]))
    state_block = hash_block * draw(st.integers(1, 8))
    unit = draw(st.sampled_from([hash_block, state_block, 2 * state_block]))
    alignment = draw(st.sampled_from([None, 1, 2, hash_block]))
    geometry = CheckpointGeometry(
        hash_block, state_block, unit, alignment, draw(st.booleans()), draw(st.sampled_from([0, 1, 3]))
    )
    threshold = draw(st.none() | st.integers(1, 100))
    return SplitPolicy(geometry, draw(st.integers(1, 300)), threshold, draw(st.booleans()))


@st.composite
def prefills(draw):
    policy = draw(policies())
    prompt = draw(st.integers(1, 200))
    total = prompt + draw(st.sampled_from([0, 0, 1]) | st.integers(0, 60))
    start = draw(st.integers(0, total - 1))
    hash_block = policy.geometry.hash_block_size
    start = draw(st.sampled_from([0, start // hash_block * hash_block, start]))
    return Prefill(policy, PrefillProgress(start, prompt, total, draw(st.just(0) | st.integers(0, total))))


def reference_end(policy, progress, asked):
    """The first token at which the chunk may not go on, found by looking at each; no rule of the package is used."""
    geometry, (start, prompt, total, junction) = policy.geometry, progress
    block, unit, end = geometry.state_block_size, geometry.cache_hit_alignment_tokens, start + asked
    goal = max(prompt, total - 1)
    if start >= goal:
        return end
    tail = reference_checkpoint_position(prompt, unit, geometry.drop_eagle_block, geometry.num_hash_lookahead_tokens)
    last = reference_checkpoint_position(total, block, geometry.drop_eagle_block, geometry.num_hash_lookahead_tokens)
    exported = reference_checkpoint(end, asked, geometry)[0] > 0
    spared = end >= goal and exported and can_export(start, end, tail, geometry)
    on_token = policy.exact_junction and junction <= prompt
    limit = end
    if end < goal:
        boundaries = [token for token in range(start + 1, end + 1) if token % block == 0]
        limit = boundaries[-1] if boundaries else start if policy.max_chunk_tokens >= block else end
    for token in range(start + 1, limit):
        whole_blocks = (token - start) % block == 0 and token <= junction < token + block
        if token == junction if on_token else whole_blocks:
            return token
        completes = start % block != 0 and token == -(-start // block) * block
        if not spared and (completes or token == last or (token == tail and tail > last)):
            return token
    return limit


@settings(max_examples=400)
@given(prefills(), st.integers(0, 300))
def test_the_split_equals_a_search_for_the_first_stop(prefill, asked):
    policy, progress = prefill
    asked = min(asked, progress.num_tokens - progress.num_computed_tokens)
    end = progress.num_computed_tokens + split_prefill(progress, asked, policy)
    assert end == reference_end(policy, progress, asked)


@settings(max_examples=300)
@given(prefills())
def test_promises(prefill):
    policy, (start, prompt, total, junction) = prefill
    geometry, first = policy.geometry, start
    ends, written = [start], set()
    goal = max(prompt, total - 1)
    while start < goal:
        asked = min(total - start, policy.max_chunk_tokens)
        given = split_prefill(PrefillProgress(start, prompt, total, junction), asked, policy)
        assert 0 < given <= asked  # progress is always made, and never more than was asked for
        end = start + given
        if given < asked and policy.max_chunk_tokens >= geometry.state_block_size:
            check_stop(policy, prefill.progress, start, end)
        plan = compute_prefill_checkpoints([end], [given], geometry)
        written |= {end} | ({start + int(plan.offsets[0])} if plan.any else set())
        ends.append(end)
        start = end
    assert len(ends) <= 2 + total  # and it ends
    if junction == 0 and first < goal:
        check_last_boundary(policy, prompt, total, first, written)


def check_stop(policy, progress, start, end):
    """A chunk is cut short only on a state block, on the hit grid, or at the junction."""
    geometry, junction = policy.geometry, progress.shared_prefix_boundary
    on_grid = end % geometry.state_block_size == 0 or end % geometry.cache_hit_alignment_tokens == 0
    at_junction = end == junction or start < end <= junction < end + geometry.state_block_size
    assert on_grid or at_junction


def check_last_boundary(policy, prompt, total, first, written):
    """The last boundary that a repetition can use has its state, from a chunk's end or from a checkpoint."""
    geometry = policy.geometry
    dropped = geometry.drop_eagle_block, geometry.num_hash_lookahead_tokens
    unit = min(geometry.cache_hit_alignment_tokens, geometry.state_block_size)
    if prompt == total and geometry.cache_hit_alignment_tokens <= geometry.state_block_size:
        boundary = reference_checkpoint_position(prompt, unit, *dropped)
        assert boundary <= first or boundary in written


SMALL = {"num_computed_tokens": 0, "num_prompt_tokens": 700, "num_tokens": 700, "shared_prefix_boundary": 0}
BAD_LENGTHS = [
    ("num_computed_tokens", -1, ArgumentError),
    ("num_computed_tokens", 1.0, ArgumentTypeError),
    ("num_computed_tokens", True, ArgumentTypeError),
    ("num_computed_tokens", None, ArgumentTypeError),
    ("num_computed_tokens", 2**62, ArgumentError),
    ("num_computed_tokens", 2**64, ArgumentError),
    ("num_prompt_tokens", 0, ArgumentError),
    ("num_prompt_tokens", -5, ArgumentError),
    ("num_prompt_tokens", 701, ArgumentError),
    ("num_prompt_tokens", np.float64(3), ArgumentTypeError),
    ("num_tokens", -700, ArgumentError),
    ("num_tokens", "700", ArgumentTypeError),
    ("num_tokens", np.array([700, 700]), ArgumentTypeError),
    ("shared_prefix_boundary", -1, ArgumentError),
    ("shared_prefix_boundary", 701, ArgumentError),
    ("shared_prefix_boundary", None, ArgumentTypeError),
    ("num_new_tokens", -1, ArgumentError),
    ("num_new_tokens", 701, ArgumentError),
    ("num_new_tokens", 2**70, ArgumentError),
    ("num_new_tokens", 64.0, ArgumentTypeError),
    ("num_new_tokens", False, ArgumentTypeError),
]


@pytest.mark.parametrize(("name", "value", "error"), BAD_LENGTHS, ids=[f"{n}={v!r}" for n, v, _ in BAD_LENGTHS])
def test_refuses_lengths(name, value, error):
    lengths = SMALL | {"num_new_tokens": 700, name: value}
    asked = lengths.pop("num_new_tokens")
    with pytest.raises(error) as raised:
        split_prefill(PrefillProgress(**lengths), asked, POLICY)
    assert type(raised.value) is error
    check_message(raised.value, name)


BAD_POLICIES = [
    ("geometry", None, ArgumentTypeError),
    ("geometry", (16, 256, 16, None), ArgumentTypeError),
    ("max_num_scheduled_tokens", 0, ArgumentError),
    ("max_num_scheduled_tokens", -8, ArgumentError),
    ("max_num_scheduled_tokens", 2**31, ArgumentError),
    ("max_num_scheduled_tokens", None, ArgumentTypeError),
    ("max_num_scheduled_tokens", 1024.0, ArgumentTypeError),
    ("long_prefill_token_threshold", 0, ArgumentError),
    ("long_prefill_token_threshold", True, ArgumentTypeError),
    ("exact_junction", 1, ArgumentTypeError),
    ("exact_junction", None, ArgumentTypeError),
]


@pytest.mark.parametrize(("name", "value", "error"), BAD_POLICIES, ids=[f"{n}={v!r}" for n, v, _ in BAD_POLICIES])
def test_refuses_policies(name, value, error):
    with pytest.raises(error) as raised:
        SplitPolicy(**{"geometry": GEOMETRY, "max_num_scheduled_tokens": 1024, name: value})
    assert type(raised.value) is error
    check_message(raised.value, name)


@pytest.mark.parametrize(
    ("progress", "policy", "name"),
    [((0, 7, 7, 0), POLICY, "progress"), (None, POLICY, "progress"), (PrefillProgress(0, 7, 7), GEOMETRY, "policy")],
)
def test_refuses_other_records(progress, policy, name):
    with pytest.raises(ArgumentTypeError) as raised:
        split_prefill(progress, 7, policy)
    check_message(raised.value, name)


def test_compiled_callers_get_a_number_for_what_is_refused():
    for lengths in [(-1, 7, 7, 0, 7), (0, 0, 7, 0, 7), (0, 8, 7, 0, 7), (0, 7, 7, 8, 7), (0, 7, 7, 0, 8), (2**62,) * 5]:
        assert split_tokens(POLICY.params, *lengths) == -1


def test_numpy_integers_are_integers():
    progress = PrefillProgress(np.int32(0), np.uint64(700), np.int64(700))
    assert split_prefill(progress, np.int16(700), POLICY) == 512
    assert type(split_prefill(progress, np.int16(700), POLICY)) is int


def test_lengths_beyond_32_bits():
    far = 2**40
    progress = PrefillProgress(far, far + 700, far + 700)
    assert split_prefill(progress, 700, POLICY) == 512


def test_a_policy_is_a_plain_value():
    twin = SplitPolicy(dataclasses.replace(GEOMETRY), np.int64(1024))
    assert (twin, hash(twin)) == (POLICY, hash(POLICY))
    with pytest.raises(dataclasses.FrozenInstanceError):
        twin.exact_junction = True
