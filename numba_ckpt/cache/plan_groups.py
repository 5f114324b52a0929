"""From what layers cache to groups and tensors: who shares a block table, and who shares bytes."""

from collections.abc import Mapping
from math import lcm
from typing import Any

from numba_ckpt._check import check_int, check_kind, refuse
from numba_ckpt.cache.config import EngineConfig
from numba_ckpt.cache.groups import MAX_BYTES, TENSOR_ALIGNMENT, KVCacheConfig, KVCacheGroup, KVCacheTensor
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.cache.merge_specs import UniformTypeSpecs, can_share_a_table
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.rules import ceil_to

__all__ = ["plan_kv_cache"]

# Kinds of nearly as many layers become one group each; otherwise the larger kinds are cut to the smallest's size.
_NEARLY = 1.25


def plan_kv_cache(
    specs: Mapping[str, KVCacheSpec],
    available_bytes: int | None = None,
    num_blocks: int | None = None,
    config: EngineConfig | None = None,
) -> KVCacheConfig:
    """Group the layers of a model, and lay groups over each other so that one pool of blocks serves all.

    Layers of one spec share a block table. If all layers can share one, they do, and each has a tensor of its own.
    Otherwise pages are padded to the largest, groups are made of about as many layers each, and layer i of every group
    lies in tensor i: a block belongs to one group at a time.

    Parameters
    ----------
    specs : mapping of str to KVCacheSpec
        By layer name, in forward order. Layers that cache nothing are left out.
    available_bytes : int, optional
        How many bytes their allocation may take, in any layout.
    num_blocks : int, optional
        How many blocks to plan, the null block among them; instead of `available_bytes`.
    config : EngineConfig, optional
        Refuse a pool in which a request of the longest model length does not fit.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No layer that caches anything, not exactly one of the two sizes, or too few bytes or blocks.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec, StateSpec
    >>> full, state = FullAttentionSpec(64, 2, 64), StateSpec(64, shapes=((4, 64, 64),), dtypes=("bfloat16",))
    >>> specs = {"0": state, "1": state, "2": full, "3": state, "4": state, "5": full}
    >>> plan = plan_kv_cache(specs, available_bytes=2**20)
    >>> [group.layer_names for group in plan.groups]
    [('0', '1'), ('3', '4'), ('2', '5')]
    >>> plan.num_blocks, [tensor.layer_names for tensor in plan.tensors]
    (16, [('0', '3', '2'), ('1', '4', '5')])
    """
    check_kind("specs", specs, Mapping)
    if config is not None:
        check_kind("config", config, EngineConfig)
    groups = _group(_with_caches(specs))
    rows = _rows(groups)
    spec_of = {name: group.spec_of(name) for group in groups for name in group.layer_names}
    pages = [spec_of[names[0]].page_size_bytes for names in rows]
    num_blocks = _num_blocks(available_bytes, num_blocks, pages)
    least = 2 if config is None else 1 + sum(group.spec.max_blocks(config) for group in groups)
    if num_blocks < least:
        why = "the null block and one more" if config is None else "the longest request and the null block"
        expected = f"at least {least} blocks ({least * sum(pages)} bytes): {why}"
        refuse("num_blocks", expected, num_blocks, "give the caches more memory, or shorten requests")
    tensors = (KVCacheTensor(num_blocks * page, names) for page, names in zip(pages, rows, strict=True))
    return KVCacheConfig(num_blocks, tuple(groups), tuple(tensors))


def _num_blocks(available_bytes: int | None, num_blocks: int | None, pages: list[int]) -> int:
    if (available_bytes is None) == (num_blocks is None):
        got = "none" if num_blocks is None else "both"
        refuse("available_bytes", "this or num_blocks", got, "pass one of them")
    if num_blocks is not None:
        return check_int("num_blocks", num_blocks, 0)
    size = check_int("available_bytes", available_bytes, 0, MAX_BYTES)
    most = size // sum(pages)
    while most and sum(int(ceil_to(most * page, TENSOR_ALIGNMENT)) for page in pages) > size:
        most -= 1
    return most


def _rows(groups: list[KVCacheGroup]) -> list[tuple[str, ...]]:
    """Return the layers of each tensor: the first of every group, the second of every group, ..."""
    longest = max(len(group.layer_names) for group in groups)
    return [tuple(group.layer_names[i] for group in groups if i < len(group.layer_names)) for i in range(longest)]


def _with_caches(specs: Mapping[str, Any]) -> dict[str, KVCacheSpec]:
    for name, spec in specs.items():
        if not isinstance(spec, KVCacheSpec) or isinstance(spec, UniformTypeSpecs):
            do = "give each layer a spec of its own"
            refuse(f"specs[{name!r}]", "the spec of one layer", type(spec).__name__, do, ArgumentTypeError)
    cached = {name: spec for name, spec in specs.items() if spec.has_layer_views}
    if not cached:
        refuse(
            "specs", "a layer with a cache", f"{len(specs)} layer(s) without", "a model without caches needs no plan"
        )
    return cached


def _group(specs: dict[str, KVCacheSpec]) -> list[KVCacheGroup]:
    kinds: dict[KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        kinds.setdefault(spec, []).append(name)
    if len(kinds) == 1:
        return [KVCacheGroup(tuple(specs), next(iter(kinds)))]
    if can_share_a_table(tuple(kinds)):
        return [KVCacheGroup(tuple(specs), UniformTypeSpecs(tuple(specs.items())))]
    return _group_kinds(kinds)


def _group_kinds(kinds: dict[KVCacheSpec, list[str]]) -> list[KVCacheGroup]:
    """Cut every kind of layer into groups of about one size, with pages of one size.

    The page of a block that kernels may split is a whole number of elements for each token: whatever size the kernels
    read divides it.
    """
    units = (spec.alignment_bytes * (spec.block_size if spec.can_split_blocks else 1) for spec in kinds)
    largest, unit = max(spec.page_size_bytes for spec in kinds), lcm(*units)
    if largest + unit > MAX_BYTES:
        do = "check the specs' shapes, and that their block sizes have a small common multiple"
        refuse("specs", f"pages of at most {MAX_BYTES} bytes", largest + unit, do)
    page = int(ceil_to(largest, unit))
    counts = sorted(map(len, kinds.values()))
    size = counts[-1] if counts[-1] < _NEARLY * counts[0] else counts[0]
    groups = []
    for spec, names in kinds.items():
        padded = spec.padded_to(page)
        groups += [KVCacheGroup(tuple(names[at : at + size]), padded) for at in range(0, len(names), size)]
    return groups
