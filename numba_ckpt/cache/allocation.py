"""From groups and tensors to the cache of every layer, and which new blocks must be zeroed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_ckpt.cache.groups import KVCacheConfig
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.cache.memory_plan import plan_memory
from numba_ckpt.cache.specs import AttentionSpec
from numba_ckpt.cache.state_spec import StateSpec
from numba_ckpt.cache.storage import KVCacheStorage
from numba_ckpt.cache.views import LayerCache

__all__ = ["allocate_kv_cache", "groups_to_zero"]


def allocate_kv_cache(
    kv_cache_config: KVCacheConfig,
    layout: str = "LBHNC",
    kernel_block_sizes: Sequence[int | None] | None = None,
    array_module: Any = np,
) -> dict[str, LayerCache]:
    """Allocate the caches of all layers at once, zeroed.

    Parameters
    ----------
    kv_cache_config : KVCacheConfig
        Groups and tensors; those of host-resident groups are left out.
    layout : str
        One of `LAYOUTS`.
    kernel_block_sizes : sequence of int or None, optional
        For each group the tokens of the blocks that kernels read; by default the group's block size.
    array_module : module
        numpy or cupy: whatever has ``zeros(size, dtype)``.

    Returns
    -------
    dict
        As `view_caches`. All are views of one allocation, which lives as long as any of them; keep a `KVCacheStorage`
        instead to zero and copy blocks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `plan_memory`; nothing is allocated.

    Examples
    --------
    A block of 528 tokens that kernels read as 33 blocks of 16:

    >>> from numba_ckpt.cache import FullAttentionSpec, plan_kv_cache
    >>> config = plan_kv_cache({"a": FullAttentionSpec(528, num_kv_heads=2, head_size=64)}, num_blocks=3)
    >>> allocate_kv_cache(config, "LBNHC", kernel_block_sizes=[16])["a"].shape
    (99, 2, 16, 128)
    """
    return KVCacheStorage.allocate(plan_memory(kv_cache_config, layout, kernel_block_sizes), array_module).views


def groups_to_zero(kv_cache_config: KVCacheConfig) -> tuple[int, ...]:
    """Return the groups whose new blocks must be zeroed before they are read.

    A state is read before it is written. And where caches of different elements share bytes, what a state left behind
    may be NaN to a key, which spreads even from entries of weight zero.

    Parameters
    ----------
    kv_cache_config : KVCacheConfig
        Groups and tensors.

    Returns
    -------
    tuple of int
        Positions of the groups, ascending.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec, StateSpec, plan_kv_cache
    >>> full, state = FullAttentionSpec(16, 1, 8, "fp8"), StateSpec(16, shapes=((8, 8),), dtypes=("float32",))
    >>> groups_to_zero(plan_kv_cache({"a": full, "b": state}, num_blocks=4))
    (0, 1)
    >>> groups_to_zero(plan_kv_cache({"a": full}, num_blocks=4))
    ()
    """
    group_of = {name: index for index, group in enumerate(kv_cache_config.groups) for name in group.layer_names}
    found: set[int] = set()
    for tensor in kv_cache_config.tensors:
        specs = {name: kv_cache_config.spec_of(name) for name in tensor.layer_names}
        is_mixed = len(set().union(*map(_dtypes_of, specs.values()))) > 1
        found.update(group_of[name] for name, spec in specs.items() if is_mixed or isinstance(spec, StateSpec))
    return tuple(sorted(found))


def _dtypes_of(spec: KVCacheSpec) -> set[str]:
    if isinstance(spec, StateSpec):
        return set(spec.dtypes)
    return {spec.dtype} if isinstance(spec, AttentionSpec) else set()
