"""From planned caches to layers that hold them: allocate, alias, bind; or leave nothing behind."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from traceback import clear_frames
from typing import Any

from numba_ckpt._check import check_int, check_kind, refuse
from numba_ckpt.attention.backend import AttentionLayer
from numba_ckpt.attention.cache_placement import CachePlacement, plan_hot_set
from numba_ckpt.attention.check_layers import check_layers
from numba_ckpt.attention.kv_cache_specs import (
    absent_readers,
    get_kv_cache_spec,
    get_shared_kv_cache_layers,
)
from numba_ckpt.cache import EngineConfig, HostTier, KVCacheConfig, KVCacheStorage, MemoryPlan, plan_memory
from numba_ckpt.cache.merge_specs import spec_difference
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["BoundCaches", "bind_kv_cache_to_layers", "init_kv_cache"]

Layers = Mapping[str, AttentionLayer]
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")


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
    if not isinstance(caches, Mapping):
        expected, do = "a mapping from names to caches", "name the layers"
        refuse("caches", expected, type(caches).__name__, do, ArgumentTypeError)
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
    config: EngineConfig | None = None,
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
    config : EngineConfig, optional
        Ask the layers what they cache, and refuse a plan that leaves one of them without.

    Returns
    -------
    BoundCaches
        The arrays that were bound.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A group's layer that the model has not, a layer without a cache in a group, a sharing layer without a proper
        target or in another group, a hot set without host-resident groups or these without one, a name without its
        numbers, or a plan that the layout cannot hold; nothing is allocated.

    Notes
    -----
    If anything fails on the way, layers that this call bound are handed None and all memory is released before the
    error goes on; that takes the locals of the calls that failed from a debugger. Memory is zeroed once; blocks of a
    new owner are zeroed by `KVCacheStorage.zero_blocks`.

    Examples
    --------
    See the page *Binding*.
    """
    placement = _check_arguments(layers, placement, allocation_context, config)
    shared = get_shared_kv_cache_layers(layers)
    plan = plan_memory(kv_cache_config, placement.layout, placement.kernel_block_sizes)
    plans = _Plans(plan, plan_hot_set(kv_cache_config, placement), placement)
    _check_names(layers, kv_cache_config, shared)
    targets = {name: shared.get(name, name) for name in layers}
    targets = {name: target for name, target in targets.items() if target in plans.layers}
    _check_needs(layers, config, targets, kv_cache_config)
    _layer_order(list(targets), placement.num_attn_modules)
    try:
        return _allocate_and_bind(layers, targets, plans, allocation_context)
    except BaseException as error:
        # Who keeps the error, or tries again while handling it, must not keep the memory.
        clear_frames(error.__traceback__)
        raise


@dataclass(frozen=True, slots=True)
class _Plans:
    device: MemoryPlan
    hot: MemoryPlan | None
    placement: CachePlacement

    @property
    def layers(self) -> frozenset[str]:
        """Names of the layers that have memory."""
        return frozenset(self.device.layers) | frozenset(() if self.hot is None else self.hot.layers)


def _allocate_and_bind(
    layers: Layers, targets: Mapping[str, str], plans: _Plans, context: AbstractContextManager[Any] | None
) -> BoundCaches:
    with ExitStack() as undo:
        made = None
        with nullcontext() if context is None else context:
            made = _allocate(plans, undo)
        if made is None:
            do = "let it raise: there are no caches"
            refuse("allocation_context", "a context that lets errors through", "one that held one back", do)
        storage, hot, tier = made
        views = storage.views | (hot.views if hot is not None else {})
        caches = {name: views[target] for name, target in targets.items()}
        in_order = bind_kv_cache_to_layers(caches, layers, plans.placement.num_attn_modules)
        undo.pop_all()
    return BoundCaches(caches, in_order, storage, hot, tier)


def _allocate(plans: _Plans, undo: ExitStack) -> tuple[KVCacheStorage, KVCacheStorage | None, HostTier | None]:
    """Allocate the caches, the device's pages of host-resident groups, and the host's."""
    storage = KVCacheStorage.allocate(plans.device, plans.placement.array_module)
    if plans.hot is None:
        return storage, None, None
    hot = KVCacheStorage.allocate(plans.hot, plans.placement.array_module)
    tier = HostTier(hot.pages(), plans.device.kv_cache_config.num_blocks)
    undo.callback(tier.close)
    return storage, hot, tier


def _check_arguments(layers: Any, placement: Any, context: Any, config: Any) -> CachePlacement:
    """Refuse arguments of other kinds; return the placement."""
    check_layers(layers)
    placement = CachePlacement() if placement is None else placement
    check_kind("placement", placement, CachePlacement)
    if context is not None:
        check_kind("allocation_context", context, AbstractContextManager)
    if config is not None:
        check_kind("config", config, EngineConfig)
    return placement  # type: ignore[no-any-return]


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
    absent_readers(kv_cache_config, shared)


def _check_needs(
    layers: Layers, config: EngineConfig | None, targets: Mapping[str, str], kv_cache_config: KVCacheConfig
) -> None:
    """Refuse a plan without memory for a layer, or with memory of another kind than the layer wants."""
    hosted = [name for group in kv_cache_config.groups if group.is_host_resident for name in group.layer_names]
    own = [name for name in hosted if targets.get(name) == name]
    wanted = {} if config is None else get_kv_cache_spec(layers, config, own)
    for name, spec in wanted.items():
        if name not in targets:
            do = "plan the caches of all layers, or pass no config"
            refuse("kv_cache_config", "memory for every layer that caches something", f"none for {name!r}", do)
        planned = kv_cache_config.spec_of(name)
        if difference := spec_difference(planned, spec):
            got, do = f"{difference} for {name!r}", "plan the caches from what get_kv_cache_spec returns"
            refuse("kv_cache_config", "the specs that the layers want", got, do)
