"""The paged caches that exporters write, checked once and seen as bit patterns."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numba_ckpt._array import Array
from numba_ckpt._check import check_array, check_choice, check_int, check_writable, describe, refuse
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.rules import CAST_BFLOAT16, CAST_FLOAT16, CAST_NONE

__all__ = ["ConvCache", "RecurrentCache"]

# 8-byte words are signed because rules compute in int64.
_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.int64}
CONV_LAYOUTS = ("dim_first", "len_first")


def as_words(name: str, array: Array) -> Array:
    """View an array's elements as bit patterns of their size, whatever the strides."""
    if array.dtype.hasobject or array.dtype.itemsize not in _WORDS:
        expected = "elements of 1, 2, 4 or 8 bytes"
        refuse(name, expected, describe(array), "view it as elements of these sizes", ArgumentTypeError)
    return array.view(_WORDS[array.dtype.itemsize])


def cast_between(name: str, source: Any, cache: Any, stored: str | None) -> int:
    """Return the CAST constant that turns `source`'s dtype into `cache`'s; `stored` names what raw bits stand for."""
    if source == cache or (source.name == stored and source.isnative and cache.isnative):
        return CAST_NONE
    casts = {"float16": CAST_FLOAT16, "bfloat16": CAST_BFLOAT16}
    if source != np.float32 or not cache.isnative or (stored or cache.name) not in casts:
        expected = f"{cache} like the cache, or float32 for a float16 or bfloat16 cache"
        do = "convert it, or view both as the same raw dtype"
        refuse(name, expected, str(source), do, ArgumentTypeError)
    return casts[stored or cache.name]


def has_contiguous_rows(array: Array) -> bool:
    """Say whether every ``array[i]`` is contiguous and rows do not overlap."""
    if array.size == 0:
        return True
    pitch = array.dtype.itemsize
    for size, stride in zip(reversed(array.shape[1:]), reversed(array.strides[1:]), strict=True):
        if size != 1 and stride != pitch:
            return False
        pitch *= size
    return bool(array.shape[0] <= 1 or array.strides[0] >= pitch)


def overlaps_itself(array: Array) -> bool:
    """Say whether two elements of an array may share bytes: each axis must step over all shorter ones."""
    span = array.dtype.itemsize
    axes = [(abs(stride), size) for size, stride in zip(array.shape, array.strides, strict=True) if size > 1]
    for stride, size in sorted(axes):
        if stride < span:
            return bool(array.size > 0)
        span += stride * (size - 1)
    return False


@dataclass(frozen=True, slots=True, eq=False)
class ConvCache:
    """Paged convolution windows of one layer.

    Parameters
    ----------
    states : ndarray or cupy.ndarray
        [B, channels, slots] if `layout` is ``"dim_first"``, [B, slots, channels] if ``"len_first"``; any dtype of 1, 2,
        4 or 8 bytes, any strides (padded pages). Written by exporters.
    layout : {"dim_first", "len_first"}
        What the last two axes are. Said, not guessed: both may have the same size.
    state_len : int, optional
        Slots of a window, the convolution's width minus one; by default all slots of a page. Slots beyond it
        (speculative widening) are left alone.
    dtype : {"float16", "bfloat16"}, optional
        What a raw 2-byte dtype stands for, where float32 inputs are to be converted.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Wrong number of dimensions, element size, layout or `state_len`; read-only memory.

    Examples
    --------
    >>> ConvCache(np.zeros((8, 3, 64), np.float16), layout="len_first").state_len
    3
    """

    states: Array
    layout: str = "dim_first"
    state_len: int | None = None
    dtype: str | None = None
    words: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_array("conv_cache.states", self.states, 3)
        check_choice("conv_cache.layout", self.layout, CONV_LAYOUTS)
        check_writable("conv_cache.states", self.states)
        _check_stored("conv_cache.dtype", self.dtype, self.states)
        words = self.by_channel(as_words("conv_cache.states", self.states))
        slots = words.shape[2]
        state_len = slots if self.state_len is None else check_int("conv_cache.state_len", self.state_len, 1, slots)
        if overlaps_itself(words):
            got = f"strides {self.states.strides} for shape {self.states.shape}"
            refuse("conv_cache.states", "elements of their own memory", got, "allocate it in full")
        object.__setattr__(self, "state_len", state_len)
        object.__setattr__(self, "words", words)

    def by_channel(self, array: Array) -> Array:
        """View an array of this layout as [B, channels, slots]."""
        return array if self.layout == "dim_first" else array.transpose(0, 2, 1)


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentCache:
    r"""Paged recurrent states of one layer (Mamba: ssm_state).

    Parameters
    ----------
    states : ndarray or cupy.ndarray
        [B, \*state_shape], each state contiguous, blocks any distance apart (padded pages); any dtype. Written by
        exporters.
    orientation : str
        Free label of the state's axes, such as ``"HKV"`` or ``"HVK"``; must equal the label of what is stored. Square
        heads make the two look alike.
    dtype : {"float16", "bfloat16"}, optional
        What a raw 2-byte dtype stands for, where float32 states are to be converted.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No state axes, states that are not contiguous or overlap, read-only memory.

    Examples
    --------
    >>> RecurrentCache(np.zeros((8, 2, 16, 32), np.float32), orientation="HKV").words.shape
    (8, 1024)
    """

    states: Array
    orientation: str = ""
    dtype: str | None = None
    words: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_writable("recurrent_cache.states", self.states)
        _check_stored("recurrent_cache.dtype", self.dtype, self.states)
        object.__setattr__(self, "words", state_rows("recurrent_cache.states", self.states))


def state_rows(name: str, states: Array) -> Array:
    r"""View [B, \*state_shape] as bit patterns [B, E], without a copy."""
    if getattr(states, "ndim", 0) < 2:
        refuse(name, "at least 2 dimensions, blocks first", describe(states), "give each state an axis of its own")
    if not has_contiguous_rows(states):
        got = f"strides {states.strides} for shape {states.shape}"
        refuse(name, "contiguous states that do not overlap", got, "store them contiguously in the cache's orientation")
    if states.dtype.itemsize not in _WORDS and not states.dtype.hasobject:
        states = states.view(np.uint8)
    return as_words(name, states).reshape(states.shape[0], math.prod(states.shape[1:]))


def _check_stored(name: str, stored: str | None, states: Array) -> None:
    if stored is None:
        return
    check_choice(name, stored, ("float16", "bfloat16"))
    if states.dtype.name not in (stored, "uint16", "int16"):
        refuse(name, f"a cache of {stored} or uint16 elements", describe(states), "leave dtype out", ArgumentTypeError)
