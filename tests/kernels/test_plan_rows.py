"""Planning from a batch's arrays on the host: the recordings, the host's planner, and mistakes."""

import numpy as np
import pytest
from hypothesis import given

from numba_ckpt.checkpoint import PrefillCheckpointBuilder
from numba_ckpt.errors import ArgumentError
from numba_ckpt.kernels.plan_rows import PlannedRows, plan_rows
from numba_ckpt.planning import BatchLayout, CheckpointGeometry, DeviceBatchLayout, compute_prefill_checkpoints
from tests.golden import builder_cases, plan_cases
from tests.kernels.planned_rows import batch_of, buffers, random_batches

GEOMETRY = CheckpointGeometry(8, 32, 8, checkpoint_alignment=8)


def test_recorded_batches():
    for case in plan_cases():
        num_rows = len(case.seq_lens)
        batch = batch_of(case.seq_lens, case.query_lens, max(case.block_cols, default=-1) + 1)
        out = buffers(num_rows + 2)
        plan_rows(batch, np.arange(num_rows), case.geometry, out)
        assert out.offsets.tolist() == [*case.offsets, 0, 0]
        assert out.block_cols.tolist() == [*case.block_cols, -1, -1]
        found = [row + 1 if col >= 0 else 0 for row, col in enumerate(case.block_cols)]
        assert out.state_indices.tolist() == [*found, 0, 0]


def test_recorded_builders_make_the_same_plan_on_either_side():
    for case in builder_cases():
        builder = PrefillCheckpointBuilder(case.geometry, case.cache_mode, case.num_checkpoint_blocks)
        arrays = np.array(case.seq_lens), np.array(case.query_start_loc), np.array(case.block_table, np.int32)
        metadata = builder.build(DeviceBatchLayout(*arrays), case.request_rows)
        if case.result is None:
            assert metadata is None or not metadata.checkpoint_offsets.any()
            continue
        assert metadata.checkpoint_offsets.tolist() == case.result["checkpoint_offsets"]
        assert metadata.state_indices.tolist() == case.result["state_indices"]
        other = metadata.regather_state_indices(np.array(case.other_block_table, np.int32))
        assert other.state_indices.tolist() == case.result["regathered_state_indices"]
        assert metadata.offsets_cpu is metadata.query_lens_cpu is None


@given(random_batches())
def test_the_plan_is_the_hosts(problem):
    geometry, batch, rows, query_lens = problem
    out = buffers(rows.size + 1)
    plan_rows(batch, rows, geometry, out)
    wanted = np.flatnonzero(rows >= 0)
    plan = compute_prefill_checkpoints(batch.seq_lens[rows[wanted]], query_lens[rows[wanted]], geometry)
    offsets, cols = np.zeros(rows.size + 1, np.int32), np.full(rows.size + 1, -1)
    offsets[wanted], cols[wanted] = plan.offsets, plan.block_cols
    assert out.offsets.tolist() == offsets.tolist()
    assert out.block_cols.tolist() == cols.tolist()
    blocks = [batch.block_table[rows[index], col] if col >= 0 else 0 for index, col in enumerate(cols)]
    assert out.state_indices.tolist() == blocks


def test_buffers_of_the_caller_are_what_the_metadata_reads():
    builder, out = PrefillCheckpointBuilder(GEOMETRY), buffers(4)
    batch = DeviceBatchLayout(np.array([100, 60]), np.array([0, 100, 160]), np.arange(1, 9).reshape(2, 4))
    metadata = builder.build(batch, np.array([1, 0]), out)
    assert np.shares_memory(metadata.checkpoint_offsets, out.offsets)
    assert metadata.checkpoint_offsets.tolist() == [56, 96]
    assert metadata.state_indices.tolist() == [5, 3]
    assert out.offsets.tolist() == [56, 96, 0, 0]


TABLE, LENS, STARTS, ROWS = np.ones((2, 4), np.int32), np.array([100, 60]), np.array([0, 100, 160]), np.array([0, 1])
BAD = {
    "row beyond the batch": ({"rows": np.array([2])}, "request_rows: expected rows in .0, 2., or -1, got 2 at entry 0"),
    "row below padding": ({"rows": np.array([0, -2])}, "request_rows: .*got -2 at entry 1"),
    "float rows": ({"rows": np.array([0.0])}, "request_rows: expected"),
    "rows of two axes": ({"rows": np.zeros((1, 1), int)}, "request_rows: expected"),
    "falling starts": ({"starts": np.array([0, 100, 90])}, "seq_lens: expected ascending starts"),
    "query beyond the sequence": ({"lens": np.array([99, 60])}, "seq_lens: .*99 tokens, queries at .0, 100., in row 0"),
    "negative length": ({"lens": np.array([-5, 60])}, "seq_lens: .*got -5 tokens"),
    "negative start": ({"starts": np.array([-1, 9, 9])}, "seq_lens: .*queries at .-1, 9."),
    "narrow table": ({"table": TABLE[:, :1]}, "block_table: .*got 1, too few for the 100 tokens of row 0"),
    "short table": ({"table": TABLE[:1]}, "request_rows: expected rows in .0, 1."),
    "ids beyond int32": ({"table": np.full((2, 4), 2**31)}, "block_table: expected block ids that fit int32"),
    "float table": ({"table": TABLE * 1.0}, "block_table: expected"),
    "no starts": ({"starts": np.array([], int)}, "query_start_loc: expected N . 1 entries"),
    "no batch": ({"batch": BatchLayout(LENS, STARTS, TABLE)}, "batch: expected an object of DeviceBatchLayout"),
    "no geometry": ({"geometry": 8}, "geometry: expected an object of CheckpointGeometry"),
    "few buffers": ({"out": buffers(1)}, "offsets: expected at least 2 entries, got 1"),
    "no buffers": ({"out": tuple(buffers(2))}, "out: expected an object of PlannedRows"),
    "wide offsets": ({"out": buffers(2)._replace(offsets=np.zeros(2, np.int64))}, "offsets: expected int32, got int64"),
    "uneven buffers": ({"out": buffers(2)._replace(block_cols=np.zeros(3, int))}, "block_cols: expected"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_mistakes_are_refused(changes, message):
    arguments = {"lens": LENS, "starts": STARTS, "table": TABLE, "rows": ROWS, "geometry": GEOMETRY} | changes
    batch = changes.get("batch", DeviceBatchLayout(arguments["lens"], arguments["starts"], arguments["table"]))
    out = changes.get("out", buffers(2))
    before = [array.copy() for array in out]
    with pytest.raises(ArgumentError, match="^" + message):
        plan_rows(batch, arguments["rows"], arguments["geometry"], out)
    for array, held in zip(out, before, strict=True):
        np.testing.assert_array_equal(array, held)


def test_buffers_are_for_lengths_on_the_device():
    builder = PrefillCheckpointBuilder(GEOMETRY)
    with pytest.raises(ArgumentError, match="out: expected None for lengths on the host, got PlannedRows"):
        builder.build(BatchLayout(LENS, STARTS, TABLE), [0], PlannedRows(*buffers(1)))
