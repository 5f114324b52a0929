"""Which layers want a cache of their own, and which read another layer's."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from numba_ckpt._check import refuse
from numba_ckpt.attention.backend import AttentionLayer
from numba_ckpt.attention.check_layers import check_layer_names, check_layers, checked_backend
from numba_ckpt.attention.kernel_block_sizes import select_peer_kernel_block_size
from numba_ckpt.cache import (
    AttentionSpec,
    EngineConfig,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheSpec,
    UniformTypeSpecs,
)
from numba_ckpt.errors import ArgumentTypeError

__all__ = [
    "absent_readers",
    "add_kv_sharing_layers_to_kv_cache_groups",
    "get_kv_cache_spec",
    "get_shared_kv_cache_layers",
]

Layers = Mapping[str, AttentionLayer]


def get_kv_cache_spec(
    layers: Layers, config: EngineConfig, host_layer_names: Collection[str] = ()
) -> dict[str, KVCacheSpec]:
    """Return what each layer with a cache of its own caches.

    Layers that share another layer's cache, and those that need none, are left out. A backend may change the spec of
    its attention layers.

    Parameters
    ----------
    layers : mapping of str to AttentionLayer
        In forward order.
    config : EngineConfig
        Handed to the layers.
    host_layer_names : collection of str, optional
        Layers whose cache will be kept on the host. Whole blocks travel, so their attention layers get one common
        block size that all their backends read without cutting it.

    Returns
    -------
    dict of str to KVCacheSpec
        In forward order.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Something that is no layer or no spec, a sharing layer without a proper target (see
        `get_shared_kv_cache_layers`), a host layer without a cache of its own, or host layers without a common block
        size.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from numba_ckpt.attention import PagedAttentionBackend
    >>> from numba_ckpt.cache import FullAttentionSpec
    >>> layer = SimpleNamespace(
    ...     kv_sharing_target_layer_name=None,
    ...     num_heads=8,
    ...     get_kv_cache_spec=lambda config: FullAttentionSpec(config.cache.block_size, num_kv_heads=2, head_size=64),
    ...     get_attn_backend=lambda: PagedAttentionBackend,
    ...     bind_kv_cache=print,
    ... )
    >>> reader = SimpleNamespace(**vars(layer) | {"kv_sharing_target_layer_name": "layers.0.attn"})
    >>> limits = {"max_num_requests": 8, "max_num_batched_tokens": 64, "max_model_len": 4096}
    >>> config = EngineConfig.from_dict({"limits": limits})
    >>> specs = get_kv_cache_spec({"layers.0.attn": layer, "layers.1.attn": reader}, config)
    >>> {name: spec.block_size for name, spec in specs.items()}
    {'layers.0.attn': 16}
    """
    shared = get_shared_kv_cache_layers(layers)
    found = {name: _spec_of(name, layer, config) for name, layer in layers.items() if name not in shared}
    specs = {name: spec for name, spec in found.items() if spec is not None and spec.page_size_bytes > 0}
    return specs | _resolve_host_block_size(specs, layers, host_layer_names)


def get_shared_kv_cache_layers(layers: Layers) -> dict[str, str]:
    """Return for each layer that shares a cache the layer whose cache it is.

    Parameters
    ----------
    layers : mapping of str to AttentionLayer
        In forward order.

    Returns
    -------
    dict of str to str
        Target by sharing layer, in forward order.

    Raises
    ------
    ArgumentError
        A target is missing, shares a cache itself, or runs after the layer that reads its cache.
    """
    check_layers(layers)
    shared = {name: target for name, layer in layers.items() if (target := layer.kv_sharing_target_layer_name)}
    order = {name: index for index, name in enumerate(layers)}
    for name, target in shared.items():
        where = f"{name}.kv_sharing_target_layer_name"
        if target not in layers:
            refuse(where, "the name of a layer", repr(target), "check it against the model's layers")
        if target in shared:
            got = f"{target!r}, which shares {shared[target]!r}'s"
            refuse(where, "a layer with a cache of its own", got, "name the layer that writes the cache")
        if order[target] > order[name]:
            refuse(where, "an earlier layer", f"{target!r}, which runs later", "share a cache that is written by then")
    return shared


def add_kv_sharing_layers_to_kv_cache_groups(
    kv_cache_config: KVCacheConfig, shared_kv_cache_layers: Mapping[str, str]
) -> KVCacheConfig:
    """Return a configuration in which sharing layers are in the groups of the layers whose caches they read.

    They get no memory of their own: the tensors stay as they are.

    Parameters
    ----------
    kv_cache_config : KVCacheConfig
        Groups of the layers with caches of their own; not changed.
    shared_kv_cache_layers : mapping of str to str
        Target by sharing layer, as of `get_shared_kv_cache_layers`.

    Raises
    ------
    ArgumentError
        A target that is in no group or shares a cache itself, or a sharing layer that is in a group already.
    """
    known = {name for group in kv_cache_config.groups for name in group.layer_names}
    for name, target in shared_kv_cache_layers.items():
        if target not in known:
            where, got = f"shared_kv_cache_layers[{name!r}]", repr(target)
            refuse(where, "a layer of some group", got, "share the cache of a layer that has one")
        if name in known:
            do = "add sharing layers once, and give them no group of their own"
            refuse("shared_kv_cache_layers", "layers of no group", repr(name), do)
    groups = tuple(_with_readers(group, shared_kv_cache_layers) for group in kv_cache_config.groups)
    return replace(kv_cache_config, groups=groups)


def _with_readers(group: KVCacheGroup, shared: Mapping[str, str]) -> KVCacheGroup:
    readers = [(name, target) for name, target in shared.items() if target in group.layer_names]
    spec = group.spec
    if isinstance(spec, UniformTypeSpecs):
        for name, target in readers:
            spec = spec.with_layer(name, target)
    return replace(group, layer_names=(*group.layer_names, *(name for name, _ in readers)), spec=spec)


def absent_readers(kv_cache_config: KVCacheConfig, shared: Mapping[str, str]) -> dict[str, str]:
    """Return the layers that share a cache and are in no group yet, refusing those in another than their target's."""
    group_ids = {name: index for index, group in enumerate(kv_cache_config.groups) for name in group.layer_names}
    for name in shared.keys() & group_ids:
        if group_ids[name] != group_ids.get(shared[name]):
            expected, do = f"{name!r} in the group of {shared[name]!r}", "leave out layers without a cache of their own"
            refuse("kv_cache_config.groups", expected, f"it in group {group_ids[name]}", do)
    return {name: target for name, target in shared.items() if name not in group_ids}


