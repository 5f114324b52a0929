"""Failures reported for other engines (B01 and on) in the planner's field: each one, and the kind it stands for."""

import numpy as np
import pytest

from numba_ckpt._jit import host_loop
from numba_ckpt.planning import CheckpointGeometry, compute_prefill_checkpoints
from numba_ckpt.planning.reference import reference_checkpoint, reference_state_col
from numba_ckpt.rules import checkpoint_col, checkpoint_position, prefill_checkpoint, running_state_col


def plan_one(start, end, geometry):
    """Offset and column of the query [start, end)."""
    plan = compute_prefill_checkpoints([end], [end - start], geometry)
    assert plan.any is bool(plan.offsets[0])
    return int(plan.offsets[0]), int(plan.block_cols[0])


@host_loop
def _verdicts(starts, ends, unit, hash_block, state_block, alignment, offsets, cols):
    for row in range(starts.size):
        offsets[row], cols[row] = prefill_checkpoint(
            starts[row], ends[row], unit, hash_block, state_block, alignment, False, 0
        )


def test_b01_an_offset_off_the_backends_grid_is_declined():
    """Allocated by one side and dropped by the other, block 1 would be served unwritten."""
    geometry = CheckpointGeometry(8, 2048, 8, checkpoint_alignment=16)
    assert plan_one(8, 5000, geometry) == (0, -1)
    assert plan_one(0, 5000, geometry) == (4992, 1)


@pytest.mark.parametrize("alignment", [1, 2, 8, 16, 64, 100])
def test_b01_every_caller_gets_the_same_verdict(alignment):
    geometry = CheckpointGeometry(8, 64, 8, checkpoint_alignment=alignment)
    starts, ends = (lengths.ravel() for lengths in np.meshgrid(np.arange(0, 200, 4), np.arange(200, 400, 3)))
    plan = compute_prefill_checkpoints(ends, ends - starts, geometry)
    offsets, cols = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
    _verdicts(starts, ends, 8, 8, 64, alignment, offsets, cols)
    assert plan.offsets.tolist() == offsets.tolist()
    assert plan.block_cols.tolist() == cols.tolist()
    for row in range(0, starts.size, 7):
        start, end = int(starts[row]), int(ends[row])
        verdict = (int(offsets[row]), int(cols[row]))
        assert prefill_checkpoint(start, end, 8, 8, 64, alignment, False, 0) == verdict
        assert reference_checkpoint(end, end - start, geometry) == verdict
        assert plan_one(start, end, geometry) == verdict
    assert (plan.offsets % alignment == 0).all()
    assert plan.any


def test_b02_a_state_at_or_below_the_shared_end_needs_a_step_that_ends_there():
    """A whole prompt's one state lies in its unique part; a step cut at the junction leaves one that others can use."""
    geometry = CheckpointGeometry(528, 528, 528, checkpoint_alignment=1)
    assert plan_one(0, 2200, geometry) == (2112, 3)
    assert plan_one(0, 1500, geometry) == (1056, 1)
    # In the control the shared part is 1,600 tokens, and its boundary is where the unique part's would have begun.
    assert plan_one(0, 1600, geometry) == (1584, 2)


@pytest.mark.parametrize("unit", [16, 528, 1600])
def test_b02_a_step_that_ends_at_the_junction_keeps_the_last_boundary_before_it(unit):
    for shared in range(2 * unit + 1, 6 * unit, 97):
        position = checkpoint_position(shared, unit, False, 0)
        assert position == (shared - 1) // unit * unit
        assert shared - unit <= position < shared


def test_b04_short_prompts_with_the_eagle_block_dropped():
    assert [checkpoint_position(n, 1536, True, 0) for n in (1535, 3000, 3072)] == [0, 0, 1536]


@pytest.mark.parametrize("unit", [1, 16, 1536])
def test_b04_dropping_the_eagle_block_costs_at_least_one_unit_and_less_than_two(unit):
    for n in {*range(5 * unit + 2), 1535, 3000, 3072} if unit < 20 else range(0, 5 * unit, 7):
        position = checkpoint_position(n, unit, True, 0)
        if n < 2 * unit:
            assert position == 0
        else:
            assert unit <= n - position < 2 * unit
            assert position % unit == 0


@pytest.mark.parametrize(("prompt", "coarse", "fine"), [(480, 0, 464), (552, 528, 544), (979, 528, 976)])
def test_b05_a_finer_hash_unit_reuses_more_of_a_short_prompt(prompt, coarse, fine):
    assert checkpoint_position(prompt, 528, False, 0) == coarse
    assert checkpoint_position(prompt, 16, False, 0) == fine


