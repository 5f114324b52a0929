"""Roundings that NumPy has no function for: fused multiply-add, directed modes, bfloat16.

Rounding twice is right if the first rounding is "to odd" (inexact results get an odd last bit) and keeps two bits more
than the second one (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
"""

from fractions import Fraction

import numpy as np

__all__ = ["bfloat16_to_float", "fused_multiply_add", "round_float"]

_SPLITTER = 2.0**27 + 1
_BITS = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32}
# What conversions to a type give for NaN, whatever its bits were.
_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def bfloat16_to_float(bits: np.ndarray) -> np.ndarray:
    """Return the float32 of each bfloat16, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_float(values: np.ndarray, kind: str, mode: str) -> np.ndarray:
    """Round float64 to a PTX type: mode "rn" to nearest even, "rz" to zero, "rm" down, "rp" up.

    Examples
    --------
    >>> [int(round_float(np.array([1.005859375]), "bf16", mode)[0]) for mode in ("rn", "rz", "rp")]
    [16257, 16256, 16257]
    """
    if kind == "f64":
        return values
    nearest = _nearest(values, kind)
    back = bfloat16_to_float(nearest) if kind == "bf16" else nearest
    error = back.astype(np.float64) - values
    too_high = {"rn": False, "rm": error > 0, "rp": False, "rz": (error > 0) & (values > 0)}[mode]
    too_low = {"rn": False, "rm": False, "rp": error < 0, "rz": (error < 0) & (values < 0)}[mode]
    # Neighbours of one sign are neighbours as integers too, those of a negative number the other way round.
    bits = nearest.view(_BITS[kind])
    away = np.where(np.signbit(values), too_high, too_low).astype(bits.dtype)
    towards = np.where(np.signbit(values), too_low, too_high).astype(bits.dtype)
    bits = np.where(np.isnan(values), _NAN[kind], bits + away - towards).astype(bits.dtype)
    return bits.view(nearest.dtype)


def _nearest(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return values.astype(np.float16)
    single = values.astype(np.float32)
    if kind == "f32":
        return single
    error = np.where(np.isinf(single), 0.0, values - single.astype(np.float64))
    bits = _to_odd(single, error).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _to_odd(rounded: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the odd neighbour of a nearest value from which `error` (exact minus rounded) is left."""
    bits = rounded.view(f"u{rounded.itemsize}")
    even = (bits & 1) == 0
    up, down = (even & (error > 0), even & (error < 0))
    negative = np.signbit(rounded)
    step = np.where(negative, down, up).astype(bits.dtype) - np.where(negative, up, down).astype(bits.dtype)
    return (bits + step).view(rounded.dtype)


def fused_multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c, rounded once to nearest even; float32 or float64.

    Examples
    --------
    >>> x = np.array([1 + 2.0**-30])
    >>> float(fused_multiply_add(x, x, -x * x)[0]) == 2.0**-60
    True
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    if a.dtype == np.float32:
        total, error = _two_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
        return np.where(np.isfinite(total), _to_odd(total, error), total).astype(np.float32)
    result = a * b + c
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0) & (c != 0)
    middling = finite & _is_middling(a) & _is_middling(b) & _is_middling(c)
    result[middling] = _fused(a[middling], b[middling], c[middling])
    for index in np.flatnonzero(finite & ~middling):
        result[index] = _exact(float(a[index]), float(b[index]), float(c[index]))
    return result


def _is_middling(values: np.ndarray) -> np.ndarray:
    """Whether no intermediate result of `_fused` can overflow, or lose bits at the lower end."""
    return (np.abs(values) > 2.0**-400) & (np.abs(values) < 2.0**400)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = a * _SPLITTER
    high = scaled - (scaled - a)
    return high, a - high


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    product, (a1, a2), (b1, b2) = a * b, _halves(a), _halves(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    product, product_low = _two_product(a, b)
    low, lowest = _two_sum(c, product_low)
    high, middle = _two_sum(product, low)
    rest, error = _two_sum(lowest, middle)
    return high + _to_odd(rest, error)


def _exact(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        rounded = float(exact)
    except OverflowError:
        rounded = float("inf")
    return -abs(rounded) if exact < 0 else abs(rounded)
