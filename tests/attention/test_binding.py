"""Caches are allocated, shared and bound; or nothing is left behind."""

import contextlib
import gc
import weakref

import numpy as np
import pytest

from numba_ckpt.attention import CachePlacement, bind_kv_cache_to_layers, get_kv_cache_spec, init_kv_cache
from numba_ckpt.attention import binding as binding_module
from numba_ckpt.cache import KVCacheConfig, KVCacheGroup, KVCacheTensor, plan_kv_cache
from numba_ckpt.cache.config import LAYOUTS
from numba_ckpt.errors import ArgumentError
from numba_ckpt.testing import SimulatedDevice
from tests.attention.cached_layers import CONFIG, FULL, STATE, WINDOW, Layer

NUM_BLOCKS = 12


def hybrid():
    """Two recurrent layers, two of attention, one that reads the second one's cache, and one without."""
    return {
        "layers.0.mixer": Layer(STATE, num_heads=0),
        "layers.1.attn": Layer(FULL),
        "layers.2.mixer": Layer(STATE, num_heads=0),
        "layers.3.attn": Layer(FULL),
        "layers.4.attn": Layer(kv_sharing_target_layer_name="layers.3.attn"),
        "layers.5.encoder": Layer(),
    }


def planned(layers, num_blocks=NUM_BLOCKS):
    return plan_kv_cache(get_kv_cache_spec(layers, CONFIG), num_blocks=num_blocks)


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


def hosted(layers):
    """All of the attention layers in a group on the host."""
    config = planned(layers)
    specs = {name: config.spec_of(name) for name in ("layers.1.attn", "layers.3.attn")}
    groups = [group for group in config.groups if "layers.1.attn" not in group.layer_names]
    groups.append(KVCacheGroup(tuple(specs), FULL.padded_to(256), is_host_resident=True))
    page = groups[0].spec.page_size_bytes
    tensors = [KVCacheTensor(NUM_BLOCKS * page, (name,)) for group in groups for name in group.layer_names]
    return KVCacheConfig(NUM_BLOCKS, tuple(groups), tuple(tensors))


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


class Failing(Layer):
    def bind_kv_cache(self, cache):
        if cache is not None:
            raise RuntimeError("no room for a graph")
        super().bind_kv_cache(cache)


def test_a_layer_that_fails_leaves_nobody_bound_and_nothing_on_the_host(monkeypatch):
    layers = hybrid()
    config = hosted(layers)
    failing = layers | {"layers.3.attn": Failing(FULL)}
    tiers, tier_class = [], binding_module.HostTier
    monkeypatch.setattr(binding_module, "HostTier", lambda *args: tiers.append(tier_class(*args)) or tiers[-1])
    with pytest.raises(RuntimeError, match="no room"):
        init_kv_cache(failing, config, CachePlacement(num_hot_blocks=3))
    assert [layer.bound[-1:] for layer in failing.values()] == [[None]] * 4 + [[]] * 2
    with pytest.raises(ArgumentError, match="closed"):
        tiers[0].load(np.array([1]))


def test_a_failure_keeps_no_memory():
    layers = hybrid()
    memory = []

    class Module:
        @staticmethod
        def zeros(*arguments):
            memory.append(weakref.ref(array := np.zeros(*arguments)))
            return array

    failing = layers | {"layers.3.attn": Failing(FULL)}
    with contextlib.suppress(RuntimeError):
        init_kv_cache(failing, hosted(layers), CachePlacement(array_module=Module, num_hot_blocks=3))
    for layer in failing.values():
        layer.bound.clear()
    gc.collect()
    assert [array() for array in memory] == [None, None]


class Stuck(Failing):
    def bind_kv_cache(self, cache):
        raise RuntimeError("no room for a graph" if cache is not None else "stuck")


def test_a_layer_that_cannot_be_unbound_keeps_no_other_bound():
    layers = hybrid()
    with pytest.raises(RuntimeError, match="no room") as raised:
        init_kv_cache(layers | {"layers.3.attn": Stuck(FULL)}, planned(layers))
    assert raised.value.__notes__ == ["layers.3.attn could not be unbound: RuntimeError('stuck')"]
    assert all(layers[f"layers.{name}"].bound[-1] is None for name in ("0.mixer", "1.attn", "2.mixer"))


def test_pages_that_do_not_fit_on_the_host_bind_nothing(monkeypatch):
    layers = hybrid()

    def no_room(*arguments):
        raise MemoryError("pinned")

    monkeypatch.setattr(binding_module, "HostTier", no_room)
    with pytest.raises(MemoryError, match="pinned"):
        init_kv_cache(layers, hosted(layers), CachePlacement(num_hot_blocks=3))
    assert not any(layer.bound for layer in layers.values())


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


