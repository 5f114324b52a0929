"""Integer arithmetic: wraps around at the width of its type."""

import numpy as np

from tests.ptx.interpreter.errors import DivisionError
from tests.ptx.interpreter.instructions.table import Operation, operation
from tests.ptx.interpreter.program import DTYPES

_BINARY = {"add": np.add, "sub": np.subtract, "mul.lo": np.multiply, "min": np.minimum, "max": np.maximum}
_WIDER = {"16": "32", "32": "64"}


@operation(r"(add|sub|mul\.lo|min|max)\.([us](?:16|32|64))")
def binary(name: str, kind: str) -> Operation:
    return Operation(_BINARY[name], (kind, kind), kind)


@operation(r"neg\.(s(?:16|32|64))")
def neg(kind: str) -> Operation:
    return Operation(np.negative, (kind,), kind)


@operation(r"abs\.(s(?:16|32|64))")
def absolute(kind: str) -> Operation:
    return Operation(np.abs, (kind,), kind)


@operation(r"(mul|mad)\.wide\.([us])(16|32)")
def wide(name: str, sign: str, bits: str) -> Operation:
    narrow, wider = sign + bits, sign + _WIDER[bits]
    if name == "mul":
        return Operation(lambda a, b: _extended(a, wider) * b, (narrow, narrow), wider)
    return Operation(lambda a, b, c: _extended(a, wider) * b + c, (narrow, narrow, wider), wider)


@operation(r"mad\.lo\.([us](?:16|32|64))")
def mad(kind: str) -> Operation:
    return Operation(lambda a, b, c: a * b + c, (kind, kind, kind), kind)


@operation(r"mul\.hi\.([us])(16|32|64)")
def high(sign: str, bits: str) -> Operation:
    kind = sign + bits
    if bits == "64":
        return Operation(_high64, (kind, kind), kind)
    return Operation(lambda a, b: (_extended(a, sign + _WIDER[bits]) * b) >> int(bits), (kind, kind), kind)


@operation(r"(div|rem)\.([us](?:16|32|64))")
def division(name: str, kind: str) -> Operation:
    return Operation(_quotient if name == "div" else _remainder, (kind, kind), kind)


def _extended(values: np.ndarray, kind: str) -> np.ndarray:
    return values.astype(DTYPES[kind])


def _magnitudes(*arrays: np.ndarray) -> list[np.ndarray]:
    # The least number is its own magnitude, read as unsigned.
    return [np.abs(array).view(f"u{array.itemsize}") for array in arrays]


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if (b == 0).any():
        raise DivisionError("divides by zero")
    high, low = _magnitudes(a, b)
    quotient = (high // low).view(a.dtype)
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - _quotient(a, b) * b


def _high64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    x, y = (array.view(np.uint64) for array in np.broadcast_arrays(a, b))
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    low, cross = (x & mask) * (y & mask), (x >> half) * (y & mask)
    middle = (low >> half) + (cross & mask) + (x & mask) * (y >> half)
    upper = (x >> half) * (y >> half) + (cross >> half) + (middle >> half)
    if a.dtype.kind == "u":
        return upper
    return upper.view(np.int64) - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
