"""Fast prefill on a device: staging and the starts of the logits' batch, in one launch each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.attention import FastPrefillHelper
from numba_ckpt.errors import ArgumentError, BackendMixError
from numba_ckpt.kernels.logits_start_loc import logits_start_loc
from numba_ckpt.kernels.stage_logits_indices import stage_logits_indices
from numba_ckpt.testing import SimulatedDevice, poisoned
from tests.golden.pack import read_records

pytestmark = pytest.mark.usefixtures("tiny_grids")


def padded_to(sizes):
    return lambda num_tokens, **_: min((size for size in sizes or () if size >= num_tokens), default=num_tokens)


def test_recorded_steps(device):
    for case in read_records("g4_fast_prefill_prepare")[:8]:
        buffer = device.put(np.zeros(case["max_num_tokens"], np.int32))
        helper = FastPrefillHelper(padded_to(case["capture_sizes"]), buffer)
        for step in case["steps"]:
            launches = device.num_launches
            metadata = helper.prepare(
                device.put(np.array(step["logits_indices"])),
                np.array(step["cu_num_logits"]),
                step["has_prefill"],
                step["cg_mode"] == "FULL",
                step["num_ubatches"],
            )
            assert device.num_waits == 0
            assert device.num_launches - launches == (metadata is not None)
            assert buffer.tolist() == step["buffer_after"]
            assert (metadata is None) == (step["result"] is None)
            if metadata is not None:
                assert device.owns(metadata.logits_indices_padded)
                assert metadata.logits_indices_padded.tolist() == step["result"]["logits_indices_padded"]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_starts_agree_with_the_host(rows):
    query_lens = np.array([query_len for query_len, _ in rows])
    num_logits = np.minimum([logits for _, logits in rows], query_lens)
    starts = np.concatenate(([0], np.cumsum(query_lens)))
    indices = [np.arange(end - count, end) for end, count in zip(starts[1:], num_logits, strict=True)]
    logits = np.concatenate(indices).astype(np.int32)
    expected = np.concatenate(([0], np.cumsum(num_logits)))
    assert logits_start_loc(starts, logits).tolist() == expected.tolist()
    with SimulatedDevice.attached() as device:
        found = logits_start_loc(device.put(starts.astype(np.int32)), device.put(logits))
        assert found.dtype == np.int32
        assert device.get(found).tolist() == expected.tolist()


def test_strided_indices_and_a_poisoned_buffer(device):
    buffer = device.put(poisoned((37,), np.int32))
    stage_logits_indices(device.put(np.arange(20))[::2], buffer)
    assert device.get(buffer).tolist() == [*range(0, 20, 2), *[18] * 27]


def test_arrays_of_two_devices_are_refused(device):
    buffer = device.put(np.full(8, -7, np.int32))
    helper = FastPrefillHelper(padded_to(None), buffer)
    with pytest.raises(BackendMixError):
        helper.prepare(np.array([1, 2]), np.array([0, 2]), True)
    with pytest.raises(ArgumentError, match="at most 8, got 9"):
        helper.prepare(device.put(np.arange(9)), np.array([0, 9]), True)
    assert device.get(buffer).tolist() == [-7] * 8
    assert device.num_launches == 0


def test_tokens_beyond_int32_are_no_tokens(device):
    buffer = device.put(np.zeros(4, np.int32))
    stage_logits_indices(device.put(np.array([3, 2**32 + 5])), buffer)
    assert device.get(buffer).tolist() == [3, -1, -1, -1]
