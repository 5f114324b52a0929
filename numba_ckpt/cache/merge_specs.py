"""Layers of one group: their one spec, or specs that differ but share a block table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from numba_ckpt._check import refuse
from numba_ckpt.cache.config import EngineConfig
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.cache.specs import ChunkedLocalAttentionSpec, CrossAttentionSpec, SlidingWindowSpec
from numba_ckpt.cache.state_spec import StateSpec
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["UniformTypeSpecs", "can_share_a_table", "merge_specs", "spec_difference"]

# Fields that decide which blocks a request holds: layers that share a block table agree in them.
_TABLE_FIELDS: dict[type[KVCacheSpec], tuple[str, ...]] = {
    SlidingWindowSpec: ("sliding_window",),
    ChunkedLocalAttentionSpec: ("attention_chunk_size",),
    CrossAttentionSpec: ("max_encoder_len",),
    StateSpec: ("cache_mode", "num_speculative_blocks", "num_checkpoint_blocks", "checkpoint_alignment"),
}


def merge_specs(specs: Sequence[KVCacheSpec]) -> KVCacheSpec:
    """Return the one spec of several layers.

    Parameters
    ----------
    specs : sequence of KVCacheSpec
        At least one.

    Raises
    ------
    ArgumentError
        There is none, or they differ; the message names what differs.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec
    >>> merge_specs([FullAttentionSpec(16, 8, 128), FullAttentionSpec(32, 8, 128)])
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: specs: expected equal specs, got block_size 16 and 32; ...
    """
    if not specs:
        refuse("specs", "at least one spec", "none", "leave out groups without layers")
    for other in specs[1:]:
        if difference := _difference(specs[0], other):
            refuse(
                "specs", "equal specs", difference, "put these layers in groups of their own, or in UniformTypeSpecs"
            )
    return specs[0]


def _difference(one: KVCacheSpec, other: KVCacheSpec, names: Sequence[str] | None = None) -> str:
    """Say in which of the fields (all by default) two specs differ; empty if in none."""
    if type(one) is not type(other):
        return f"{type(one).__name__} and {type(other).__name__}"
    names = [one_of.name for one_of in fields(one)] if names is None else names
    differing = (name for name in names if getattr(one, name) != getattr(other, name))
    return ", ".join(f"{name} {getattr(one, name)!r} and {getattr(other, name)!r}" for name in differing)


def spec_difference(planned: KVCacheSpec, wanted: KVCacheSpec) -> str:
    """Say in what a layer's planned spec is another than the wanted one, padding apart; empty if in nothing.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec
    >>> wanted = FullAttentionSpec(16, 4, 64)
    >>> spec_difference(wanted.padded_to(32768), wanted), spec_difference(FullAttentionSpec(16, 2, 64), wanted)
    ('', 'num_kv_heads 2 and 4')
    """
    if type(planned) is not type(wanted):
        return _difference(planned, wanted)
    names = [name for field_of in fields(planned) if (name := field_of.name) != "page_size_padded"]
    return _difference(planned, wanted, names)


def _table_difference(one: KVCacheSpec, other: KVCacheSpec) -> str:
    return _difference(one, other, ("block_size", *_TABLE_FIELDS.get(type(one), ())))


def can_share_a_table(specs: Sequence[KVCacheSpec]) -> bool:
    """Say whether layers of these specs hold the same blocks, so that one block table serves them all.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec, SlidingWindowSpec
    >>> full, wider = FullAttentionSpec(16, 8, 64), FullAttentionSpec(16, 8, 128)
    >>> can_share_a_table([full, wider]), can_share_a_table([full, SlidingWindowSpec(16, 8, 64, sliding_window=32)])
    (True, False)
    """
    return not any(_table_difference(specs[0], other) for other in specs[1:])


@dataclass(frozen=True, init=False)
class UniformTypeSpecs(KVCacheSpec):
    """Specs of layers that share one block table, though their pages may differ.

    Parameters
    ----------
    specs : tuple of (str, KVCacheSpec)
        Layer names and specs of one class, which agree in block size and in what decides which blocks are kept.
    readers : tuple of (str, str)
        Layers that share another one's cache, and whose; they add nothing to a page.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No layer, a layer twice, or specs that cannot share a block table.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec
    >>> wide, narrow = FullAttentionSpec(16, 8, 128), FullAttentionSpec(16, 8, 64, sliding_window=512)
    >>> spec = UniformTypeSpecs((("global", wide), ("local", narrow)))
    >>> spec.block_size, spec.of("local").sliding_window, spec.page_size_bytes
    (16, 512, 98304)
    """

    block_size: int = field(init=False)
    specs: tuple[tuple[str, KVCacheSpec], ...]
    readers: tuple[tuple[str, str], ...] = ()

    def __init__(self, specs: Sequence[tuple[str, KVCacheSpec]], readers: Sequence[tuple[str, str]] = ()) -> None:
        pairs = _check_pairs(specs)
        _check_share_a_table(pairs)
        object.__setattr__(self, "specs", pairs)
        object.__setattr__(self, "readers", tuple(readers))
        # What is true of one layer's table is true of the table that they share.
        for name in ("block_size", "has_layer_views", "is_cp_sharded", "has_slots", "can_split_blocks"):
            object.__setattr__(self, name, getattr(pairs[0][1], name))
        twice = sorted({name for name, _ in self.readers} & dict(pairs).keys())
        if twice:
            refuse("readers", "layers without a cache of their own", ", ".join(twice), "leave them out of specs")
        for name, target in self.readers:
            if target not in dict(pairs):
                refuse("readers", "targets with a cache of their own", f"{target!r} of {name!r}", "name the layer")

    def of(self, layer_name: str) -> KVCacheSpec:
        """Return a layer's spec."""
        specs = dict(self.specs)
        layer_name = dict(self.readers).get(layer_name, layer_name)
        if layer_name not in specs:
            refuse("layer_name", "one of " + ", ".join(specs), repr(layer_name), "give its spec")
        return specs[layer_name]

    def with_layer(self, layer_name: str, target: str) -> Self:
        """Return the specs with one more layer, which shares the cache of the layer `target`."""
        return type(self)(self.specs, (*self.readers, (layer_name, target)))

    @property
    def data_size_bytes(self) -> int:
        return sum(spec.data_size_bytes for _, spec in self.specs)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of a block in all layers with a cache of their own."""
        return sum(spec.page_size_bytes for _, spec in self.specs)

    @property
    def alignment_bytes(self) -> int:
        return max(spec.alignment_bytes for _, spec in self.specs)

    @property
    def _first(self) -> KVCacheSpec:
        return self.specs[0][1]

    def max_blocks(self, config: EngineConfig) -> int:
        return self._first.max_blocks(config)

    def block_table_width(self, config: EngineConfig) -> int:
        return self._first.block_table_width(config)

    def padded_to(self, page_size_bytes: int) -> Self:
        """Refuse: pad the specs of the layers."""
        refuse("page_size_bytes", "pages of single layers", page_size_bytes, "pad the specs of the layers instead")


def _check_pairs(specs: Any) -> tuple[tuple[str, Any], ...]:
    pairs = tuple(specs) if hasattr(specs, "__iter__") else (specs,)
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        refuse("specs", "pairs of a layer's name and spec", repr(specs)[:80], "pair them", ArgumentTypeError)
    return tuple((name, spec) for name, spec in pairs)


def _check_share_a_table(pairs: tuple[tuple[str, Any], ...]) -> None:
    if not pairs:
        refuse("specs", "at least one layer", "none", "leave out groups without layers")
    for name, spec in pairs:
        if not isinstance(spec, KVCacheSpec) or isinstance(spec, UniformTypeSpecs):
            expected, do = f"the spec of the one layer {name!r}", "give each layer a spec of its own"
            refuse("specs", expected, type(spec).__name__, do, ArgumentTypeError)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        refuse("specs", "each layer once", ", ".join(map(repr, names)), "give one spec per layer")
    for name, spec in pairs[1:]:
        if difference := _table_difference(pairs[0][1], spec):
            expected = "layers that can share a block table"
            refuse("specs", expected, f"{difference} in {name!r}", "put them in groups of their own")
