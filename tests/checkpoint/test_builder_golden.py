"""The metadata builder against the recorded steps (set h), from end to end."""

import numpy as np
import pytest

from numba_ckpt.checkpoint import PrefillCheckpointBuilder
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
