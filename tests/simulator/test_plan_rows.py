"""Device-side planning in the simulator: the recordings, random batches, and what only the host refuses."""

import numpy as np
import pytest
from hypothesis import given, settings

from numba_ckpt.checkpoint import PrefillCheckpointBuilder
from numba_ckpt.kernels.plan_rows import PlannedRows, plan_rows
from numba_ckpt.planning import CheckpointGeometry, DeviceBatchLayout
from numba_ckpt.testing import SimulatedDevice
from tests.golden import builder_cases
from tests.kernels.planned_rows import buffers, random_batches

pytestmark = pytest.mark.usefixtures("tiny_grids")


def plan_on(device, batch, rows, geometry, num_rows):
    out = PlannedRows(*map(device.put, buffers(num_rows)))
    arrays = (device.put(getattr(batch, name)) for name in DeviceBatchLayout.__slots__)
    plan_rows(DeviceBatchLayout(*arrays), device.put(rows), geometry, out)
    assert (device.num_launches, device.num_copies, device.num_waits) == (1, 0, 0)
    return [device.get(array).tolist() for array in out]


@settings(max_examples=40, deadline=None)
@given(random_batches())
def test_the_device_plans_what_the_host_plans(problem):
    geometry, batch, rows, _ = problem
    expected = buffers(rows.size + 3)
    plan_rows(batch, rows, geometry, expected)
    with SimulatedDevice.attached() as device:
        assert plan_on(device, batch, rows, geometry, rows.size + 3) == [array.tolist() for array in expected]


def test_recorded_builders_plan_on_the_device(device):
    built = 0
    for case in builder_cases():
        builder = PrefillCheckpointBuilder(case.geometry, case.cache_mode, case.num_checkpoint_blocks)
        lists = case.seq_lens, case.query_start_loc, case.block_table
        arrays = (device.put(np.array(values, np.int32)) for values in lists)
        rows = device.put(np.array(case.request_rows))
        waits, metadata = device.num_waits, builder.build(DeviceBatchLayout(*arrays), rows)
        assert device.num_waits == waits
        if metadata is None:
            assert case.result is None
            continue
        built += 1
        expected = case.result or {key: [0] * len(case.request_rows) for key in ("checkpoint_offsets", "state_indices")}
        assert device.get(metadata.checkpoint_offsets).tolist() == expected["checkpoint_offsets"]
        assert device.get(metadata.state_indices).tolist() == expected["state_indices"]
    assert built > 68
    assert (device.num_launches, device.num_copies) == (built, 0)


def test_what_a_host_would_refuse_has_no_checkpoint(device):
    geometry = CheckpointGeometry(8, 32, 8, checkpoint_alignment=8)
    table = np.array([[1, 2, 3, 4], [5, 6, 2**40, 8], [9, 9, 9, 9], [9, 9, 9, 9]])
    seq_lens, starts = np.array([100, 100, 20, 300]), np.array([0, 100, 200, 260, 560])
    batch = DeviceBatchLayout(seq_lens, starts, table)
    # Known; a block beyond int32; a query longer than its sequence; no such column; padding; rows out of the batch.
    offsets, cols, indices = plan_on(device, batch, np.array([0, 1, 2, 3, -1, 4, -7]), geometry, 8)
    assert offsets == [96, 96, 0, 0, 0, 0, 0, 0]
    assert cols == [2, 2, -1, -1, -1, -1, -1, -1]
    assert indices == [3, 0, 0, 0, 0, 0, 0, 0]
