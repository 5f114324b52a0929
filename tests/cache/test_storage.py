"""Zeroing and copying whole blocks, on the host: all layers and states, shared bytes once, nothing else."""

import numpy as np
import pytest

from numba_ckpt.cache import FullAttentionSpec, KVCacheStorage, StateSpec, plan_memory
from numba_ckpt.cache.storage import merge_pieces
from numba_ckpt.errors import ArgumentError
from numba_ckpt.kernels.block_pieces import BlockPieces
from numba_ckpt.kernels.copy_blocks import copy_blocks
from numba_ckpt.kernels.zero_blocks import zero_blocks
from numba_ckpt.testing import poisoned
from tests.cache.models import FULL, HYBRID, LAYOUTS, STATE, WINDOW, block_of, plan

PAIRS = {"m0": STATE, "m1": STATE, "f0": FULL, "f1": FULL}


def poisoned_storage(specs, layout="LBHNC", num_blocks=6):
    memory = plan_memory(plan(specs, num_blocks), layout)
    return KVCacheStorage(poisoned((memory.size_bytes,), np.uint8), memory)


def block_bytes(storage, block, names=None):
    """Return the bytes of a block in the views of some layers, one array each."""
    num_blocks = storage.plan.kv_cache_config.num_blocks
    caches = [storage.views[name] for name in names or storage.views]
    parts = [part for cache in caches for part in block_of(cache, block, num_blocks)]
    return [np.ascontiguousarray(part).view(np.uint8).ravel() for part in parts]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zeroing_reaches_every_layer_of_a_block_and_nothing_else(layout):
    storage = poisoned_storage({"a": FULL, "b": FULL}, layout)
    storage.zero_blocks([4, 1])
    for block in range(6):
        expected = 0 if block in (1, 4) else 255
        assert all((part == expected).all() for part in block_bytes(storage, block))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copying_reaches_every_layer_of_a_block_and_nothing_else(layout):
    storage = poisoned_storage({"a": FULL, "b": FULL}, layout)
    rng = np.random.default_rng(1)
    storage.memory[:] = rng.integers(0, 256, storage.memory.size)
    before = [block_bytes(storage, block) for block in range(6)]
    storage.copy_blocks([1, 2, 1], np.array([3, 5, 4], np.int32))
    for block, source in enumerate([0, 1, 2, 1, 1, 2]):
        for now, then in zip(block_bytes(storage, block), before[source], strict=True):
            assert (now == then).all()


# B65: a side state on the page moves with the others.
def test_every_state_moves():
    states = StateSpec(8, ((3, 4), (2, 4), (5,)), ("float16", "float32", "float16"), page_size_padded=96)
    storage = poisoned_storage({"m": states})
    for number, array in enumerate(storage.views["m"]):
        array[2] = number + 1
    storage.copy_blocks([2], [5])
    assert [array[5].ravel()[-1] for array in storage.views["m"]] == [1, 2, 3]


def test_shared_bytes_count_once():
    storage = poisoned_storage(HYBRID)
    assert merge_pieces(storage.plan.layers.values()) == [(0, 256, 256)]
    storage = poisoned_storage(PAIRS, "BLHNC")
    assert merge_pieces(storage.plan.layers.values()) == [(0, 512, 512)]
    assert [pages.shape for pages in storage.pages()] == [(6, 512)]
    storage = poisoned_storage(PAIRS, "LBHNC")
    assert [pages.shape for pages in storage.pages(0)] == [(6, 256), (6, 256)]
    assert merge_pieces(storage.plan.layers.values()) == [(0, 256, 256), (1536, 256, 256)]


def test_pages_are_views_of_the_blocks():
    storage = poisoned_storage({"a": FULL, "b": FULL}, "LHBNC")
    for pages in storage.pages():
        pages[3] = 1
    assert all((part == 1).all() for part in block_bytes(storage, 3))
    assert all((part == 255).all() for part in block_bytes(storage, 2))


# B43: what a state leaves behind is NaN to a cache of other elements.
def test_a_block_of_states_given_to_attention_reads_as_zeros():
    storage = poisoned_storage({"f": FULL, "m": STATE})
    assert np.isnan(storage.views["f"][2]).all()
    storage.zero_blocks([2])
    assert not storage.views["f"][2].any()
    assert np.isnan(storage.views["f"][3]).all()


# B44: the next owner of a block starts from nothing.
def test_a_reused_state_is_zero():
    storage = poisoned_storage({"m": STATE})
    for state in storage.views["m"]:
        state[4] = 3
    storage.zero_blocks([4])
    assert not any(state[4].any() for state in storage.views["m"])


# B49: two requests, one of which wraps around a pool of 10 blocks, whose layers lie in one order in every tensor.
def test_blocks_of_two_groups_keep_apart():
    storage = poisoned_storage({"m0": STATE, "m1": STATE, "w0": WINDOW, "w1": WINDOW}, num_blocks=10)
    for number, name in enumerate(("m0", "m1")):
        for state in storage.views[name]:
            state[[9, 1]] = number + 1
    for number, name in enumerate(("w0", "w1")):
        storage.views[name][[8, 2]] = number + 5
    for number, name in enumerate(("m0", "m1")):
        assert all((state[[9, 1]] == number + 1).all() for state in storage.views[name])
    for number, name in enumerate(("w0", "w1")):
        assert (storage.views[name][[8, 2]] == number + 5).all()