def _spec_of(name: str, layer: AttentionLayer, config: EngineConfig) -> KVCacheSpec | None:
    spec = _checked(f"{name}.get_kv_cache_spec()", layer.get_kv_cache_spec(config))
    if not isinstance(spec, AttentionSpec):
        return spec
    backend = checked_backend(name, layer.get_attn_backend())
    customized = _checked(f"{backend.name}.customize_spec()", backend.customize_spec(spec))
    if customized is None:
        expected, do = "a KVCacheSpec", "return the spec itself where nothing is to be changed"
        refuse(f"{backend.name}.customize_spec()", expected, "None", do, ArgumentTypeError)
    return customized


def _checked(name: str, spec: Any) -> KVCacheSpec | None:
    if spec is not None and not isinstance(spec, KVCacheSpec):
        do = "say what the layer caches, or None for nothing"
        refuse(name, "a KVCacheSpec or None", type(spec).__name__, do, ArgumentTypeError)
    return spec


def _resolve_host_block_size(
    specs: Mapping[str, KVCacheSpec], layers: Layers, host_layer_names: Collection[str]
) -> dict[str, KVCacheSpec]:
    """Return the specs of host-resident attention layers, cut to the largest block that suits all of them."""
    check_layer_names("host_layer_names", host_layer_names, None)
    absent = [name for name in host_layer_names if name not in specs]
    if absent:
        do = "name layers that write a cache"
        refuse("host_layer_names", "layers with a cache of their own", ", ".join(map(repr, absent)), do)
    attention = {name: spec for name, spec in specs.items() if isinstance(spec, AttentionSpec)}
    attention = {name: spec for name, spec in attention.items() if name in set(host_layer_names)}
    if not attention:
        return {}
    backends = list(dict.fromkeys(layers[name].get_attn_backend() for name in attention))
    block_size = select_peer_kernel_block_size({name: spec.block_size for name, spec in attention.items()}, backends)
    return {name: _cut(spec, block_size) for name, spec in attention.items()}


def _cut(spec: AttentionSpec, block_size: int) -> AttentionSpec:
    if spec.block_size == block_size:
        return spec
    # Padding was for pages of another size.
    return replace(spec, block_size=block_size, page_size_padded=None)
