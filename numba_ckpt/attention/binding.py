"""From planned caches to layers that hold them: allocate, alias, bind; or leave nothing behind."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_ckpt._check import check_choice, check_int, refuse
from numba_ckpt.attention.backend import AttentionLayer
from numba_ckpt.attention.kv_cache_specs import check_layers, get_shared_kv_cache_layers
from numba_ckpt.cache import (
    HostTier,
    KVCacheConfig,
    KVCacheStorage,
    KVCacheTensor,
    MemoryPlan,
    plan_memory,
)
from numba_ckpt.cache.config import LAYOUTS
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["BoundCaches", "CachePlacement", "bind_kv_cache_to_layers", "init_kv_cache"]

Layers = Mapping[str, AttentionLayer]
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True)
class CachePlacement:
    """Where and how caches are allocated.

    Parameters
    ----------
    layout : str
        One of `numba_ckpt.cache.LAYOUTS`. Hot sets keep its order of heads and tokens, but each layer's blocks lie in a
        row.
    kernel_block_sizes : sequence of int or None, optional
        For each group, as `init_attn_backend` returns them; by default the groups' own block sizes.
    array_module : module
        ``numpy`` or ``cupy``.
    num_hot_blocks : int, optional
        Blocks of host-resident groups that are on the device at a time, the null block among them; at least 2, and
        needed where there are such groups.
    num_attn_modules : int
        Attention modules in a decoder layer: with two, a layer's name carries the numbers of both.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is out of range.

    Examples
    --------
    >>> CachePlacement(layout="BLNHC").num_attn_modules
    1
    """

    layout: str = "LBHNC"
    kernel_block_sizes: Sequence[int | None] | None = None
    array_module: Any = np
    num_hot_blocks: int | None = None
    num_attn_modules: int = 1

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, LAYOUTS)
        check_int("num_attn_modules", self.num_attn_modules, 1)
        if self.num_hot_blocks is not None:
            check_int("num_hot_blocks", self.num_hot_blocks, 2)


@dataclass(frozen=True, slots=True, eq=False)
class BoundCaches:
    """The caches of a model, as layers hold them.

    Attributes
    ----------
    by_layer : dict of str to array or tuple of arrays
        In forward order; a layer that shares a cache has its target's.
    in_layer_order : list
        The caches of the layers that are bound, by the numbers in their names.
    storage : KVCacheStorage
        Memory of the groups on the device; zeroes and copies blocks.
    hot_storage : KVCacheStorage or None
        Memory of the hot set of host-resident groups; their layers' blocks are slots of `host_tier`.
    host_tier : HostTier or None
        Moves their blocks in and out.
    """

    by_layer: dict[str, Any]
    in_layer_order: list[Any]
    storage: KVCacheStorage
    hot_storage: KVCacheStorage | None = None
    host_tier: HostTier | None = None


def bind_kv_cache_to_layers(caches: Mapping[str, Any], layers: Layers, num_attn_modules: int = 1) -> list[Any]:
    """Hand every layer its cache, in forward order; return the caches by the numbers in the layers' names.

    Parameters
    ----------
    caches : mapping of str to array or tuple of arrays
        By layer name.
    layers : mapping of str to AttentionLayer
        In forward order; those without a cache are left alone.
    num_attn_modules : int
        Attention modules in a decoder layer, and so numbers in a name: ``layers.3.attn.1`` with two.

    Returns
    -------
    list
        In layer order; in forward order where no name carries a number.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A cache of an unknown layer, or a name with another count of numbers; nothing is bound then. Whatever a layer
        raises goes on, once the layers that were bound before have been handed None.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> def layer():
    ...     made = SimpleNamespace(kv_sharing_target_layer_name=None, num_heads=1, cache=None)
    ...     made.get_kv_cache_spec = made.get_attn_backend = print
    ...     made.bind_kv_cache = lambda cache: setattr(made, "cache", cache)
    ...     return made
    >>> layers = {"layers.1.attn": layer(), "layers.0.attn": layer()}
    >>> bind_kv_cache_to_layers({"layers.0.attn": "first", "layers.1.attn": "second"}, layers)
    ['first', 'second']
    >>> layers["layers.1.attn"].cache
    'second'
    """
    check_layers(layers)
    for name in caches:
        if name not in layers:
            refuse("caches", "caches of the model's layers", repr(name), "check its name")
    names = [name for name in layers if name in caches]
    order = _layer_order(names, check_int("num_attn_modules", num_attn_modules, 1))
    bound: list[str] = []
    try:
        for name in names:
            bound.append(name)
            layers[name].bind_kv_cache(caches[name])
    except BaseException as error:
        _unbind(bound, layers, error)
        raise
    return [caches[name] for name in order]


def _unbind(bound: list[str], layers: Layers, error: BaseException) -> None:
    """Hand layers None; one that fails at that too does not keep the others bound."""
    for name in reversed(bound):
        try:
            layers[name].bind_kv_cache(None)
        except Exception as second:
            error.add_note(f"{name} could not be unbound: {second!r}")


def _layer_order(names: list[str], num_attn_modules: int) -> list[str]:
    numbers = {name: [int(number) for number in _NUMBERS.findall(name)] for name in names}
    if not any(numbers.values()):
        return names
    for name, found in numbers.items():
        if len(found) != num_attn_modules:
            expected = f"{num_attn_modules} number(s) between dots in every layer's name"
            refuse("layers", expected, f"{len(found)} in {name!r}", "set num_attn_modules, or rename the layer")
    return sorted(names, key=lambda name: numbers[name])


def init_kv_cache(
    layers: Layers,
    kv_cache_config: KVCacheConfig,
    placement: CachePlacement | None = None,
    allocation_context: AbstractContextManager[Any] | None = None,
) -> BoundCaches:
    """Allocate all caches and bind them to the layers.

    Parameters
    ----------
    layers : mapping of str to AttentionLayer
        In forward order.
    kv_cache_config : KVCacheConfig
        Groups and tensors; layers that share another layer's cache may be in its group or be left out.
    placement : CachePlacement, optional
        Layout, kernel blocks, device, hot set.
    allocation_context : context manager, optional
        Entered around all allocations, such as a memory pool of the caller.

    Returns
    -------
    BoundCaches
        The arrays that were bound.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A group's layer that the model has not, a layer without a cache in a group, a sharing layer without a proper
        target, host-resident groups without a hot set, or a plan that the layout cannot hold; nothing is allocated.

    Notes
    -----
    If anything fails on the way, layers that were bound are handed None and the host's pages are released before the
    error goes on. Memory is zeroed once; blocks of a new owner are zeroed by `KVCacheStorage.zero_blocks`.

    Examples
    --------
    See the page *A whole step*.
    """
    placement = CachePlacement() if placement is None else placement
    if not isinstance(placement, CachePlacement):
        do = "make one of layout, kernel blocks and device"
        refuse("placement", "a CachePlacement", type(placement).__name__, do, ArgumentTypeError)
    check_layers(layers)
    shared = get_shared_kv_cache_layers(layers)
    plan = plan_memory(kv_cache_config, placement.layout, placement.kernel_block_sizes)
    hot_plan = _plan_hot_set(kv_cache_config, placement)
    _check_names(layers, kv_cache_config, shared)
    with ExitStack() as undo:
        with nullcontext() if allocation_context is None else allocation_context:
            storage = KVCacheStorage.allocate(plan, placement.array_module)
            hot, tier = _allocate_hot_set(kv_cache_config, hot_plan, placement)
            if tier is not None:
                undo.callback(tier.close)
        views = storage.views | (hot.views if hot is not None else {})
        caches = {name: views[shared.get(name, name)] for name in layers if shared.get(name, name) in views}
        in_order = bind_kv_cache_to_layers(caches, layers, placement.num_attn_modules)
        undo.pop_all()
    return BoundCaches(caches, in_order, storage, hot, tier)


def _check_names(layers: Layers, kv_cache_config: KVCacheConfig, shared: Mapping[str, str]) -> None:
    in_tensors = {name for tensor in kv_cache_config.tensors for name in tensor.layer_names}
    for group in kv_cache_config.groups:
        for name in group.layer_names:
            if name not in layers:
                refuse("kv_cache_config", "layers of the model", repr(name), "plan the caches of these layers")
            if name not in in_tensors and name not in shared and group.spec_of(name).has_layer_views:
                do = "give the layer a tensor, or let it share another layer's"
                refuse("kv_cache_config", "memory for every layer of a group", f"none for {name!r}", do)
    for name, target in shared.items():
        if target not in in_tensors:
            do = "share the cache of a layer that has memory"
            refuse(f"{name}.kv_sharing_target_layer_name", "a layer with a tensor", repr(target), do)
        if name in in_tensors:
            refuse("kv_cache_config", "no memory for layers that share", repr(name), "leave it out of the tensors")


def _plan_hot_set(kv_cache_config: KVCacheConfig, placement: CachePlacement) -> MemoryPlan | None:
    """Plan the device's pages of host-resident groups."""
    hosted = [index for index, group in enumerate(kv_cache_config.groups) if group.is_host_resident]
    if not hosted:
        return None
    num_slots = placement.num_hot_blocks
    if num_slots is None:
        do = "say how many blocks of host-resident groups the device holds"
        refuse("num_hot_blocks", "a number of blocks", "None", do)
    groups = tuple(replace(kv_cache_config.groups[index], is_host_resident=False) for index in hosted)
    names = {name for group in groups for name in group.layer_names}
    tensors = tuple(
        KVCacheTensor(tensor.size_bytes // kv_cache_config.num_blocks * num_slots, tensor.layer_names)
        for tensor in kv_cache_config.tensors
        if names.issuperset(tensor.layer_names)
    )
    sizes = placement.kernel_block_sizes
    own_sizes = None if sizes is None else [sizes[index] for index in hosted]
    # A page moves in one piece, so nothing may lie between its heads.
    layout = "LB" + placement.layout.translate({ord(letter): None for letter in "LB"})
    return plan_memory(KVCacheConfig(num_slots, groups, tensors), layout, own_sizes)


def _allocate_hot_set(
    kv_cache_config: KVCacheConfig, hot_plan: MemoryPlan | None, placement: CachePlacement
) -> tuple[KVCacheStorage | None, HostTier | None]:
    """Allocate the device's pages of host-resident groups, and the host's."""
    if hot_plan is None:
        return None, None
    hot = KVCacheStorage.allocate(hot_plan, placement.array_module)
    return hot, HostTier(hot.pages(), kv_cache_config.num_blocks)
