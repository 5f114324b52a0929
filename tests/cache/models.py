"""Models to lay out, and an oracle that finds the bytes of a block by walking its letters."""

import itertools

import numpy as np

from numba_ckpt.cache import FullAttentionSpec, SlidingWindowSpec, StateSpec, plan_kv_cache

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
FULL = FullAttentionSpec(8, num_kv_heads=2, head_size=4, dtype="float16")
WINDOW = SlidingWindowSpec(8, num_kv_heads=2, head_size=4, dtype="float16", sliding_window=16)
STATE = StateSpec(8, shapes=((3, 4), (2, 4, 5)), dtypes=("float16", "float32"))
HYBRID = {"m0": STATE, "m1": STATE, "f0": FULL, "m2": STATE, "m3": STATE, "f1": FULL, "w0": WINDOW}


def plan(specs, num_blocks=5):
    return plan_kv_cache(specs, num_blocks=num_blocks)


def bytes_of(array, memory):
    """Return the bytes of an array, as a sorted array of offsets into `memory`, one element at a time."""
    start = array.ctypes.data - memory.ctypes.data
    offsets = [start]
    for size, stride in zip(array.shape, array.strides, strict=True):
        offsets = [offset + step * stride for offset in offsets for step in range(size)]
    return np.sort(np.add.outer(offsets, np.arange(array.dtype.itemsize)).ravel())


def arrays_of(cache):
    return cache if isinstance(cache, tuple) else (cache,)


def block_of(cache, block, num_blocks):
    """Return the part of each array of a cache that belongs to one of the pool's blocks."""
    parts = len(arrays_of(cache)[0]) // num_blocks
    return [array[block * parts : (block + 1) * parts] for array in arrays_of(cache)]


def walked_offset(layout, sizes, place):
    """Return the byte of an element by counting the elements that come before it; no padding."""
    ordered = itertools.product(*(range(sizes[letter]) for letter in layout))
    wanted = tuple(place[letter] for letter in layout)
    return next(count for count, index in enumerate(ordered) if index == wanted)
