"""The metadata builder against the recorded steps (set h), from end to end."""

import numpy as np
import pytest

from numba_ckpt.checkpoint import PrefillCheckpointBuilder
from numba_ckpt.errors import ArgumentError
from numba_ckpt.planning import BatchLayout
from tests.golden import builder_cases

RESULTS = {
    "checkpoint_offsets": ("checkpoint_offsets", np.int32),
    "state_indices": ("state_indices", np.int32),
    "offsets_cpu": ("offsets", np.int32),
    "request_rows": ("request_rows", np.int64),
    "block_cols": ("block_cols", np.int64),
}


def build(case, arrange=np.array, rows=list, dtype=np.int32):
    batch = BatchLayout(
        arrange(case.seq_lens, dtype), arrange(case.query_start_loc, dtype), np.array(case.block_table, np.int32)
    )
    builder = PrefillCheckpointBuilder(case.geometry, case.cache_mode, case.num_checkpoint_blocks)
    return builder.build(batch, rows(case.request_rows))


def test_the_early_exits_are_all_recorded():
    reasons = [
        (case.cache_mode != "align", case.num_checkpoint_blocks == 0, case.geometry is None)
        for case in builder_cases()
        if case.result is None
    ]
    assert len(reasons) == 52
    assert all(any(reason[which] for reason in reasons) for which in range(3))
    assert (False, False, False) in reasons  # no row with a checkpoint


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("rows", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_recorded_steps(dtype, rows):
    for case in builder_cases():
        metadata = build(case, rows=rows, dtype=dtype)
        assert (metadata is None) is (case.result is None), case
        if metadata is None:
            continue
        for name, (recorded, width) in RESULTS.items():
            array = getattr(metadata, name)
            assert array.dtype == width, name
            assert array.tolist() == case.result[recorded], (name, case)
        assert metadata.query_lens_cpu.tolist() == case.result["query_lens"]


def test_recorded_steps_of_another_group():
    checked = 0
    for case in builder_cases():
        metadata = build(case)
        if metadata is not None:
            before = metadata.state_indices.tolist()
            other = metadata.regather_state_indices(np.array(case.other_block_table, np.int32))
            assert other.state_indices.tolist() == case.result["regathered_state_indices"]
            assert other.state_indices.dtype == np.int32
            assert other is not metadata
            assert metadata.state_indices.tolist() == before
            assert other.checkpoint_offsets.tolist() == case.result["checkpoint_offsets"]
            checked += 1
    assert checked == 68


def test_metadata_keeps_rows_of_its_own():
    case = next(case for case in builder_cases() if case.result is not None)
    rows = np.array(case.request_rows)
    metadata = build(case, rows=lambda _: rows)
    rows[:] = 0
    other = metadata.regather_state_indices(np.array(case.other_block_table, np.int32))
    assert other.state_indices.tolist() == case.result["regathered_state_indices"]


@pytest.mark.parametrize("change", [{"cache_mode": "all"}, {"num_checkpoint_blocks": 0}, {"geometry": None}])
def test_nothing_is_looked_at_where_there_is_nothing_to_build(change):
    case = next(case for case in builder_cases() if case.result is not None)._replace(**change)
    assert build(case, rows=lambda _: "no rows") is None


def test_the_table_must_hold_exactly_the_rows_and_columns_needed():
    case = next(case for case in builder_cases() if case.result is not None and len(case.block_table) > 1)
    num_rows, num_cols = max(case.request_rows) + 1, max(case.result["block_cols"]) + 1
    batch = np.array(case.seq_lens), np.array(case.query_start_loc)
    builder = PrefillCheckpointBuilder(case.geometry, case.cache_mode, case.num_checkpoint_blocks)
    table = np.array(case.block_table, np.int32)[:num_rows, :num_cols]
    metadata = builder.build(BatchLayout(*batch, table), case.request_rows)
    assert metadata.table_extent == (num_rows, num_cols)
    assert metadata.state_indices.tolist() == case.result["state_indices"]
    for small in (table[:-1], table[:, :-1]):
        with pytest.raises(ArgumentError, match="block_table"):
            builder.build(BatchLayout(*batch, small), case.request_rows)
        with pytest.raises(ArgumentError, match="block_table"):
            metadata.regather_state_indices(small)