def test_a_failed_allocation_binds_nothing():
    layers = hybrid()

    class Full:
        @staticmethod
        def zeros(*arguments):
            raise MemoryError

    with pytest.raises(MemoryError):
        init_kv_cache(layers, planned(layers), CachePlacement(array_module=Full))
    assert not any(layer.bound for layer in layers.values())


def without(layers, *names):
    return {name: layer for name, layer in layers.items() if name not in names}


def config_with(layers, *extra_names):
    """The layers' plan with a group of layers that nobody has."""
    config = planned(layers)
    groups = (*config.groups, KVCacheGroup(extra_names, WINDOW.padded_to(config.groups[0].spec.page_size_bytes)))
    return KVCacheConfig(config.num_blocks, groups, config.tensors)


BAD = {
    "no mapping": (lambda layers: init_kv_cache(list(layers), planned(layers)), "layers", "list"),
    "something that is no layer": (
        lambda layers: init_kv_cache(layers | {"x": 3}, planned(layers)),
        "layers['x']",
        "int",
    ),
    "a name that is no text": (lambda layers: init_kv_cache({3: Layer(FULL)}, planned(layers)), "layers[3]", "Layer"),
    "a plan of nothing": (lambda layers: init_kv_cache(layers, None), "kv_cache_config", "NoneType"),
    "a placement that is a layout": (
        lambda layers: init_kv_cache(layers, planned(layers), "LBHNC"),
        "placement",
        "str",
    ),
    "an unknown layout": (lambda layers: CachePlacement("LBH"), "layout", "'LBH'"),
    "a hot set of one block": (lambda layers: CachePlacement(num_hot_blocks=1), "num_hot_blocks", "1"),
    "no modules": (lambda layers: CachePlacement(num_attn_modules=0), "num_attn_modules", "0"),
    "a planned layer that is missing": (
        lambda layers: init_kv_cache(without(layers, "layers.1.attn"), planned(layers)),
        "kv_cache_config",
        "'layers.1.attn'",
    ),
    "a group without memory": (
        lambda layers: init_kv_cache(layers | {"w": Layer(WINDOW)}, config_with(layers, "w")),
        "kv_cache_config",
        "none for 'w'",
    ),
    "a target that is missing": (
        lambda layers: init_kv_cache(without(layers, "layers.3.attn"), planned(without(layers, "layers.4.attn"))),
        "layers.4.attn.kv_sharing_target_layer_name",
        "'layers.3.attn'",
    ),
    "a target that shares": (
        lambda layers: init_kv_cache(
            layers | {"layers.6.attn": Layer(kv_sharing_target_layer_name="layers.4.attn")}, planned(layers)
        ),
        "layers.6.attn.kv_sharing_target_layer_name",
        "which shares",
    ),
    "a target without a cache": (
        lambda layers: init_kv_cache(
            layers | {"layers.6.attn": Layer(kv_sharing_target_layer_name="layers.5.encoder")}, planned(layers)
        ),
        "layers.6.attn.kv_sharing_target_layer_name",
        "'layers.5.encoder'",
    ),
    "memory for a layer that shares": (
        lambda layers: init_kv_cache(
            layers | {"layers.3.attn": Layer(kv_sharing_target_layer_name="layers.1.attn")}, planned(hybrid())
        ),
        "kv_sharing_target_layer_name",
        "share",
    ),
    "host groups without a hot set": (lambda layers: init_kv_cache(layers, hosted(layers)), "num_hot_blocks", "None"),
    "kernel blocks that do not divide": (
        lambda layers: init_kv_cache(
            {"a": Layer(FULL)}, planned({"a": Layer(FULL)}), CachePlacement(kernel_block_sizes=[3])
        ),
        "kernel_block_sizes[0]",
        "3",
    ),
    "a size for too few groups": (
        lambda layers: init_kv_cache(layers, planned(layers), CachePlacement(kernel_block_sizes=[8])),
        "kernel_block_sizes",
        "1",
    ),
    "a cache of nobody": (lambda layers: bind_kv_cache_to_layers({"x": 1}, layers), "caches", "'x'"),
    "a layer without a number": (
        lambda layers: bind_kv_cache_to_layers({"layers.1.attn": 1, "x": 2}, layers | {"x": Layer(FULL)}),
        "layers",
        "0 in 'x'",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_mistakes_are_refused_and_nothing_is_bound(case):
    call, *parts = case
    layers = hybrid()
    with pytest.raises(ArgumentError, match=r"expected .+, got .+; \w+") as raised:
        call(layers)
    for part in parts:
        assert part in str(raised.value)
    assert not any(layer.bound for layer in layers.values())
