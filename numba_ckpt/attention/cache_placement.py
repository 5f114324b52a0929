"""Where and how caches are allocated, and what of host-resident groups lies on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_ckpt._check import check_choice, check_int, refuse
from numba_ckpt.cache import KVCacheConfig, KVCacheTensor, MemoryPlan, plan_memory
from numba_ckpt.cache.config import LAYOUTS
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["CachePlacement", "plan_hot_set"]


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
        ``numpy`` or ``cupy``: whatever has ``zeros(size, dtype)``.
    num_hot_blocks : int, optional
        Blocks of host-resident groups that are on the device at a time, the null block among them; at least 2, and
        needed where there are such groups.
    num_attn_modules : int
        Attention modules in a decoder layer: with two, a layer's name carries the numbers of both.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is of another kind or out of range.

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
        sizes = self.kernel_block_sizes
        if sizes is not None:
            if not isinstance(sizes, (list, tuple)):
                got, do = repr(sizes), "pass what init_attn_backend returns"
                refuse("kernel_block_sizes", "a list of sizes, one per group", got, do, ArgumentTypeError)
            object.__setattr__(self, "kernel_block_sizes", tuple(sizes))
        if not callable(getattr(self.array_module, "zeros", None)):
            got = repr(self.array_module)
            refuse("array_module", "numpy, cupy or another with zeros()", got, "pass the module", ArgumentTypeError)
        check_int("num_attn_modules", self.num_attn_modules, 1)
        if self.num_hot_blocks is not None:
            check_int("num_hot_blocks", self.num_hot_blocks, 2)


def plan_hot_set(kv_cache_config: KVCacheConfig, placement: CachePlacement) -> MemoryPlan | None:
    """Plan the device's pages of host-resident groups; None where there are no such groups."""
    hosted = [index for index, group in enumerate(kv_cache_config.groups) if group.is_host_resident]
    num_slots = _num_slots(placement, bool(hosted))
    if num_slots is None:
        return None
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


def _num_slots(placement: CachePlacement, is_needed: bool) -> int | None:
    num_slots = placement.num_hot_blocks
    if is_needed and num_slots is None:
        do = "say how many blocks of host-resident groups the device holds"
        refuse("num_hot_blocks", "a number of blocks", "None", do)
    if num_slots is not None and not is_needed:
        do = "mark groups is_host_resident, or leave it out"
        refuse("num_hot_blocks", "None, as no group is host-resident", num_slots, do)
    return num_slots
