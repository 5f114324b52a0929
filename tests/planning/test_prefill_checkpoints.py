"""The planner against the recorded batches (set c), for every way of handing in lengths."""

import numpy as np
import pytest

from numba_ckpt.planning import CheckpointGeometry, CheckpointPlan, compute_prefill_checkpoints, plan_into
from numba_ckpt.planning.reference import reference_plan
from tests.golden import plan_cases

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
GEOMETRY = CheckpointGeometry(4, 16, 4, checkpoint_alignment=4)


def strided(values, dtype):
    """An array of every third element, the ones between filled with what would show up in a plan."""
    wide = np.full(3 * len(values), 97, dtype)
    wide[::3] = values
    return wide[::3]


def backwards(values, dtype):
    return np.array(values[::-1], dtype)[::-1]


def read_only(values, dtype):
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def check(plan, offsets, block_cols):
    assert (plan.offsets.dtype, plan.block_cols.dtype) == (np.int32, np.int64)
    assert plan.offsets.tolist() == offsets
    assert plan.block_cols.tolist() == block_cols
    assert plan.any is any(offsets)


@pytest.mark.parametrize("convert", [lambda v, _: v, lambda v, _: tuple(v)], ids=["list", "tuple"])
def test_recorded_batches_as_sequences(convert):
    for case in plan_cases():
        plan = compute_prefill_checkpoints(convert(case.seq_lens, 0), convert(case.query_lens, 0), case.geometry)
        check(plan, case.offsets, case.block_cols)


@pytest.mark.parametrize("arrange", [np.array, strided, backwards, read_only])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_recorded_batches_as_arrays(dtype, arrange):
    for case in plan_cases():
        plan = compute_prefill_checkpoints(
            arrange(case.seq_lens, dtype), arrange(case.query_lens, dtype), case.geometry
        )
        check(plan, case.offsets, case.block_cols)


def test_recorded_batches_equal_the_oracle():
    assert sum(len(case.seq_lens) for case in plan_cases()) == 32056
    for case in plan_cases():
        assert reference_plan(case.seq_lens, case.query_lens, case.geometry) == (case.offsets, case.block_cols)


@pytest.mark.parametrize("query_dtype", INTEGERS)
@pytest.mark.parametrize("seq_dtype", INTEGERS)
def test_lengths_of_any_two_integer_dtypes(seq_dtype, query_dtype):
    seq_lens = [0, 1, 4, 17, 33, 40, 100, 127, 127, 120]
    query_lens = [0, 1, 4, 17, 33, 36, 60, 127, 3, 100]
    plan = compute_prefill_checkpoints(np.array(seq_lens, seq_dtype), np.array(query_lens, query_dtype), GEOMETRY)
    check(plan, *reference_plan(seq_lens, query_lens, GEOMETRY))


@pytest.mark.parametrize("dtype", [">i4", ">i8"])
def test_lengths_of_foreign_byte_order(dtype):
    plan = compute_prefill_checkpoints(np.array([100], dtype), np.array([100], dtype), GEOMETRY)
    check(plan, [96], [5])


@pytest.mark.parametrize("seq_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("outputs", [np.s_[:], np.s_[::2], np.s_[::-1]], ids=["contiguous", "strided", "backwards"])
def test_outputs_of_any_stride_and_nothing_beside_them(seq_dtype, outputs):
    case = max(plan_cases(), key=lambda case: sum(map(bool, case.offsets)))
    size = len(case.seq_lens)
    offsets, block_cols = np.full(2 * size, -7, np.int32), np.full(2 * size, -7, np.int64)
    views = [array[:size][outputs] if outputs != np.s_[::2] else array[outputs] for array in (offsets, block_cols)]
    lengths = np.array(case.seq_lens, seq_dtype), np.array(case.query_lens, seq_dtype)
    assert plan_into(*lengths, case.geometry, *views) is any(case.offsets)
    assert views[0].tolist() == case.offsets
    assert views[1].tolist() == case.block_cols
    views[0][:] = views[1][:] = -7
    assert (offsets == -7).all()
    assert (block_cols == -7).all()


def test_out_is_written_and_returned():
    out = CheckpointPlan(np.full(2, 9, np.int32), np.full(2, 9, np.int64), any=False)
    plan = compute_prefill_checkpoints([100, 3], [100, 3], GEOMETRY, out=out)
    assert plan.offsets is out.offsets
    assert plan.block_cols is out.block_cols
    check(plan, [96, 0], [5, -1])


def test_inputs_are_left_alone():
    seq_lens, query_lens = np.array([100, 40]), np.array([100, 36])
    compute_prefill_checkpoints(seq_lens, query_lens, GEOMETRY)
    assert (seq_lens.tolist(), query_lens.tolist()) == ([100, 40], [100, 36])


@pytest.mark.parametrize("empty", [[], (), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint16)])
def test_a_batch_without_rows(empty):
    check(compute_prefill_checkpoints(empty, empty, GEOMETRY), [], [])


def test_any_is_false_without_an_alignment():
    case = max(plan_cases(), key=lambda case: sum(case.offsets))
    mute = CheckpointGeometry(case.geometry.hash_block_size, case.geometry.state_block_size, 1, None)
    plan = compute_prefill_checkpoints(case.seq_lens, case.query_lens, mute)
    check(plan, [0] * len(case.seq_lens), [-1] * len(case.seq_lens))


@pytest.mark.parametrize("edge", [2**31, 2**32, 2**40, 2**50, 2**53, 2**62, 2**63])
@pytest.mark.parametrize("dtype", [None, np.int64, np.uint64])
def test_sequences_longer_than_32_bits(edge, dtype):
    geometry = CheckpointGeometry(16, 512, 16, checkpoint_alignment=16)
    seq_lens = [edge - step for step in (1, 2, 16, 17, 600, 2**20)]
    # Some queries begin on the hash grid, some do not; all are short enough for int32 offsets.
    query_lens = [(seq_len % 16) + length for seq_len in seq_lens for length in (4096, 4095)]
    seq_lens = [seq_len for seq_len in seq_lens for _ in range(2)]
    wanted = reference_plan(seq_lens, query_lens, geometry)
    assert any(wanted[0])
    lengths = (seq_lens, query_lens) if dtype is None else (np.array(seq_lens, dtype), np.array(query_lens, dtype))
    check(compute_prefill_checkpoints(*lengths, geometry), *wanted)


def test_the_largest_offset_that_fits():
    geometry = CheckpointGeometry(1, 1, 1, checkpoint_alignment=1)
    check(compute_prefill_checkpoints([2**31], [2**31], geometry), [2**31 - 1], [2**31 - 2])
    assert reference_plan([2**31], [2**31], geometry) == ([2**31 - 1], [2**31 - 2])
