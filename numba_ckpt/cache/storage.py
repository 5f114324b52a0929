"""One allocation that holds all caches: seen by each layer, zeroed and copied in whole blocks."""

from collections.abc import Iterable
from math import gcd
from typing import Any, Self

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import check_int, check_integers
from numba_ckpt._staging import StagingRing
from numba_ckpt.cache.layouts import LayerMemory
from numba_ckpt.cache.memory_plan import MemoryPlan
from numba_ckpt.cache.views import LayerCache, view_caches
from numba_ckpt.kernels.block_pieces import BlockPieces, check_block_ids
from numba_ckpt.kernels.copy_blocks import check_copies, copy_blocks
from numba_ckpt.kernels.zero_blocks import zero_blocks

__all__ = ["KVCacheStorage", "merge_pieces"]

_WORDS: dict[int, Any] = {8: np.int64, 4: np.uint32, 2: np.uint16, 1: np.uint8}


def merge_pieces(layers: Iterable[LayerMemory]) -> list[tuple[int, int, int]]:
    """Return the pieces of block 0 in all of these layers, each byte once.

    Parameters
    ----------
    layers : iterable of LayerMemory
        May share bytes.

    Returns
    -------
    list of (int, int, int)
        Offset of a piece, bytes to the same piece of the next block, and its size; sorted by the second and the first.
    """
    found = {(layer.block_stride, start, size) for layer in layers for start, size in layer.pieces}
    merged: list[tuple[int, int, int]] = []
    for stride, start, size in sorted(found):
        if merged and merged[-1][1] == stride and start <= merged[-1][0] + merged[-1][2]:
            first, _, length = merged.pop()
            merged.append((first, stride, max(length, start + size - first)))
        else:
            merged.append((start, stride, size))
    return merged


class KVCacheStorage:
    """The memory of all caches.

    Parameters
    ----------
    memory : ndarray or cupy.ndarray
        uint8, contiguous, `plan.size_bytes` or more; written.
    plan : MemoryPlan
        Where the layers lie.

    Attributes
    ----------
    views : dict of str to array or tuple of arrays
        Each layer's cache; see `view_caches`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Memory of another dtype, shape or alignment, or too small.

    Notes
    -----
    Not thread-safe: one per thread that submits steps.

    Examples
    --------
    >>> from numba_ckpt.cache import FullAttentionSpec, plan_kv_cache, plan_memory
    >>> config = plan_kv_cache({"a": FullAttentionSpec(2, 1, 1, "float32")}, num_blocks=4)
    >>> storage = KVCacheStorage.allocate(plan_memory(config))
    >>> storage.views["a"][1] = 7
    >>> storage.copy_blocks([1], [3])
    >>> storage.zero_blocks([1])
    >>> storage.views["a"].sum(axis=(1, 2, 3)).tolist()
    [0.0, 0.0, 0.0, 28.0]
    """

    def __init__(self, memory: Array, plan: MemoryPlan) -> None:
        self.views: dict[str, LayerCache] = view_caches(memory, plan)
        self.memory, self.plan = memory, plan
        self._backend = backend_of(memory=memory)
        self._ring = StagingRing(self._backend) if isinstance(self._backend, DeviceBackend) else None
        self._blocks: dict[int | None, BlockPieces] = {}

    @classmethod
    def allocate(cls, plan: MemoryPlan, array_module: Any = np) -> Self:
        """Allocate zeroed memory for a plan, with numpy, cupy or whatever has ``zeros(size, dtype)``."""
        return cls(array_module.zeros(plan.size_bytes, np.uint8), plan)

    def pages(self, group: int | None = None) -> list[Array]:
        """View the memory as uint8 [blocks, bytes] arrays, one for each piece of a block, as a `HostTier` takes them.

        Parameters
        ----------
        group : int, optional
            Only where this group's layers lie; by default all.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An unknown group.
        """
        num_blocks, view = self.plan.kv_cache_config.num_blocks, self._backend.as_strided
        pieces = self._merged(group)
        return [view(self.memory[start:], (num_blocks, size), (stride, 1)) for start, stride, size in pieces]

    def zero_blocks(self, block_ids: Any, group: int | None = None) -> None:
        """Zero blocks that are about to get a new owner; the null block is skipped.

        Parameters
        ----------
        block_ids : sequence of int or ndarray
            On the host, in any order.
        group : int, optional
            Zero only where this group's layers lie. By default all bytes of the blocks: right where one pool hands out
            the blocks of all groups.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Ids outside the pool, or an unknown group; nothing is zeroed.

        Notes
        -----
        On a device: one asynchronous copy and one launch, both on the current stream; no synchronisation.
        """
        blocks, ids = self._blocks_of(group), check_integers("block_ids", block_ids)
        check_block_ids("block_ids", ids, blocks.num_blocks)
        zero_blocks(blocks, *self._send(ids))

    def copy_blocks(self, sources: Any, destinations: Any, group: int | None = None) -> None:
        """Copy blocks onto others: all layers and all their states, and bytes that layers share once.

        Parameters
        ----------
        sources, destinations : sequence of int or ndarray
            On the host; each destination once, and none of them a source.
        group : int, optional
            Copy only where this group's layers lie; by default all bytes of the blocks.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Ids outside the pool, the null block, a destination twice or among the sources, not as many of both, or an
            unknown group; nothing is copied.

        Notes
        -----
        On a device: one asynchronous copy and one launch, both on the current stream; no synchronisation.
        """
        blocks = self._blocks_of(group)
        pairs = check_integers("sources", sources), check_integers("destinations", destinations)
        check_copies(*pairs, blocks.num_blocks)
        copy_blocks(blocks, *self._send(*pairs))

    def _send(self, *arrays: np.ndarray) -> list[Array]:
        return list(arrays) if self._ring is None else self._ring.send(*arrays)

    def _blocks_of(self, group: int | None) -> BlockPieces:
        if group is not None:
            check_int("group", group, 0, len(self.plan.kv_cache_config.groups) - 1)
        if group not in self._blocks:
            self._blocks[group] = self._pieces_of(group)
        return self._blocks[group]

    def _merged(self, group: int | None) -> list[tuple[int, int, int]]:
        groups, layers = self.plan.kv_cache_config.groups, self.plan.layers
        names: Iterable[str] = layers
        if group is not None:
            names = groups[check_int("group", group, 0, len(groups) - 1)].layer_names
        return merge_pieces(layers[name] for name in names if name in layers)

    def _pieces_of(self, group: int | None) -> BlockPieces:
        pieces = self._merged(group)
        address = self._backend.address(self.memory) if self.memory.size else 0
        size = gcd(8, address, *(number for piece in pieces for number in piece))
        words = self.memory[: self.memory.size // size * size].view(_WORDS[size])
        table = np.array(pieces, np.int64).reshape(-1, 3) // size
        num_blocks, max_words = self.plan.kv_cache_config.num_blocks, int(table[:, 2].max(initial=0))
        return BlockPieces(words, self._send(table)[0], num_blocks, max_words)