@pytest.mark.parametrize("hash_block", [1, 16, 48, 528])
def test_b05_a_prompt_within_one_state_block_never_has_a_checkpoint(hash_block):
    """Its only column is the running state's: a smaller state block is what helps."""
    geometry = CheckpointGeometry(hash_block, 528, hash_block, checkpoint_alignment=1)
    prompts = list(range(529))
    assert not compute_prefill_checkpoints(prompts, prompts, geometry).any
    assert plan_one(0, 552, geometry) == (551 // hash_block * hash_block, 0)


def test_b05_a_smaller_state_block_gives_a_short_prompt_its_checkpoint():
    assert plan_one(0, 480, CheckpointGeometry(16, 528, 16, checkpoint_alignment=1)) == (0, -1)
    assert plan_one(0, 480, CheckpointGeometry(16, 96, 16, checkpoint_alignment=1)) == (464, 3)


@pytest.mark.parametrize(("block", "chunk"), [(528, 256), (2096, 256), (1600, 128), (7, 3)])
def test_b06_no_state_is_taken_from_beside_a_boundary(block, chunk):
    """A backend that exports at chunk ends only declines what lies between them, however the two grids meet."""
    geometry = CheckpointGeometry(block, block, block, checkpoint_alignment=chunk)
    ends = list(range(1, 12 * block, max(1, block // 5)))
    plan = compute_prefill_checkpoints(ends, ends, geometry)
    for end, offset in zip(ends, plan.offsets.tolist(), strict=True):
        assert offset % chunk == 0
        assert offset % block == 0
        boundary = (end - 1) // block * block
        wanted = boundary if boundary % chunk == 0 and boundary > 0 else 0
        assert offset == wanted


@pytest.mark.parametrize("chunk", [1, 16, 48])
def test_b11_steps_shorter_than_the_alignment_decline_and_the_running_state_moves_on(chunk):
    geometry = CheckpointGeometry(16, 128, 16, checkpoint_alignment=64)
    running = -1
    for start in range(0, 1024, chunk):
        end = min(start + chunk, 1024)
        assert plan_one(start, end, geometry) == (0, -1)
        assert running_state_col(start, 128) == running
        running = running_state_col(end, 128)
    assert running == 1024 // 128 - 1


def test_b78_the_next_turn_computes_little_more_than_what_it_adds():
    position = checkpoint_position(12_146, 1, False, 0)
    assert 12_146 + 31 - position == 31 + 1
    assert 12_146 + 31 - checkpoint_position(12_146, 64, False, 0) < 31 + 64


@pytest.mark.parametrize("unit", [1, 4, 64])
def test_b78_a_boundary_is_lost_by_at_most_one_unit_however_short_the_prompt(unit):
    geometry = CheckpointGeometry(unit, 8 * unit, unit, checkpoint_alignment=unit)
    for prompt in range(8 * unit + 1, 30 * unit, max(1, unit // 3)):
        offset, col = plan_one(0, prompt, geometry)
        assert 1 <= prompt - offset <= unit
        assert col == (prompt - 1) // (8 * unit) - 1


def test_b12_columns_count_state_blocks_not_attention_blocks():
    assert running_state_col(100_096, 2176) == 45
    assert running_state_col(100_096, 128) == 781


def test_b14_columns_stay_in_the_rows_of_the_state_group():
    """Prefixes below and above eight state blocks of 7,168 tokens, beside an attention group of 64."""
    for num_tokens in (1, 64, 7168, 7169, 8 * 7168, 8 * 7168 + 1, 20 * 7168):
        col = running_state_col(num_tokens, 7168)
        assert col == reference_state_col(num_tokens, 7168)
        assert col * 7168 < num_tokens <= (col + 1) * 7168


@pytest.mark.parametrize("state_block", [16, 528, 2176, 7168])
def test_b14_no_planned_column_lies_outside_a_table_that_holds_the_sequence(state_block):
    ends = np.arange(1, 40 * state_block, 61)
    hash_block = 16
    geometry = CheckpointGeometry(hash_block, state_block, hash_block, checkpoint_alignment=1)
    starts = ends // 3 // hash_block * hash_block
    plan = compute_prefill_checkpoints(ends, ends - starts, geometry)
    planned = plan.block_cols >= 0
    assert planned.any()
    num_cols = -(-ends // state_block)
    assert (plan.block_cols[planned] < num_cols[planned] - 1).all()
    for end in ends[::29].tolist():
        assert checkpoint_col(end, state_block) == reference_state_col(end, state_block) - 1
