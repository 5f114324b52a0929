"""From layers and cache groups to attention groups with a metadata builder for each micro-batch."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numba_ckpt._check import check_int, check_kind, refuse
from numba_ckpt.attention.attention_group import AttentionGroup
from numba_ckpt.attention.backend import AttentionBackend, AttentionCGSupportInfo, AttentionLayer, MetadataBuilder
from numba_ckpt.attention.cg_support import get_attn_cg_support
from numba_ckpt.attention.check_layers import check_builder, check_layer_names, check_layers, checked_backend
from numba_ckpt.attention.fast_prefill import get_kv_sharing_fast_prefill_eligible_layers
from numba_ckpt.attention.fast_prefill_backend import fast_prefill_backend
from numba_ckpt.attention.kernel_block_sizes import prepare_kernel_block_sizes
from numba_ckpt.attention.kv_cache_specs import (
    absent_readers,
    add_kv_sharing_layers_to_kv_cache_groups,
    get_shared_kv_cache_layers,
)
from numba_ckpt.cache import EngineConfig, KVCacheConfig, KVCacheGroup
from numba_ckpt.cache.groups import MAX_BYTES

__all__ = ["AttentionGroup", "init_attn_backend"]


def init_attn_backend(
    kv_cache_config: KVCacheConfig,
    layers: Mapping[str, AttentionLayer],
    config: EngineConfig,
    active_layer_names: Collection[str] | None = None,
    draft_layer_names: Collection[str] | None = None,
) -> tuple[list[list[AttentionGroup]], AttentionCGSupportInfo, list[int]]:
    """Group the layers of each cache group by what they read in a step, and make their metadata builders.

    Layers of one attention group have the same backend, spec and number of query heads. Layers that share another
    layer's cache join its cache group. Those that are eligible for fast prefill get a backend of their own, which
    builds metadata for the logits' tokens alone, and so a group of their own.

    Parameters
    ----------
    kv_cache_config : KVCacheConfig
        The cache groups; layers that share another layer's cache may be left out.
    layers : mapping of str to AttentionLayer
        In forward order.
    config : EngineConfig
        Handed to the builders; ``parallel.num_ubatches`` is how many each group gets.
    active_layer_names : collection of str, optional
        Layers to group; all by default.
    draft_layer_names : collection of str, optional
        Layers of a draft model, never eligible for fast prefill.

    Returns
    -------
    attn_groups : list of list of AttentionGroup
        One list for each cache group, in the order in which its layers come; empty where layers have no view of a
        cache, or none is active.
    cg_support : AttentionCGSupportInfo
        The weakest CUDA-graph support, and whose it is.
    kernel_block_sizes : list of int
        Tokens of a kernel block, one for each cache group.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Unknown layers, a sharing layer whose target is missing or shares a cache itself, a block size that a group's
        backends do not support, something that is no backend.
    """
    for name, value, kind in (
        ("kv_cache_config", kv_cache_config, KVCacheConfig),
        ("layers", layers, Mapping),
        ("config", config, EngineConfig),
    ):
        check_kind(name, value, kind)
    check_layers(layers)
    active = layers if active_layer_names is None else active_layer_names
    active = check_layer_names("active_layer_names", active, layers)
    draft_layer_names = check_layer_names("draft_layer_names", draft_layer_names or (), layers)
    eligible = get_kv_sharing_fast_prefill_eligible_layers(layers, config, draft_layer_names)
    kv_cache_config = _with_sharing_layers(kv_cache_config, layers)
    backends = _backends_of(kv_cache_config, layers, active, eligible)
    attn_groups = [_discover(index, group, layers, backends) for index, group in enumerate(kv_cache_config.groups)]
    kernel_block_sizes = prepare_kernel_block_sizes(kv_cache_config, attn_groups)
    attn_groups = [
        [_with_builders(group, config, size) for group in groups]
        for groups, size in zip(attn_groups, kernel_block_sizes, strict=True)
    ]
    _share_workspace([builder for groups in attn_groups for group in groups for builder in group.metadata_builders])
    return attn_groups, get_attn_cg_support(attn_groups), kernel_block_sizes


def _with_sharing_layers(kv_cache_config: KVCacheConfig, layers: Mapping[str, AttentionLayer]) -> KVCacheConfig:
    """Add the layers that share a cache, except those that the caller has added already."""
    absent = absent_readers(kv_cache_config, get_shared_kv_cache_layers(layers))
    return add_kv_sharing_layers_to_kv_cache_groups(kv_cache_config, absent)


def _backends_of(
    kv_cache_config: KVCacheConfig,
    layers: Mapping[str, AttentionLayer],
    active: Collection[str],
    eligible: Collection[str],
) -> dict[str, type[AttentionBackend]]:
    """Backends of the active layers of groups with views, by layer name, in the order of the groups."""
    names = [name for group in kv_cache_config.groups for name in group.layer_names if group.spec.has_layer_views]
    unknown = [name for name in names if name not in layers]
    if unknown:
        do = "pass every layer of the cache groups"
        refuse("layers", "the layers of all cache groups", "none named " + ", ".join(map(repr, unknown)), do)
    backends = {name: checked_backend(name, layers[name].get_attn_backend()) for name in names if name in active}
    for backend in dict.fromkeys(backends.values()):
        check_builder(backend)
    return {name: fast_prefill_backend(backend) if name in eligible else backend for name, backend in backends.items()}


def _discover(
    kv_cache_group_id: int,
    group: KVCacheGroup,
    layers: Mapping[str, AttentionLayer],
    backends: Mapping[str, type[AttentionBackend]],
) -> list[AttentionGroup]:
    """Put a cache group's layers together that may read the same metadata, in the order of their first ones."""
    found: dict[Any, list[str]] = {}
    for name in group.layer_names:
        if name in backends:
            num_heads = check_int(f"{name}.num_heads", layers[name].num_heads, 0)
            found.setdefault((backends[name], group.spec_of(name), num_heads), []).append(name)
    return [
        AttentionGroup(backend, tuple(names), spec, kv_cache_group_id, num_heads=num_heads)
        for (backend, spec, num_heads), names in found.items()
    ]


def _with_builders(group: AttentionGroup, config: EngineConfig, kernel_block_size: int) -> AttentionGroup:
    # Micro-batches build at the same time, and a builder may keep what it prepared: none is shared.
    builder = group.backend.builder_class()
    arguments = group.spec, group.layer_names, config, kernel_block_size, group.num_heads
    return replace(group, metadata_builders=tuple(builder(*arguments) for _ in range(config.parallel.num_ubatches)))


def _share_workspace(builders: Sequence[MetadataBuilder]) -> None:
    """Hand the largest workspace to all builders; micro-batches take turns on one stream, so one is enough."""
    users = [
        builder
        for builder in builders
        if check_int(f"{type(builder).__name__}.num_workspace_bytes", builder.num_workspace_bytes, 0, MAX_BYTES)
    ]
    if users:
        buffer = max(users, key=lambda builder: builder.num_workspace_bytes).get_workspace_buffer()
        for builder in users:
            builder.set_workspace_buffer(buffer)
