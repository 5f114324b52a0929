"""Pinned staging: one copy per step, and no buffer rewritten while its copy is in flight."""

import numpy as np
import pytest

from numba_ckpt._staging import StagingRing
from numba_ckpt.testing import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice.attached() as device:
        yield device


def test_arrays_of_several_dtypes_travel_in_one_copy(device):
    sent = np.arange(5, dtype=np.int32), np.arange(6.0).reshape(2, 3), np.array([True, False, True])
    received = StagingRing(device).send(*sent)
    assert device.num_copies == 1
    for before, after in zip(sent, received, strict=True):
        assert device.owns(after)
        assert after.dtype == before.dtype
        assert np.array_equal(device.get(after), before)


def test_a_buffer_in_flight_is_left_alone(device):
    # The simulated stream copies at the last moment: rewriting the first buffer would change the first step's data.
    ring = StagingRing(device)
    first = ring.send(np.full(4, 1))
    second = ring.send(np.full(4, 2))
    assert device.num_waits == 0
    assert device.get(first[0]).tolist() == [1] * 4
    assert device.get(second[0]).tolist() == [2] * 4


def test_steps_that_do_not_overlap_reuse_one_buffer(device):
    ring = StagingRing(device)
    for step in range(10):
        assert device.get(ring.send(np.full(4, step))[0]).tolist() == [step] * 4
    assert len(ring._slots) == 1


def test_a_larger_step_gets_a_larger_buffer(device):
    ring = StagingRing(device)
    for size in (1, 1000, 3):
        assert device.get(ring.send(np.arange(size))[0]).tolist() == list(range(size))
    assert len(ring._slots) == 2


def test_empty_arrays_travel_too(device):
    (received,) = StagingRing(device).send(np.empty(0, np.int64))
    assert device.get(received).tolist() == []
