"""What is refused before anything is allocated or bound."""

from dataclasses import replace

import pytest

from numba_ckpt.attention import CachePlacement, bind_kv_cache_to_layers, init_kv_cache
from numba_ckpt.attention import binding as binding_module
from numba_ckpt.cache import KVCacheConfig, KVCacheGroup
from numba_ckpt.errors import ArgumentError
from tests.attention.cached_layers import CONFIG, FULL, WINDOW, Layer, hosted, hybrid, planned


def without(layers, *names):
    return {name: layer for name, layer in layers.items() if name not in names}


def config_with(layers, *extra_names):
    """The layers' plan with a group of layers that nobody has."""
    config = planned(layers)
    groups = (*config.groups, KVCacheGroup(extra_names, WINDOW.padded_to(config.groups[0].spec.page_size_bytes)))
    return KVCacheConfig(config.num_blocks, groups, config.tensors)


def foreign(layers):
    """Return a plan that puts a reader in another group than its target's."""
    config = planned(layers)
    states, attention = config.groups
    states = replace(states, layer_names=(*states.layer_names, "layers.4.attn"))
    return replace(config, groups=(states, attention))


def mixed(layers):
    """Return a plan that lays a host-resident group over one of the device."""
    config = planned(layers)
    return replace(config, groups=(config.groups[0], replace(config.groups[1], is_host_resident=True)))


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
    "modules that names do not tell": (
        lambda layers: init_kv_cache(layers, planned(layers), CachePlacement(num_attn_modules=2)),
        "layers",
        "1 in 'layers.0.mixer'",
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
    "no caches": (lambda layers: bind_kv_cache_to_layers(None, layers), "caches", "NoneType"),
    "caches without names": (lambda layers: bind_kv_cache_to_layers(["layers.1.attn"], layers), "caches", "list"),
    "a number of modules that is a fraction": (
        lambda layers: bind_kv_cache_to_layers({"layers.1.attn": 1}, layers, 1.5),
        "num_attn_modules",
        "1.5",
    ),
    "a layer that was planned for nothing": (
        lambda layers: init_kv_cache(layers | {"layers.9.attn": Layer(FULL)}, planned(layers), config=CONFIG),
        "kv_cache_config",
        "none for 'layers.9.attn'",
    ),
    "a config that is a plan": (
        lambda layers: init_kv_cache(layers, planned(layers), config=planned(layers)),
        "config",
        "KVCacheConfig",
    ),
    "a context that is none": (
        lambda layers: init_kv_cache(layers, planned(layers), None, 3),
        "allocation_context",
        "int",
    ),
    "a reader in another group": (
        lambda layers: init_kv_cache(layers, foreign(layers)),
        "kv_cache_config.groups",
        "it in group 0",
    ),
    "host and device in one tensor": (
        lambda layers: init_kv_cache(layers, mixed(layers), CachePlacement(num_hot_blocks=3)),
        "tensors[0]",
        "layers of host and device",
    ),
    "a hot set of nothing": (
        lambda layers: init_kv_cache(layers, planned(layers), CachePlacement(num_hot_blocks=3)),
        "num_hot_blocks",
        "got 3",
    ),
    "a layout that parts padded pages": (
        lambda layers: init_kv_cache(layers, planned(layers), CachePlacement("LHBNC")),
        "layout",
        "LHBNC",
    ),
    "one size for all groups": (lambda layers: CachePlacement(kernel_block_sizes=8), "kernel_block_sizes", "8"),
    "sizes in a text": (lambda layers: CachePlacement(kernel_block_sizes="88"), "kernel_block_sizes", "'88'"),
    "no array module": (lambda layers: CachePlacement(array_module="numpy"), "array_module", "'numpy'"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_mistakes_are_refused_and_nothing_is_allocated_or_bound(case, monkeypatch):
    call, *parts = case
    layers, allocated = hybrid(), []
    monkeypatch.setattr(binding_module.KVCacheStorage, "allocate", allocated.append)
    with pytest.raises(ArgumentError, match=r"expected .+, got .+; \w+") as raised:
        call(layers)
    for part in parts:
        assert part in str(raised.value)
    assert not allocated
    assert not any(layer.bound for layer in layers.values())
