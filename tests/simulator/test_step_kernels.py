"""The kernels behind a step's metadata equal their host loops, in the simulator."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.attention import StepBatch
from numba_ckpt.kernels import _launch
from numba_ckpt.kernels.running_state_indices import StateIndices, StateRows, running_state_indices
from numba_ckpt.kernels.token_to_req_indices import token_to_req_indices
from numba_ckpt.testing import SimulatedDevice
from tests.attention.test_build_metadata_golden import CASES, check_case

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
    accepted = np.arange(1, len(lens) + 1, dtype=np.int32) % num_slots + 1 if counts else None
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


def test_a_batch_on_the_device_finds_its_tokens_once(device):
    starts = np.array([0, 3, 4, 4], np.int32)
    lens = np.array([3, 9, 0], np.int32)
    batch = StepBatch(3, 6, device.put(starts), starts, device.put(lens), 3, 9, seq_lens_cpu_upper_bound=lens)
    before = device.num_launches
    first = batch.token_to_req_indices()
    assert device.get(first).tolist() == [0, 0, 0, 1, -1, -1]
    assert batch.token_to_req_indices() is first
    assert device.num_launches == before + 1


@pytest.mark.parametrize("case", CASES[:12], ids=range(12))
def test_recorded_metadata(device, case):
    check_case(case, device.put, device.get)
