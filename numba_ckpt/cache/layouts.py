"""How a page is cut into axes, for each order of layers, blocks, heads, tokens and content.

Letters are outermost first: L layers (tensors, where groups overlay each other), B blocks, H heads, N tokens,
C content: a head's key of one token, then its value. With two layers and three blocks::

    LBHNC   | 0.0 | 0.1 | 0.2 | 1.0 | 1.1 | 1.2 |     layer.block: each layer's blocks in a row
    BLHNC   | 0.0 | 1.0 | 0.1 | 1.1 | 0.2 | 1.2 |     a block of all layers in a row: moved in one piece
    LHBNC   a head of all blocks in a row: a page lies in as many pieces as there are heads
    BHLNC   a head of all layers in a row, block by block

Where kernels read smaller blocks than the pool hands out, B and N count those.
"""

from dataclasses import dataclass

import numpy as np

from numba_ckpt.cache.dtypes import storage_dtype
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.cache.specs import AttentionSpec
from numba_ckpt.cache.state_spec import StateSpec

__all__ = ["ArrayView", "LayerMemory", "PageCut"]


@dataclass(frozen=True)
class ArrayView:
    """An array inside an allocation.

    Attributes
    ----------
    offset : int
        Byte of its first element.
    shape : tuple of int
        Sizes.
    strides : tuple of int
        Bytes from one element to the next, along each axis.
    dtype : dtype
        Of its elements.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @property
    def span_bytes(self) -> int:
        """Bytes from its first to its last, all included."""
        steps = (stride * (size - 1) for stride, size in zip(self.strides, self.shape, strict=True))
        return sum(steps) + self.dtype.itemsize


@dataclass(frozen=True)
class LayerMemory:
    """Where one layer's cache lies in an allocation.

    Attributes
    ----------
    views : tuple of ArrayView
        One [kernel blocks, heads, tokens, content] of an attention layer; one [blocks, ...] per state otherwise.
    is_state : bool
        Whether the layer caches states.
    pieces : tuple of (int, int)
        Byte offset and size of each piece of block 0, padding included.
    block_stride : int
        Bytes from the pieces of a block to those of the next.
    """

    views: tuple[ArrayView, ...]
    is_state: bool
    pieces: tuple[tuple[int, int], ...]
    block_stride: int


@dataclass(frozen=True)
class PageCut:
    """How one layer's pages are cut into axes.

    Attributes
    ----------
    spec : KVCacheSpec
        What the layer caches.
    num_blocks : int
        Blocks of the pool.
    num_parts : int
        Kernel blocks of a block.
    num_tensors : int
        Layers that the layout puts between blocks, or blocks between.
    """

    spec: KVCacheSpec
    num_blocks: int
    num_parts: int
    num_tensors: int

    def place(self, layout: str, tensor: int, offset: int) -> LayerMemory:
        """Return where the layer's cache lies: `tensor` steps along L from the byte `offset`."""
        is_scattered = layout in _WHOLE and self.num_heads > 1
        strides = self._strides(layout if is_scattered else _WHOLE.get(layout, layout), is_scattered)
        start = offset + tensor * strides["L"]
        heads = range(self.num_heads if is_scattered else 1)
        size = self.part_bytes // len(heads)
        pieces = (start + j * strides["B"] + h * strides["H"] for j in range(self.num_parts) for h in heads)
        return LayerMemory(
            self._views(start, strides),
            isinstance(self.spec, StateSpec),
            tuple((piece, size) for piece in sorted(pieces)),
            self.num_parts * strides["B"],
        )

    @property
    def num_heads(self) -> int:
        """Heads that a layout may put apart; a state is one piece."""
        return self.spec.num_kv_heads if isinstance(self.spec, AttentionSpec) else 1

    @property
    def part_bytes(self) -> int:
        """Bytes of a kernel block, padding included."""
        return self.spec.page_size_bytes // self.num_parts

    def _strides(self, layout: str, is_scattered: bool) -> dict[str, int]:
        """Bytes of a step along each axis."""
        strides, stride = {}, 1
        sizes = {"L": self.num_tensors, "B": self.num_blocks * self.num_parts, "H": 1, "N": 1, "C": self.part_bytes}
        if isinstance(self.spec, AttentionSpec):
            stride, tokens = self.spec.alignment_bytes, self.spec.block_size // self.num_parts
            sizes |= {"H": self.num_heads, "N": tokens, "C": self.spec.content_size}
        for letter in reversed(layout):
            if letter in "LB" and not is_scattered:
                stride = max(stride, self.part_bytes)  # over the padding
            strides[letter] = stride
            stride *= sizes[letter]
        return strides

    def _views(self, start: int, strides: dict[str, int]) -> tuple[ArrayView, ...]:
        spec = self.spec
        if isinstance(spec, StateSpec):
            states = zip(spec.offsets, spec.shapes, spec.dtypes, strict=True)
            return tuple(self._state(start + at, shape, strides["B"], dtype) for at, shape, dtype in states)
        assert isinstance(spec, AttentionSpec)
        shape = (self.num_blocks * self.num_parts, spec.num_kv_heads, spec.block_size // self.num_parts)
        steps = tuple(strides[letter] for letter in "BHNC")
        return (ArrayView(start, (*shape, spec.content_size), steps, storage_dtype(spec.dtype)),)

    def _state(self, start: int, shape: tuple[int, ...], block_stride: int, dtype: str) -> ArrayView:
        stored = storage_dtype(dtype)
        steps = [stored.itemsize]
        for size in reversed(shape[1:]):
            steps.insert(0, steps[0] * size)
        return ArrayView(start, (self.num_blocks, *shape), (block_stride, *steps), stored)


# What a layout that puts heads apart amounts to where there is one.
_WHOLE = {"LHBNC": "LBHNC", "BHLNC": "BLHNC"}
