"""The block pool's memory: one int64 array, cut into its parts wherever it is read.

::

    words   │ counts, sizes │ block records │ key table │ free stack │ evicted keys │
            0              16

One plain array is what makes calls of compiled loops cheap: numba takes 0.15 µs to unwrap it, ten times as long for an
array of records, and cutting it anew inside costs next to nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._jit import borrow_part, inlined_loop, view_part
from numba_ckpt.cache.key_table import BLOCK

__all__ = ["EVICTION", "PoolArrays", "cut_pool", "new_pool"]

# Entries of `PoolArrays.counts`.
NUM_FREE, NUM_IDLE, NUM_CACHED, NUM_EVICTED, STEP, NUM_BLOCKS, NUM_SLOTS, NUM_EVICTIONS = range(8)
NUM_COUNTS = 16
"""Words before the block records: two cache lines."""

EVICTION = np.dtype([("key0", np.uint64), ("key1", np.uint64), ("group", np.int64), ("step", np.int64)])
"""A key that was given up, and in which step."""

# Evicted keys remembered at least.
MIN_EVICTIONS = 4096
_RECORD_WORDS = 4


class PoolArrays(NamedTuple):
    """The pool as compiled loops see it.

    Attributes
    ----------
    blocks : ndarray
        `BLOCK` [B]; record 0 heads the list of idle blocks.
    slots : ndarray
        int32 [S], the key table.
    free : ndarray
        int32 [B], a stack of free blocks.
    counts : ndarray
        int64 [NUM_COUNTS].
    evictions : ndarray
        `EVICTION` [E], the latest evicted keys, a ring.
    """

    blocks: np.ndarray
    slots: np.ndarray
    free: np.ndarray
    counts: np.ndarray
    evictions: np.ndarray


def _cutter(part: Callable[..., Any]) -> Callable[[Any], PoolArrays]:
    def cut(words: Any) -> PoolArrays:
        num_blocks, num_evictions = words[NUM_BLOCKS], words[NUM_EVICTIONS]
        slots = NUM_COUNTS + _RECORD_WORDS * num_blocks
        free = slots + words[NUM_SLOTS] // 2
        evictions = free + (num_blocks + 1) // 2
        end = evictions + _RECORD_WORDS * num_evictions
        return PoolArrays(
            part(words, NUM_COUNTS, slots, num_blocks, BLOCK),
            part(words, slots, free, words[NUM_SLOTS], np.int32),
            part(words, free, evictions, num_blocks, np.int32),
            part(words, 0, NUM_COUNTS, NUM_COUNTS, np.int64),
            part(words, evictions, end, num_evictions, EVICTION),
        )

    return cut


cut_pool: Any = inlined_loop(_cutter(borrow_part))
"""``cut_pool(words)``: the parts of a pool's memory, borrowed, inside compiled loops."""
cut_pool_words = _cutter(view_part)
"""The same outside: views."""


def new_pool(num_blocks: int) -> np.ndarray:
    """Return the memory of a pool whose blocks are all free, but for the null block."""
    # Linear probing wants a table that is a quarter full at most.
    num_slots = 1 << max(3, (4 * num_blocks - 1).bit_length())
    num_evictions = max(num_blocks, MIN_EVICTIONS)
    num_words = NUM_COUNTS + _RECORD_WORDS * (num_blocks + num_evictions) + num_slots // 2 + (num_blocks + 1) // 2
    words = np.zeros(num_words, np.int64)
    words[NUM_BLOCKS], words[NUM_SLOTS], words[NUM_EVICTIONS] = num_blocks, num_slots, num_evictions
    return words
