"""Bitwise logic and shifts; shifts by the width or more give all zeros, or all signs."""

import numpy as np

from tests.ptx.interpreter.instructions.table import Operation, operation

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@operation(r"(and|or|xor)\.(pred|b16|b32|b64)")
def binary(name: str, kind: str) -> Operation:
    return Operation(_LOGIC[name], (kind, kind), kind)


@operation(r"not\.(pred|b16|b32|b64)")
def invert(kind: str) -> Operation:
    return Operation(np.invert, (kind,), kind)


@operation(r"shl\.(b16|b32|b64)")
def shift_left(kind: str) -> Operation:
    return Operation(_shift_left, (kind, "u32"), kind)


@operation(r"shr\.([usb](?:16|32|64))")
def shift_right(kind: str) -> Operation:
    return Operation(_shift_right, (kind, "u32"), kind)


@operation(r"popc\.(b32|b64)")
def count_ones(kind: str) -> Operation:
    return Operation(lambda a: np.bitwise_count(a).astype(np.uint32), (kind,), "u32")


def _shift_left(a: np.ndarray, by: np.ndarray) -> np.ndarray:
    width = 8 * a.itemsize
    return np.where(by < width, a << np.minimum(by, width - 1).astype(a.dtype), 0).astype(a.dtype)


def _shift_right(a: np.ndarray, by: np.ndarray) -> np.ndarray:
    width = 8 * a.itemsize
    shifted = a >> np.minimum(by, width - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(by < width, shifted, 0).astype(a.dtype)
