"""The kernels behind a step's metadata equal their host loops, in the simulator."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.kernels import _launch
from numba_ckpt.kernels.gather_state_indices import gather_state_indices
from numba_ckpt.kernels.running_state_indices import StateIndices, StateRows, running_state_indices
from numba_ckpt.kernels.token_to_req_indices import token_to_req_indices
from numba_ckpt.testing import SimulatedDevice
from tests.attention.test_recurrent_state import builder_of, common_of

NUM_COLS, NUM_ROWS, BLOCK = 10, 9, 8


@pytest.fixture(autouse=True, scope="module")
def tiny_grids():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("THREADS_PER_BLOCK", "MAX_GRID_COLS", "MAX_GRID_ROWS"):
            patch.setattr(_launch, name, 2)
        yield


@pytest.fixture(scope="module")
def device():
    with SimulatedDevice.attached() as simulated:
        yield simulated


rows = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=6)


@settings(deadline=None, max_examples=25)
@given(rows, st.integers(0, 6), st.booleans(), st.integers(1, 3))
def test_running_states(device, lens, num_decodes, counts, num_slots):
    num_decodes = min(num_decodes, len(lens))
    starts = np.concatenate(([0], np.cumsum([query for _, query in lens]))).astype(np.int32)
    seq_lens = np.array([computed + query for computed, query in lens], np.int32)
    kept = [min(row % num_slots + 1, max(computed, 1)) for row, (computed, _) in enumerate(lens)]
    accepted = np.array(kept, np.int32) if counts else None
    table = np.arange(1, len(lens) * NUM_COLS + 1, dtype=np.int32).reshape(len(lens), NUM_COLS)

    def run(put, buffers):
        sizes = len(lens), num_decodes, BLOCK, int(seq_lens.max())
        given = StateRows(put(seq_lens), put(starts), None if accepted is None else put(accepted), *sizes)
        running_state_indices(put(table), given, buffers)
        return buffers

    poisoned = [
        np.full(NUM_ROWS, -9, np.int32),
        np.full((NUM_ROWS, num_slots), -9, np.int32),
        np.ones(NUM_ROWS, np.bool_),
    ]
    on_host = run(lambda array: array, StateIndices(*(array.copy() for array in poisoned)))
    on_device = run(device.put, StateIndices(*map(device.put, poisoned)))
    for ours, theirs in zip(on_device, on_host, strict=True):
        assert np.array_equal(device.get(ours), theirs)
    assert not on_host.initial[len(lens) :].any()


def test_blocks_beyond_int32_are_null_blocks_on_the_device(device):
    table = np.array([[4, 6, 2**32 + 5, 8], [-7, 6, 7, 8]])
    arrays = (device.put(np.array(values)) for values in ([17, 3], [0, 2, 5], [2]))
    buffers = np.full(2, -9, np.int32), np.full((2, 2), -9, np.int32), np.ones(2, np.bool_)
    out = StateIndices(*map(device.put, buffers))
    running_state_indices(device.put(table), StateRows(*arrays, 2, 1, 8, 17), out)
    assert [device.get(array).tolist() for array in out] == [[0, 0], [[6, 0], [0, 0]], [True, False]]


def test_padding_of_a_table_is_kept_on_both_sides(device):
    # B15: an id of -1 is never clamped to a block; what does not fit int32 is nobody's block.
    table, rows, cols = np.array([[-1, 7], [3, 2**32 + 5]]), np.array([0, 0, 1, 1]), np.array([0, 1, -1, 0])
    on_host = gather_state_indices(table, rows, cols)
    assert on_host.tolist() == [-1, 7, 0, 3]
    arrays = device.put(table), device.put(rows), device.put(cols)
    assert device.get(gather_state_indices(*arrays, (2, 2))).tolist() == on_host.tolist()
    beyond = device.put(table), device.put(np.array([1])), device.put(np.array([1]))
    assert device.get(gather_state_indices(*beyond, (2, 2))).tolist() == [0]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 5))
def test_requests_of_tokens(device, query_lens, padding):
    starts = np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32)
    poisoned = np.full(int(starts[-1]) + padding, -9, np.int32)
    expected = [row for row, length in enumerate(query_lens) for _ in range(length)] + [-1] * padding
    arguments = len(query_lens), max(query_lens)
    assert token_to_req_indices(starts, *arguments, poisoned.copy()).tolist() == expected
    got = token_to_req_indices(device.put(starts), *arguments, device.put(poisoned))
    assert device.get(got).tolist() == expected


def on_device(device, common):
    """The step with everything but the host's mirrors on the device."""
    host = common.batch
    lens = device.put(host.seq_lens)
    batch = replace(
        host, query_start_loc=device.put(host.query_start_loc), seq_lens=lens, seq_lens_cpu_upper_bound=host.seq_lens
    )
    return common._replace(
        batch=batch, block_table=device.put(common.block_table), slot_mapping=device.put(common.slot_mapping)
    )


def test_recurrent_layers_read_on_the_device_what_they_read_on_the_host(device):
    builders, others = [builder_of(2), builder_of(2)], [builder_of(2), builder_of(2)]
    for rows in ([(9, 3), (12, 1), (0, 20), (8, 24)], [(10, 2), (3, 0)], [(0, 17)]):
        common = common_of(rows, flags=[query > 3 for _, query in rows])
        accepted = np.array([min(2, max(computed, 1)) for computed, _ in rows])
        moved = on_device(device, common)
        ours = builders[0].build(moved, num_accepted_tokens=device.put(accepted))
        theirs = builders[1].build(common, num_accepted_tokens=accepted)
        check_same(device, ours, theirs)
        tables = device.put(common.block_table + 300), common.block_table + 300
        again = zip(others, (ours, theirs), tables, strict=True)
        check_same(device, *(other.update_block_table(got, table, None) for other, got, table in again))
        check_same(device, ours, theirs)


def check_same(device, ours, theirs):
    for got, expected in zip(ours.state_indices, theirs.state_indices, strict=True):
        assert np.array_equal(device.get(got), expected)
    assert (ours.num_decodes, ours.num_prefills) == (theirs.num_decodes, theirs.num_prefills)
    assert (ours.checkpoint is None) == (theirs.checkpoint is None)
    if theirs.checkpoint is not None:
        assert np.array_equal(device.get(ours.checkpoint.state_indices), theirs.checkpoint.state_indices)
        assert np.array_equal(ours.checkpoint.offsets_cpu, theirs.checkpoint.offsets_cpu)
