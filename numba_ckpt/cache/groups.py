"""Which layers share a block table, and which share bytes.

Blocks of one pool belong to one group at a time, so layers of *different* groups may overlay each other::

                 block 0   block 1   block 2
    tensor 0   |         | full.0  | state.0 |     layer i of every group lies in tensor i,
    tensor 1   |  (null) | full.1  | state.1 |     and block b is the same bytes for all of them
"""

from dataclasses import dataclass

from numba_ckpt._check import check_bool, check_int, refuse
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.cache.merge_specs import UniformTypeSpecs
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["KVCacheConfig", "KVCacheGroup", "KVCacheTensor"]

TENSOR_ALIGNMENT = 256
"""Bytes: where layers come before blocks, every tensor begins at a multiple, so that kernels may load wide words."""
MAX_BYTES = 2**62


def _check_names(name: str, layer_names: object) -> tuple[str, ...]:
    if not isinstance(layer_names, (tuple, list)) or not all(isinstance(layer, str) for layer in layer_names):
        refuse(name, "a tuple of layer names", repr(layer_names), "name the layers", ArgumentTypeError)
    if not layer_names:
        refuse(name, "at least one layer", "none", "leave it out")
    twice = sorted({layer for layer in layer_names if layer_names.count(layer) > 1})
    if twice:
        refuse(name, "each layer once", ", ".join(twice) + " twice", "give layers names of their own")
    return tuple(layer_names)


@dataclass(frozen=True)
class KVCacheGroup:
    """Layers that share one block table.

    Parameters
    ----------
    layer_names : tuple of str
        In forward order.
    spec : KVCacheSpec
        What each of them caches; `UniformTypeSpecs` where they differ.
    is_host_resident : bool
        Whether the cache is kept in host memory, with a hot set on the device.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No layer, a layer twice, or a layer that the specs leave out.
    """

    layer_names: tuple[str, ...]
    spec: KVCacheSpec
    is_host_resident: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_names", _check_names("layer_names", self.layer_names))
        if not isinstance(self.spec, KVCacheSpec):
            refuse("spec", "a KVCacheSpec", type(self.spec).__name__, "say what the layers cache", ArgumentTypeError)
        check_bool("is_host_resident", self.is_host_resident)
        for layer_name in self.layer_names:
            self.spec_of(layer_name)

    def spec_of(self, layer_name: str) -> KVCacheSpec:
        """Return the spec of one layer."""
        return self.spec.of(layer_name) if isinstance(self.spec, UniformTypeSpecs) else self.spec


@dataclass(frozen=True)
class KVCacheTensor:
    """A stretch of memory with a page for every block, shared by layers of different groups.

    Parameters
    ----------
    size_bytes : int
        Blocks times the page size of its layers.
    layer_names : tuple of str
        One per overlaying group, in the order of the groups.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No layer, a layer twice, or no bytes.
    """

    size_bytes: int
    layer_names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size_bytes", check_int("size_bytes", self.size_bytes, 1, MAX_BYTES))
        object.__setattr__(self, "layer_names", _check_names("layer_names", self.layer_names))


@dataclass(frozen=True)
class KVCacheConfig:
    """A whole model's caches.

    Parameters
    ----------
    num_blocks : int
        Blocks of the pool, the null block among them.
    groups : tuple of KVCacheGroup
        In the order of block tables and slot mappings.
    tensors : tuple of KVCacheTensor
        Layers that share another layer's cache lie in none.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A layer in two groups or two tensors, layers of one group that overlay each other, layers that overlay each
        other with pages of different sizes, groups in another order than in other tensors, an unknown layer, or a size
        that is not blocks times page size.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec
    >>> spec = FullAttentionSpec(16, num_kv_heads=2, head_size=64, dtype="float16")
    >>> groups = (KVCacheGroup(("layer.0",), spec),)
    >>> config = KVCacheConfig(100, groups, (KVCacheTensor(100 * spec.page_size_bytes, ("layer.0",)),))
    >>> config.size_bytes
    819200
    """

    num_blocks: int
    groups: tuple[KVCacheGroup, ...]
    tensors: tuple[KVCacheTensor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_blocks", check_int("num_blocks", self.num_blocks, 1))
        for name, kind in {"groups": KVCacheGroup, "tensors": KVCacheTensor}.items():
            records = getattr(self, name)
            if not isinstance(records, (tuple, list)) or not all(isinstance(record, kind) for record in records):
                refuse(name, f"a tuple of {kind.__name__}", repr(records)[:80], "make these records", ArgumentTypeError)
            object.__setattr__(self, name, tuple(records))
        group_ids = self._group_ids()
        self._check_one_tensor_per_layer(group_ids)
        for index, tensor in enumerate(self.tensors):
            self._check_tensor(f"tensors[{index}]", tensor, group_ids)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def group_of(self, layer_name: str) -> KVCacheGroup:
        """Return the group that a layer is in."""
        found = [group for group in self.groups if layer_name in group.layer_names]
        if not found:
            refuse("layer_name", "a layer of some group", repr(layer_name), "check its name")
        return found[0]

    def spec_of(self, layer_name: str) -> KVCacheSpec:
        """Return what a layer caches."""
        return self.group_of(layer_name).spec_of(layer_name)

    def _group_ids(self) -> dict[str, int]:
        group_ids: dict[str, int] = {}
        for index, group in enumerate(self.groups):
            for layer_name in group.layer_names:
                if layer_name in group_ids:
                    got = f"{layer_name!r} in groups {group_ids[layer_name]} and {index}"
                    refuse("groups", "each layer in one group", got, "give layers names of their own")
                group_ids[layer_name] = index
        return group_ids

    def _check_one_tensor_per_layer(self, group_ids: dict[str, int]) -> None:
        tensor_ids: dict[str, int] = {}
        for index, tensor in enumerate(self.tensors):
            for layer_name in tensor.layer_names:
                if layer_name not in group_ids:
                    refuse(f"tensors[{index}]", "layers of some group", repr(layer_name), "add it to a group")
                if layer_name in tensor_ids:
                    got = f"{layer_name!r} in tensors {tensor_ids[layer_name]} and {index}"
                    refuse("tensors", "each layer in one tensor", got, "keep one of them")
                tensor_ids[layer_name] = index

    def _check_tensor(self, name: str, tensor: KVCacheTensor, group_ids: dict[str, int]) -> None:
        ids = [group_ids[layer_name] for layer_name in tensor.layer_names]
        if len(set(ids)) < len(ids):
            do = "give layers of one group tensors of their own: they use the same blocks at the same time"
            refuse(name, "layers of different groups", ", ".join(tensor.layer_names), do)
        if ids != sorted(ids):
            do = "list the layers of every tensor in the order of the groups"
            refuse(name, "layers in the order of the groups", ", ".join(tensor.layer_names), do)
        pages = [self.spec_of(layer_name).page_size_bytes for layer_name in tensor.layer_names]
        if len(set(pages)) > 1:
            got = ", ".join(f"{size} of {layer}" for layer, size in zip(tensor.layer_names, pages, strict=True))
            refuse(name, "layers with pages of one size", got, "pad the smaller ones (page_size_padded)")
        if tensor.size_bytes != self.num_blocks * pages[0]:
            expected = f"{self.num_blocks * pages[0]} bytes: {self.num_blocks} blocks of {pages[0]}"
            refuse(name, expected, tensor.size_bytes, "size it as blocks times page size")
