"""A model's caches from a JSON file, as ``numba-ckpt layout`` reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from numba_ckpt._check import check_int, refuse
from numba_ckpt.attention import add_kv_sharing_layers_to_kv_cache_groups
from numba_ckpt.cache import (
    EngineConfig,
    KVCacheSpec,
    MemoryPlan,
    StateSpec,
    plan_kv_cache,
    plan_memory,
    spec_from_dict,
)
from numba_ckpt.cache.record import Record
from numba_ckpt.errors import ArgumentError, ArgumentTypeError

__all__ = ["LayoutConfig", "LayoutPlan", "plan_layout", "read_layout_config"]

_GIB = 2**30


@dataclass(frozen=True)
class LayoutConfig(Record):
    """What the file holds.

    Parameters
    ----------
    engine : EngineConfig
        Limits, cache, speculation, parallelism.
    layers : tuple of mapping
        In forward order: ``name`` and ``spec`` (a kind and its fields, see `spec_from_dict`), or ``name`` and
        ``shares``, the layer whose cache it reads. ``repeat`` makes that many layers, whose number stands for ``{}`` in
        the name.
    num_blocks : int, optional
        Blocks of the pool; or
    available_gib : float, optional
        memory of all caches, in GiB. One of the two.
    kernel_block_size : int, optional
        Tokens of the blocks that attention kernels read; by default a group's own.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A key is unknown, missing or wrong; the message begins with its dotted path.

    Examples
    --------
    >>> limits = {"max_num_requests": 8, "max_num_batched_tokens": 512, "max_model_len": 4096}
    >>> full = {"kind": "full", "block_size": 16, "num_kv_heads": 2, "head_size": 64}
    >>> layers = [{"name": "layers.{}.attn", "repeat": 2, "spec": full}]
    >>> config = LayoutConfig.from_dict({"engine": {"limits": limits}, "layers": layers, "num_blocks": 1000})
    >>> [name for name, _ in config.named_layers()]
    ['layers.0.attn', 'layers.1.attn']
    """

    engine: EngineConfig
    layers: tuple[Mapping[str, Any], ...]
    num_blocks: int | None = None
    available_gib: float | None = None
    kernel_block_size: int | None = None

    def __post_init__(self) -> None:
        layers: Any = self.layers
        if not isinstance(layers, tuple) or not layers:
            refuse("layers", "a list of one layer at least", repr(layers), "list the layers", ArgumentTypeError)
        for index, layer in enumerate(self.layers):
            _check_layer(f"layers[{index}]", layer)
        if (self.num_blocks is None) == (self.available_gib is None):
            got = "neither" if self.num_blocks is None else "both"
            refuse("num_blocks", "this or available_gib", got, "say how large the pool is, once")
        gib: Any = self.available_gib
        if gib is not None and (isinstance(gib, bool) or not isinstance(gib, (int, float)) or not 0 < gib < 2**20):
            refuse("available_gib", "GiB, more than 0", repr(gib), "pass a number")
        if self.kernel_block_size is not None:
            check_int("kernel_block_size", self.kernel_block_size, 1)

    @property
    def available_bytes(self) -> int | None:
        """Memory of all caches, if that is how the pool is sized."""
        return None if self.available_gib is None else int(self.available_gib * _GIB)

    def named_layers(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return every layer by its name, repeated ones one by one."""
        named = []
        for index, layer in enumerate(self.layers):
            first = layer.get("first", 0)
            numbers = range(first, first + layer.get("repeat", 1))
            named += [(layer["name"].replace("{}", str(number)), layer) for number in numbers]
            if len({name for name, _ in named}) < len(named):
                do = "put {} into a repeated name, and name each layer once"
                refuse(f"layers[{index}].name", "names of their own", repr(layer["name"]), do)
        return named


def _check_layer(where: str, layer: Any) -> None:
    if not isinstance(layer, Mapping):
        refuse(where, "a mapping", type(layer).__name__, "give the layer's name and spec", ArgumentTypeError)
    for key in layer:
        if key not in ("name", "spec", "shares", "repeat", "first"):
            refuse(
                f"{where}.{key}", "one of the keys name, spec, shares, repeat, first", "another", "check its spelling"
            )
    if not isinstance(layer.get("name"), str):
        refuse(f"{where}.name", "a str", repr(layer.get("name")), "name the layer", ArgumentTypeError)
    if ("spec" in layer) == ("shares" in layer):
        got = "both" if "spec" in layer else "neither"
        refuse(where, "spec or shares", got, "say what the layer caches, or whose cache it reads")
    check_int(f"{where}.repeat", layer.get("repeat", 1), 1)
    check_int(f"{where}.first", layer.get("first", 0), 0)


class LayoutPlan(NamedTuple):
    """Where the caches of a model lie.

    Attributes
    ----------
    config : LayoutConfig
        What was asked for.
    memory : MemoryPlan
        Groups, tensors and views.
    shared : dict of str to str
        The layer whose cache a layer reads.
    kernel_block_sizes : list of int or None
        For each group; None where it has no attention.
    """

    config: LayoutConfig
    memory: MemoryPlan
    shared: dict[str, str]
    kernel_block_sizes: list[int | None]


def read_layout_config(path: str) -> LayoutConfig:
    """Read a file.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is no JSON, or a key is wrong; the message begins with the file's name.
    OSError
        It cannot be read.
    """
    try:
        return LayoutConfig.from_json(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as cause:
        raise ArgumentError(f"{path}: expected a JSON object, got {cause}; save it as UTF-8") from cause
    except ArgumentError as error:
        raise type(error)(f"{path}: {error}") from None


def plan_layout(config: LayoutConfig) -> LayoutPlan:
    """Plan groups, tensors and views of a model's caches; nothing is allocated.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A spec is wrong, a layer shares a cache that is not there, the pool is too small for the longest request, or
        the layout cannot hold the caches.
    """
    named = config.named_layers()
    specs: dict[str, KVCacheSpec] = {}
    shared: dict[str, str] = {}
    for name, layer in named:
        if "spec" in layer:
            specs[name] = _spec_of(name, layer["spec"])
        else:
            shared[name] = _target_of(name, layer["shares"], specs)
    planned = plan_kv_cache(specs, config.available_bytes, config.num_blocks, config.engine)
    sizes = [None if isinstance(group.spec, StateSpec) else config.kernel_block_size for group in planned.groups]
    with_sharing = add_kv_sharing_layers_to_kv_cache_groups(planned, shared)
    memory = plan_memory(planned, config.engine.cache.layout, sizes)
    return LayoutPlan(config, replace(memory, kv_cache_config=with_sharing), shared, sizes)


def _spec_of(name: str, fields: Any) -> KVCacheSpec:
    try:
        return spec_from_dict(fields)
    except ArgumentError as error:
        raise type(error)(f"{name}.spec.{error}") from None


def _target_of(name: str, target: Any, earlier: Mapping[str, KVCacheSpec]) -> str:
    if not isinstance(target, str) or target not in earlier:
        do = "name a layer with a cache of its own"
        refuse(f"{name}.shares", "an earlier layer with a spec", repr(target), do)
    return target