def test_one_group_alone():
    storage = poisoned_storage({"f0": FULL, "f1": FULL, "w0": WINDOW})
    assert [group.layer_names for group in storage.plan.kv_cache_config.groups] == [("f0",), ("f1",), ("w0",)]
    storage = poisoned_storage({"f0": FULL, "f1": FULL, "f2": FULL, "w0": WINDOW, "w1": WINDOW})
    storage.zero_blocks([2], group=1)  # f2 lies with f0, and nothing of the group with f1
    assert not any(part.any() for part in block_bytes(storage, 2, ["f2"]))
    assert all((part == 255).all() for part in block_bytes(storage, 2, ["f1", "w1"]))
    assert all((part == 255).all() for part in block_bytes(storage, 3))


def test_the_null_block_is_left_alone():
    storage = poisoned_storage({"a": FULL})
    storage.zero_blocks([0, 0])
    storage.zero_blocks([])
    storage.copy_blocks([], [])
    assert (storage.memory == 255).all()


@pytest.mark.parametrize("odd", [1, 3, 6])
def test_pages_of_any_size(odd):
    storage = poisoned_storage({"a": FullAttentionSpec(1, 1, odd, "uint8", page_size_padded=2 * odd + 1)})
    storage.zero_blocks([3])
    assert [int(page.any()) for page in storage.views["a"]] == [1, 1, 1, 0, 1, 1]


def test_slots_beyond_32_bits():
    # 2^33 words of one row: strides of nothing, so no such memory is needed.
    words = np.lib.stride_tricks.as_strided(np.ones(1, np.int64), (2**40,), (0,))
    blocks = BlockPieces(words, np.array([[0, 2**31, 1]]), 16, 1)
    zero_blocks(blocks, np.array([9], np.int32))
    assert words[0] == 0


BAD = {
    "zero beyond the pool": (lambda s: s.zero_blocks([1, 6]), r"block_ids: expected block ids in \[0, 6\), got 6 at"),
    "zero below": (lambda s: s.zero_blocks([-1]), r"block_ids: expected block ids in \[0, 6\), got -1"),
    "zero floats": (lambda s: s.zero_blocks([1.0]), "block_ids: expected an integer dtype"),
    "zero bools": (lambda s: s.zero_blocks([True]), "block_ids: expected integers"),
    "zero a table": (lambda s: s.zero_blocks(np.ones((2, 2), int)), "block_ids: expected 1 dimension"),
    "zero a number": (lambda s: s.zero_blocks(3), "block_ids: expected a list or a 1-d integer array"),
    "zero in no group": (lambda s: s.zero_blocks([1], group=1), r"group: expected an integer in \[0, 0\], got 1"),
    "copy from beyond": (lambda s: s.copy_blocks([2, 6], [1, 3]), r"sources: expected block ids in \[0, 6\)"),
    "copy to beyond": (lambda s: s.copy_blocks([2], [9]), r"destinations: expected block ids in \[0, 6\)"),
    "copy to below": (lambda s: s.copy_blocks([2], [-9]), r"destinations: expected block ids in \[0, 6\)"),
    "copy from null": (lambda s: s.copy_blocks([2, 0], [1, 3]), "sources: .*the null block, got block 0 at entry 1"),
    "copy to null": (lambda s: s.copy_blocks([2], [0]), "destinations: .*the null block, got block 0 at entry 0"),
    "copy twice": (lambda s: s.copy_blocks([2, 3], [1, 1]), "destinations: expected each block once"),
    "copy on": (lambda s: s.copy_blocks([2, 3], [3, 4]), "destinations: expected blocks that are no sources, got bl"),
    "copy onto itself": (lambda s: s.copy_blocks([2], [2]), "destinations: expected blocks that are no sources"),
    "fewer destinations": (lambda s: s.copy_blocks([2, 3], [1]), r"destinations: expected shape \(2,\)"),
    "copy floats": (lambda s: s.copy_blocks([2], [1.5]), "destinations: expected an integer dtype"),
    "copy in no group": (lambda s: s.copy_blocks([2], [1], group=-1), "group: expected an integer"),
    "copy in a named group": (lambda s: s.copy_blocks([2], [1], group="a"), "group: expected an integer"),
    "pages of no group": (lambda s: s.pages(7), "group: expected an integer"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_refusals_change_nothing(call, message):
    storage = poisoned_storage({"a": FULL, "b": FULL})
    with pytest.raises(ArgumentError, match="^" + message):
        call(storage)
    assert (storage.memory == 255).all()


def test_the_launchers_check_too():
    blocks = BlockPieces(poisoned((12,), np.uint8), np.array([[0, 2, 2]]), 4, 2)
    ids = np.array([1])
    for call, message in (
        (lambda: zero_blocks(blocks, np.array([4])), r"block_ids: expected block ids in \[0, 4\)"),
        (lambda: zero_blocks(blocks, ids.astype(float)), "block_ids: expected an integer dtype"),
        (lambda: zero_blocks(blocks, [1]), "block_ids: expected a 1-d array"),
        (lambda: copy_blocks(blocks, ids, np.array([5])), "destinations: expected block ids"),
        (lambda: copy_blocks(blocks, ids, ids), "destinations: expected blocks that are no sources"),
        (lambda: copy_blocks(blocks, ids, np.array([2, 3])), r"destinations: expected shape \(1,\)"),
        (lambda: copy_blocks(blocks, ids[None], ids), "sources: expected 1 dimension"),
    ):
        with pytest.raises(ArgumentError, match="^" + message):
            call()
    assert (blocks.words == 255).all()
