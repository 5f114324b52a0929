"""The proof: a request resumed from a stored checkpoint ends as if it had been computed from scratch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.planning import CheckpointGeometry
from tests.models.engine import NUM_BLOCKS, Engine, cold_run

# Chunked scans cut at other positions add in another order; the stack's outputs have a root mean square of 1.
SCAN_TOLERANCE = {"rtol": 0, "atol": 1e-5}
# One rounding of the resumed states: half of the last of 11 (float16) or 8 (bfloat16) significant bits, as the stack
# amplifies it.
STORAGE_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}
ON_CHUNK_GRID = CheckpointGeometry(8, 16, 8, checkpoint_alignment=1)
LAYOUTS = st.sampled_from(["len_first", "dim_first"])
LENGTHS = st.integers(17, 70)


def draw_prompt(num_tokens, seed=0):
    return np.random.default_rng(seed).integers(0, 64, num_tokens)


def resume(prompt, suffix, **options):
    """Prefill `prompt`, then resume prefix + suffix from its checkpoint in the same engine."""
    engine = Engine(**options)
    first = engine.new_request(prompt)
    _, (position, block) = engine.prefill(first)
    stored = engine.block_bytes(block)
    second = engine.new_request(np.concatenate([prompt[:position], suffix]), first, position, block)
    outputs, _ = engine.prefill(second)
    assert engine.block_bytes(block) == stored, "the checkpoint stays for the next request"
    return engine.running_states(second), outputs, second.prompt, position


def assert_same_bits(resumed, cold):
    states, outputs, _, position = resumed
    assert outputs.tobytes() == cold[1][position:].tobytes()
    assert states == cold[0]
    assert not np.isnan(outputs).any()


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 30), LAYOUTS)
def test_equal_bits_where_the_checkpoint_is_on_the_chunk_grid(num_tokens, num_suffix, conv_layout):
    options = {"geometry": ON_CHUNK_GRID, "conv_layout": conv_layout}
    num_suffix = min(num_suffix, 70 - num_tokens + 1)
    resumed = resume(draw_prompt(num_tokens), draw_prompt(num_suffix, seed=1), **options)
    assert_same_bits(resumed, cold_run(resumed[2], plan=False, **options))


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 4), LAYOUTS)
def test_equal_bits_where_the_cold_run_is_cut_at_the_same_checkpoint(num_tokens, num_suffix, conv_layout):
    options = {"conv_layout": conv_layout}
    resumed = resume(draw_prompt(num_tokens), draw_prompt(num_suffix, seed=1), **options)
    cold = cold_run(resumed[2], **options)
    assert cold[2][0] == resumed[3]
    assert_same_bits(resumed, cold)


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 30))
def test_within_tolerance_where_the_cold_run_is_cut_elsewhere(num_tokens, num_suffix):
    num_suffix = min(num_suffix, 70 - num_tokens + 1)
    states, outputs, prompt, position = resume(draw_prompt(num_tokens), draw_prompt(num_suffix, seed=1))
    cold_states, cold_outputs, _ = cold_run(prompt, plan=False)
    np.testing.assert_allclose(outputs, cold_outputs[position:], **SCAN_TOLERANCE)
    assert states[0] == cold_states[0], "the gated delta layer runs token by token"
    for (window, state), (cold_window, cold_state) in zip(states, cold_states, strict=True):
        for got, expected in ((window, cold_window), (state, cold_state)):
            np.testing.assert_allclose(np.frombuffer(got, "f4"), np.frombuffer(expected, "f4"), **SCAN_TOLERANCE)


@pytest.mark.parametrize("chunk_size", [1, 3, 64])
def test_any_chunk_size(chunk_size):
    resumed = resume(draw_prompt(45), draw_prompt(4, seed=1), chunk_size=chunk_size)
    assert_same_bits(resumed, cold_run(resumed[2], chunk_size=chunk_size))


def test_a_checkpoint_changes_no_output_of_the_token_by_token_layer():
    with_checkpoint, without = cold_run(draw_prompt(45)), cold_run(draw_prompt(45), plan=False)
    assert with_checkpoint[2] is not None
    assert with_checkpoint[0][0] == without[0][0]
    np.testing.assert_allclose(with_checkpoint[1], without[1], **SCAN_TOLERANCE)


def test_nothing_else_in_the_pool_is_written():
    engine = Engine()
    before = engine.snapshot()
    rows = [engine.new_request(draw_prompt(count, seed)) for seed, count in enumerate((40, 9, 23))]
    _, checkpoint = engine.step(*((row, len(row.prompt)) for row in rows))
    after = engine.snapshot()
    running = [int(row.table[(len(row.prompt) - 1) // 16]) for row in rows]
    written = {int(block) for block in checkpoint.state_indices if block} | set(running)
    assert len(written) == 5, "three running states and two checkpoints"
    for block in range(NUM_BLOCKS):
        assert (before[block] == after[block]) == (block not in written)
    for pool in engine.states:
        assert not np.isnan(pool.conv.states[sorted(written)]).any()
        assert not np.isnan(pool.recurrent.states[sorted(written)]).any()
        assert np.isnan(pool.conv.states[0]).all(), "the null block"


def test_a_block_that_was_never_written_is_noticed():
    engine = Engine()
    first = engine.new_request(draw_prompt(40))
    _, (position, _) = engine.prefill(first)
    second = engine.new_request(draw_prompt(50), first, position, block=NUM_BLOCKS - 20)
    outputs, _ = engine.prefill(second)
    assert np.isnan(outputs).all()


def test_a_block_of_another_request_is_noticed():
    engine = Engine()
    first, other = engine.new_request(draw_prompt(40)), engine.new_request(draw_prompt(40, seed=9))
    _, (position, _) = engine.prefill(first)
    _, (_, wrong) = engine.prefill(other)
    prompt = np.concatenate([first.prompt[:position], draw_prompt(4, seed=1)])
    outputs, _ = engine.prefill(engine.new_request(prompt, first, position, wrong))
    assert not np.allclose(outputs, cold_run(prompt)[1][position:], atol=0.01)


def test_a_mixed_batch_computes_what_its_rows_compute_alone():
    prompts = [draw_prompt(count, seed) for seed, count in enumerate((20, 50, 35, 18))]
    together, alone = Engine(), [Engine() for _ in prompts]
    shared = [together.new_request(prompt) for prompt in prompts]
    single = [engine.new_request(prompt) for engine, prompt in zip(alone, prompts, strict=True)]
    first, second = (16, 0, 16, 17), (1, 50, 19, 1)  # then: decode, prefill, prefill from a state, decode
    together.step(*((shared[row], first[row]) for row in (0, 2, 3)))
    outputs, checkpoint = together.step(*zip(shared, second, strict=True), plan_rows=[2, 1])
    assert checkpoint.request_rows.tolist() == [2, 1]
    assert checkpoint.offsets_cpu.tolist() == [16, 48]
    for row, (engine, request) in enumerate(zip(alone, single, strict=True)):
        if first[row]:
            engine.step((request, first[row]))
        (expected,), own = engine.step((request, second[row]))
        assert outputs[row].tobytes() == expected.tobytes()
        assert together.running_states(shared[row]) == engine.running_states(request)
        if row in (1, 2):
            block = checkpoint.state_indices[[2, 1].index(row)]
            assert together.block_bytes(block) == engine.block_bytes(own.state_indices[0])


def test_resumed_rows_share_one_checkpoint_in_one_batch():
    engine = Engine()
    first = engine.new_request(draw_prompt(40))
    _, (position, block) = engine.prefill(first)
    prompts = [np.concatenate([first.prompt[:position], draw_prompt(count, count)]) for count in (4, 2, 4)]
    rows = [engine.new_request(prompt, first, position, block) for prompt in prompts]
    outputs, _ = engine.step(*((row, len(row.prompt) - position) for row in rows))
    for row, output, prompt in zip(rows, outputs, prompts, strict=True):
        cold = cold_run(prompt)
        assert output.tobytes() == cold[1][position:].tobytes()
        assert engine.running_states(row) == cold[0]


@pytest.mark.parametrize("start", [0, 8])
def test_an_offset_shorter_than_the_window_takes_taps_from_the_initial_state(start):
    options = {"geometry": CheckpointGeometry(2, 1, 2, checkpoint_alignment=1)}
    engine, prompt = Engine(**options), draw_prompt(start + 3)
    first = engine.new_request(prompt)
    if start:
        engine.step((first, start), plan_rows=[])
    _, (position, block) = engine.prefill(first)
    assert position - start == 2 < engine.model.blocks[0].spec.state_len
    exact = Engine(**options)
    stopped = exact.new_request(prompt[:position])
    for count in filter(None, (start, 2)):
        exact.step((stopped, count), plan_rows=[])
    assert engine.block_bytes(block) == exact.running_states(stopped)
    second = engine.new_request(np.concatenate([prompt[:position], [5, 6]]), first, position, block)
    outputs, _ = engine.prefill(second)
    np.testing.assert_allclose(outputs, cold_run(second.prompt, plan=False)[1][position:], **SCAN_TOLERANCE)


@pytest.mark.parametrize("state_dtype", ["float16", "bfloat16"])
def test_states_stored_in_half_precision(state_dtype):
    prompt, suffix = draw_prompt(40), draw_prompt(20, seed=1)
    _, outputs, whole, position = resume(prompt, suffix, state_dtype=state_dtype)
    cold_outputs = cold_run(whole, plan=False)[1][position:]
    np.testing.assert_allclose(outputs, cold_outputs, rtol=0, atol=STORAGE_TOLERANCE[state_dtype])
    assert outputs.tobytes() != cold_outputs.tobytes()


@pytest.mark.parametrize("state_dtype", ["float16", "bfloat16"])
def test_half_precision_checkpoints_are_the_float32_ones_rounded(state_dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    stored_as = np.dtype(np.float16) if state_dtype == "float16" else np.dtype(ml_dtypes.bfloat16)
    half, full = Engine(state_dtype=state_dtype), Engine()
    blocks = [engine.prefill(engine.new_request(draw_prompt(40)))[1][1] for engine in (half, full)]
    for half_pool, full_pool in zip(half.states, full.states, strict=True):
        expected = full_pool.recurrent.states[blocks[1]].astype(stored_as)
        assert half_pool.recurrent.states[blocks[0]].tobytes() == expected.tobytes()
        assert half_pool.conv.states[blocks[0]].tobytes() == full_pool.conv.states[blocks[1]].tobytes()


def test_a_chain_of_requests_each_resuming_from_the_last():
    engine, suffixes = Engine(), [draw_prompt(20, seed) for seed in range(4)]
    request = engine.new_request(draw_prompt(10, seed=7))
    _, found = engine.prefill(request)
    assert found is None, "a prompt within one block has no checkpoint"
    request = engine.new_request(draw_prompt(20, seed=7))
    _, found = engine.prefill(request)
    for suffix in suffixes[:2]:
        position, block = found
        prompt = np.concatenate([request.prompt[:position], suffix])
        request = engine.new_request(prompt, request, position, block)
        outputs, found = engine.prefill(request)
        np.testing.assert_allclose(outputs, cold_run(prompt, plan=False)[1][position:], **SCAN_TOLERANCE)
        assert found is not None
        assert found[0] == (len(prompt) - 1) // 4 * 4
