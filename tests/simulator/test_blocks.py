"""Zeroing and copying blocks on the simulated device, against the host."""

import types

import numpy as np
import pytest

from numba_ckpt.cache import KVCacheStorage, allocate_kv_cache, plan_memory
from numba_ckpt.errors import ArgumentError, BackendMixError
from numba_ckpt.kernels.block_pieces import BlockPieces
from numba_ckpt.kernels.copy_blocks import copy_blocks
from numba_ckpt.kernels.zero_blocks import zero_blocks
from numba_ckpt.testing import SimulatedArray, poisoned
from tests.cache.models import FULL, LAYOUTS, STATE, plan
from tests.checkpoint.problems import same_bytes

pytestmark = pytest.mark.usefixtures("tiny_grids")


def pair(device, specs, layout, parts=None):
    """Return the same storage on the host and on the device."""
    memory = plan_memory(plan(specs, 6), layout, parts)
    contents = np.random.default_rng(7).integers(1, 256, memory.size_bytes, np.uint8)
    return KVCacheStorage(contents, memory), KVCacheStorage(device.put(contents), memory)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_on_the_host(device, layout):
    host, simulated = pair(device, {"a": FULL, "b": FULL}, layout, [4])
    for storage in (host, simulated):
        storage.zero_blocks([4, 0, 1])
        storage.copy_blocks([2, 2], [5, 3])
    assert device.num_launches == 2
    assert device.num_waits == 0
    assert device.num_copies == 3  # ids of both, and once the pieces
    assert (device.get(simulated.memory) == host.memory).all()
    assert same_bytes(device.get(simulated.views["b"]), host.views["b"])


def test_mixed_kinds_and_one_group(device):
    specs = {"m0": STATE, "m1": STATE, "f0": FULL, "f1": FULL}
    host, simulated = pair(device, specs, "LBHNC")
    for storage in (host, simulated):
        storage.zero_blocks([3], group=1)
        storage.copy_blocks([1], [2], group=0)
    assert (device.get(simulated.memory) == host.memory).all()
    conv, recurrent = simulated.views["m1"]
    assert type(conv) is type(recurrent) is SimulatedArray
    assert same_bytes(device.get(recurrent), host.views["m1"][1])


def test_allocation_asks_the_array_module(device):
    module = types.SimpleNamespace(zeros=lambda size, dtype: device.put(np.zeros(size, dtype)))
    views = allocate_kv_cache(plan({"a": FULL}), array_module=module)
    assert isinstance(views["a"], SimulatedArray)
    assert not device.get(views["a"]).any()


def test_ids_are_checked_before_anything_is_sent(device):
    _, simulated = pair(device, {"a": FULL}, "LBHNC")
    simulated.zero_blocks([1])
    copies = device.num_copies
    for call in (
        lambda: simulated.zero_blocks([6]),
        lambda: simulated.zero_blocks([-1]),
        lambda: simulated.copy_blocks([1], [6]),
        lambda: simulated.copy_blocks([1, 2], [3, 3]),
    ):
        with pytest.raises(ArgumentError):
            call()
    assert (device.num_launches, device.num_copies) == (1, copies)


def test_kernels_leave_out_what_lies_outside(device):
    words = device.put(poisoned((12,), np.uint8))
    blocks = BlockPieces(words, device.put(np.array([[0, 2, 2], [8, 1, 1]])), 4, 2)
    zero_blocks(blocks, device.put(np.array([-1, 0, 4, 2**40])))
    copy_blocks(blocks, device.put(np.array([0, 1, 5])), device.put(np.array([2, 0, 1])))
    assert (device.get(words) == 255).all()
    too_small = BlockPieces(words, device.put(np.array([[0, 8, 8]])), 4, 8)
    zero_blocks(too_small, device.put(np.array([1, 3])))
    assert (device.get(words) == 255).all()


def test_ids_elsewhere(device):
    _, simulated = pair(device, {"a": FULL}, "LBHNC")
    with pytest.raises(BackendMixError):
        zero_blocks(BlockPieces(simulated.memory, device.put(np.array([[0, 2, 2]])), 4, 2), np.array([1]))
    with pytest.raises(BackendMixError):
        copy_blocks(BlockPieces(simulated.memory, np.array([[0, 2, 2]]), 4, 2), np.array([1]), np.array([2]))
