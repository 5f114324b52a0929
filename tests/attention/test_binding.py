"""Caches are allocated, shared and bound."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.attention import (
    CachePlacement,
    add_kv_sharing_layers_to_kv_cache_groups,
    get_shared_kv_cache_layers,
    init_kv_cache,
)
from numba_ckpt.cache import FullAttentionSpec
from numba_ckpt.cache.config import LAYOUTS
from numba_ckpt.errors import ArgumentError
from numba_ckpt.testing import SimulatedDevice
from tests.attention.cached_layers import CONFIG, FULL, NUM_BLOCKS, Layer, hosted, hybrid, planned


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_layers_hold_their_caches_and_readers_their_targets(layout):
    layers = hybrid()
    caches = init_kv_cache(layers, planned(layers), CachePlacement(layout))
    assert list(caches.by_layer) == [name for name in layers if name != "layers.5.encoder"]
    for name, cache in caches.by_layer.items():
        assert layers[name].bound == [cache]
    assert layers["layers.5.encoder"].bound == []
    assert caches.by_layer["layers.4.attn"] is caches.by_layer["layers.3.attn"]
    assert caches.in_layer_order == list(caches.by_layer.values())
    conv, recurrent = caches.by_layer["layers.0.mixer"]
    assert (conv.shape, recurrent.shape) == ((NUM_BLOCKS, 3, 8), (NUM_BLOCKS, 4, 8))
    assert caches.by_layer["layers.1.attn"].shape == (NUM_BLOCKS, 2, 8, 8)
    assert not caches.storage.memory.any()


def test_b49_layers_overlay_each_other_in_one_order_and_block_by_block():
    layers = hybrid()
    caches = init_kv_cache(layers, planned(layers))
    # Block 5 of attention layer i and of recurrent layer i are the same bytes, and nobody else's.
    for attention, state in (("layers.1.attn", "layers.0.mixer"), ("layers.3.attn", "layers.2.mixer")):
        caches.storage.memory[:] = 0
        caches.by_layer[attention][5] = 1
        conv, recurrent = caches.by_layer[state]
        assert conv[5].all()
        assert recurrent[5].any()
        assert not conv[4].any()
        assert not recurrent[6].any()
        other = "layers.3.attn" if attention == "layers.1.attn" else "layers.1.attn"
        assert not caches.by_layer[other].any()


def test_b43_b44_a_block_is_zeroed_in_all_layers_before_its_next_owner():
    layers = hybrid()
    caches = init_kv_cache(layers, planned(layers))
    for state in ("layers.0.mixer", "layers.2.mixer"):
        for tensor in caches.by_layer[state]:
            tensor[5:7] = np.nan
    caches.storage.zero_blocks([5])
    for attention in ("layers.1.attn", "layers.3.attn"):
        assert not caches.by_layer[attention][5].any()
        assert np.isnan(caches.by_layer[attention][6]).any()


@pytest.mark.parametrize("layout", ["LBHNC", "BLNHC"])
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), max_size=30))
def test_b49_a_pool_that_wraps_keeps_every_owners_contents(layout, owners):
    """Ten blocks change hands between attention and states; all others keep what they hold in all layers."""
    layers = hybrid()
    config = planned(layers, num_blocks=10)
    caches = init_kv_cache(layers, config, CachePlacement(layout))
    arrays = [[array for name in group.layer_names for array in arrays_of(caches, name)] for group in config.groups]
    contents = {}
    for value, (group, block) in enumerate(owners, start=1):
        caches.storage.zero_blocks([block])
        for number, array in enumerate(arrays[group]):
            assert not array[block].any()
            array[block] = 100 * number + value
        contents[block] = group, value
        for other, (owner, kept) in contents.items():
            assert all((array[other] == 100 * n + kept).all() for n, array in enumerate(arrays[owner]))


def arrays_of(caches, name):
    cache = caches.by_layer[name]
    return cache if isinstance(cache, tuple) else (cache,)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_layers_are_apart_in_every_layout_but_readers(layout):
    layers = {f"layers.{i}.attn": Layer(FULL) for i in range(3)}
    layers["layers.3.attn"] = Layer(kv_sharing_target_layer_name="layers.0.attn")
    caches = init_kv_cache(layers, planned(layers), CachePlacement(layout)).by_layer
    for number, name in enumerate(("layers.1.attn", "layers.2.attn", "layers.3.attn"), start=1):
        caches[name][:] = number
    assert [int(cache.min()) for cache in caches.values()] == [3, 1, 2, 3]
    assert [int(cache.max()) for cache in caches.values()] == [3, 1, 2, 3]


@pytest.mark.parametrize("other", [FULL, FullAttentionSpec(8, num_kv_heads=1, head_size=4, dtype="float16")])
def test_a_reader_may_be_in_its_targets_group_already(other):
    layers = {"0": Layer(FULL), "1": Layer(other), "2": Layer(kv_sharing_target_layer_name="1")}
    config = add_kv_sharing_layers_to_kv_cache_groups(planned(layers), get_shared_kv_cache_layers(layers))
    assert config.groups[0].layer_names == ("0", "1", "2")
    caches = init_kv_cache(layers, config)
    assert caches.by_layer["2"] is caches.by_layer["1"]
    assert caches.by_layer["1"].shape == (NUM_BLOCKS, other.num_kv_heads, 8, 8)


def test_a_plan_that_holds_all_that_layers_cache_is_taken():
    layers = hybrid()
    assert len(init_kv_cache(layers, planned(layers), config=CONFIG).by_layer) == 5


def test_kernel_blocks_are_smaller_than_the_managers():
    layers = {"layers.0.attn": Layer(FULL)}
    caches = init_kv_cache(layers, planned(layers), CachePlacement(kernel_block_sizes=[4]))
    assert caches.by_layer["layers.0.attn"].shape == (2 * NUM_BLOCKS, 2, 4, 8)


def test_two_modules_per_layer_are_ordered_by_both_numbers():
    layers = {f"model.{layer}.attn.{module}": Layer(FULL) for layer in (1, 0) for module in (1, 0)}
    caches = init_kv_cache(layers, planned(layers), CachePlacement(num_attn_modules=2))
    expected = [
        caches.by_layer[name] for name in ("model.0.attn.0", "model.0.attn.1", "model.1.attn.0", "model.1.attn.1")
    ]
    assert all(ours is theirs for ours, theirs in zip(caches.in_layer_order, expected, strict=True))
    with pytest.raises(ArgumentError, match=r"layers: expected 1 number\(s\) .* got 2 in 'model.1.attn.1'"):
        init_kv_cache(layers, planned(layers))


def test_names_without_numbers_keep_the_forward_order():
    layers = {"b": Layer(FULL), "a": Layer(FULL)}
    caches = init_kv_cache(layers, planned(layers))
    assert caches.in_layer_order[0] is caches.by_layer["b"]


def test_b65_groups_on_the_host_have_a_hot_set_and_every_byte_of_a_block_moves():
    layers = hybrid()
    caches = init_kv_cache(layers, hosted(layers), CachePlacement(num_hot_blocks=3))
    first, second = caches.by_layer["layers.1.attn"], caches.by_layer["layers.3.attn"]
    assert first.shape == (3, 2, 8, 8)
    assert caches.by_layer["layers.4.attn"] is second
    assert caches.by_layer["layers.0.mixer"][0].shape[0] == NUM_BLOCKS
    (slot,) = caches.host_tier.load(np.array([7])).tolist()
    first[slot], second[slot] = 3, 4
    caches.host_tier.mark_written(np.array([7]))
    caches.host_tier.load(np.array([8, 9]))
    assert not (first == 3).any()
    (slot,) = caches.host_tier.load(np.array([7])).tolist()
    assert (first[slot] == 3).all()
    assert (second[slot] == 4).all()


@pytest.mark.parametrize("is_device", [False, True])
def test_all_groups_may_live_on_the_host(is_device):
    layers = {"0": Layer(FULL), "1": Layer(kv_sharing_target_layer_name="0")}
    config = planned(layers)
    config = replace(config, groups=tuple(replace(group, is_host_resident=True) for group in config.groups))
    with SimulatedDevice.attached() as device:
        module = SimpleNamespace(zeros=lambda *arguments: device.put(np.zeros(*arguments))) if is_device else np
        caches = init_kv_cache(layers, config, CachePlacement(array_module=module, num_hot_blocks=4))
        assert device.owns(caches.by_layer["0"]) is is_device
        assert caches.by_layer["1"] is caches.by_layer["0"]
        assert (caches.storage.memory.size, caches.by_layer["0"].shape) == (0, (4, 2, 8, 8))
        assert caches.host_tier.load([11, 0, 3]).tolist() == [2, 0, 1]


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_hot_sets_keep_the_order_of_heads_and_tokens(layout):
    layers = hybrid()
    hot = init_kv_cache(layers, hosted(layers), CachePlacement(layout, num_hot_blocks=3)).by_layer["layers.1.attn"]
    ordinary = init_kv_cache(layers, planned(layers), CachePlacement(layout)).by_layer["layers.1.attn"]
    assert hot.strides == ordinary.strides


def test_a_device_holds_the_hot_set_and_pinned_memory_the_rest():
    layers = hybrid()
    with SimulatedDevice.attached() as device:

        class Module:
            @staticmethod
            def zeros(*arguments):
                return device.put(np.zeros(*arguments))

        caches = init_kv_cache(layers, hosted(layers), CachePlacement(array_module=Module, num_hot_blocks=3))
        (slot,) = caches.host_tier.load([7]).tolist()
        device.wait()
        for name in ("layers.1.attn", "layers.3.attn"):
            assert device.owns(caches.by_layer[name])
            caches.by_layer[name][slot] = 5
        caches.host_tier.mark_written([7])
        caches.host_tier.store()
        assert slot in caches.host_tier.load([8, 9]).tolist()
        device.wait()
        (slot,) = caches.host_tier.load([7]).tolist()
        for name in ("layers.1.attn", "layers.3.attn"):
            assert (device.get(caches.by_layer[name])[slot] == 5).all()


def test_everything_is_allocated_inside_the_callers_context():
    layers, seen = hybrid(), []

    class Module:
        @staticmethod
        def zeros(*arguments):
            seen.append("zeros")
            return np.zeros(*arguments)

    @contextlib.contextmanager
    def context():
        seen.append("enter")
        yield
        seen.append("exit")

    init_kv_cache(layers, planned(layers), CachePlacement(array_module=Module), context())
    assert seen == ["enter", "zeros", "exit"]
