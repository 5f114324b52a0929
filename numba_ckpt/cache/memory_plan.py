"""Where the caches of all layers lie in one allocation, and which layouts cannot hold them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from numba_ckpt._check import check_choice, check_kind, refuse
from numba_ckpt.cache.config import LAYOUTS
from numba_ckpt.cache.groups import TENSOR_ALIGNMENT, KVCacheConfig, KVCacheGroup, KVCacheTensor
from numba_ckpt.cache.layouts import LayerMemory, PageCut
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.rules import ceil_to

__all__ = ["MemoryPlan", "plan_memory"]

# One tensor alone has nothing between its blocks.
_ALONE = {"BLHNC": "LBHNC", "BLNHC": "LBNHC", "BHLNC": "LBHNC"}


@dataclass(frozen=True)
class MemoryPlan:
    """Where everything lies in one allocation.

    Attributes
    ----------
    size_bytes : int
        Of the allocation.
    alignment_bytes : int
        Number of bytes of which its address must be a multiple.
    kv_cache_config : KVCacheConfig
        What is laid out.
    layers : mapping of str to LayerMemory
        By layer name, tensor by tensor.
    """

    size_bytes: int
    alignment_bytes: int
    kv_cache_config: KVCacheConfig
    layers: MappingProxyType[str, LayerMemory]


def plan_memory(
    kv_cache_config: KVCacheConfig, layout: str = "LBHNC", kernel_block_sizes: Sequence[int | None] | None = None
) -> MemoryPlan:
    """Lay the caches of all layers out in one allocation; those of host-resident groups are left out.

    Parameters
    ----------
    kv_cache_config : KVCacheConfig
        Groups and tensors.
    layout : str
        One of `LAYOUTS`.
    kernel_block_sizes : sequence of int or None, optional
        For each group the tokens of the blocks that kernels read, a divisor of the group's block size; None (the
        default) for the group's own.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An unknown layout, kernel blocks that divide neither the group's block nor its padded page, or layers whose
        pages this layout cannot lay over or between each other.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec
    >>> spec = FullAttentionSpec(16, num_kv_heads=2, head_size=64)
    >>> tensors = KVCacheTensor(81920, ("a",)), KVCacheTensor(81920, ("b",))
    >>> config = KVCacheConfig(10, (KVCacheGroup(("a", "b"), spec),), tensors)
    >>> view = plan_memory(config, "BLNHC").layers["b"].views[0]
    >>> view.offset, view.shape, view.strides
    (8192, (10, 2, 16, 128), (16384, 256, 512, 2))
    """
    if not isinstance(kv_cache_config, KVCacheConfig):
        do = "plan one with plan_kv_cache, or make one"
        refuse("kv_cache_config", "a KVCacheConfig", type(kv_cache_config).__name__, do, ArgumentTypeError)
    check_choice("layout", layout, LAYOUTS)
    num_parts = _parts_by_layer(kv_cache_config, kernel_block_sizes)
    tensors = _tensors_on_device(kv_cache_config)
    layout = _ALONE.get(layout, layout) if len(tensors) == 1 else layout
    num_blocks, num_between = kv_cache_config.num_blocks, len(tensors) if layout[0] == "B" else 1
    names = [name for tensor in tensors for name in tensor.layer_names]
    cuts = {name: PageCut(kv_cache_config.spec_of(name), num_blocks, num_parts[name], num_between) for name in names}
    _check_cuts(layout, cuts, [tensor.layer_names for tensor in tensors])
    layers, size = _place(layout, cuts, tensors)
    alignment = max((cut.spec.alignment_bytes for cut in cuts.values()), default=1)
    return MemoryPlan(size, alignment, kv_cache_config, MappingProxyType(layers))


def _place(
    layout: str, cuts: dict[str, PageCut], tensors: Sequence[KVCacheTensor]
) -> tuple[dict[str, LayerMemory], int]:
    layers, size = {}, 0
    for index, tensor in enumerate(tensors):
        place = (index, 0) if layout[0] == "B" else (0, size)
        layers.update({name: cuts[name].place(layout, *place) for name in tensor.layer_names})
        size += tensor.size_bytes if layout[0] == "B" else ceil_to(tensor.size_bytes, TENSOR_ALIGNMENT)
    return layers, size


def _tensors_on_device(kv_cache_config: KVCacheConfig) -> list[KVCacheTensor]:
    tensors = []
    for index, tensor in enumerate(kv_cache_config.tensors):
        hosted = [kv_cache_config.group_of(name).is_host_resident for name in tensor.layer_names]
        if any(hosted) and not all(hosted):
            do = "give host-resident groups tensors of their own"
            refuse(f"tensors[{index}]", "layers of one place", "layers of host and device", do)
        tensors += [] if any(hosted) else [tensor]
    return tensors


def _parts_by_layer(kv_cache_config: KVCacheConfig, sizes: Sequence[int | None] | None) -> dict[str, int]:
    """Return how many kernel blocks a block of each layer has."""
    groups = kv_cache_config.groups
    sizes = [None] * len(groups) if sizes is None else sizes
    check_kind("kernel_block_sizes", sizes, Sequence)
    if len(sizes) != len(groups):
        refuse("kernel_block_sizes", f"{len(groups)} sizes, one per group", len(sizes), "give each group's, or None")
    parts = {}
    for index, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        num_parts = _num_parts(f"kernel_block_sizes[{index}]", group, size)
        parts.update(dict.fromkeys(group.layer_names, num_parts))
    return parts


def _num_parts(name: str, group: KVCacheGroup, size: int | None) -> int:
    if size is None:
        return 1
    num_parts = 1
    for layer_name in group.layer_names:
        spec = group.spec_of(layer_name)
        num_parts = spec.num_kernel_blocks(name, size)
        if spec.page_size_bytes % (num_parts * spec.alignment_bytes):
            expected = f"kernel blocks that {num_parts} of make up a page of {spec.page_size_bytes} bytes"
            refuse(name, expected, size, f"pad the page of {layer_name!r} to a multiple of {num_parts} elements")
    return num_parts


def _check_cuts(layout: str, cuts: dict[str, PageCut], tensors: Sequence[Iterable[str]]) -> None:
    """Refuse layers that would not keep block b of all of them in the same bytes, or apart from other blocks."""
    scopes: Sequence[Iterable[str]] = tensors if layout[0] == "L" else [tuple(cuts)]
    puts_heads_apart = layout in ("LHBNC", "BHLNC")
    for scope in scopes:
        described = {name: _describe_cut(layout, cuts[name]) for name in scope}
        first = next(iter(described), "")
        for name, cut in described.items():
            if cut != described[first]:
                expected = f"pages of one cut in layout {layout}"
                got = f"{described[first]} in {first!r}, {cut} in {name!r}"
                refuse("layout", expected, got, "take LBHNC or LBNHC, which keep each layer's pages whole")
            is_padded = cuts[name].spec.page_size_bytes != cuts[name].spec.data_size_bytes
            if puts_heads_apart and cuts[name].num_heads > 1 and is_padded:
                expected = f"pages without padding in layout {layout}"
                refuse("layout", expected, f"a padded one in {name!r}", "take a layout that keeps pages whole")


def _describe_cut(layout: str, cut: PageCut) -> str:
    """Say what layers must agree in: where blocks come first, their whole pages; where heads come apart, those."""
    parts = []
    if layout[0] == "B":
        parts = [f"{cut.spec.page_size_bytes} bytes", f"{cut.num_parts} kernel block(s)"]
    if layout in ("LHBNC", "BHLNC"):
        parts.append(f"{cut.num_heads} head(s)")
    return ", ".join(parts)
