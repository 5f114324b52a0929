"""Conversions between integers and floats of all widths, rounded as the opcode says."""

import numpy as np

from tests.ptx.interpreter.errors import UnknownInstructionError
from tests.ptx.interpreter.instructions.table import Operation, operation
from tests.ptx.interpreter.program import DTYPES
from tests.ptx.interpreter.rounding import bfloat16_to_float, round_float

_INTEGER = r"([usb](?:8|16|32|64))"
_FLOAT = r"(f16|bf16|f32|f64)"
_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@operation(rf"cvt(\.sat)?\.{_INTEGER}\.{_INTEGER}")
def integer_to_integer(saturate: str | None, result: str, source: str) -> Operation:
    dtype, given = DTYPES[result], DTYPES[source]
    if not saturate:
        return Operation(lambda a: a.astype(dtype), (source,), result)
    least, most = (_bound(bound, given) for bound in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    return Operation(lambda a: np.clip(a, least, most).astype(dtype), (source,), result)


def _bound(bound: int, dtype: np.dtype) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.array(min(max(bound, int(limits.min)), int(limits.max)), dtype)


@operation(rf"cvt\.(rn|rz|rm|rp)\.{_FLOAT}\.([us](?:8|16|32|64))")
def integer_to_float(mode: str, result: str, source: str) -> Operation:
    if source[1:] != "64":
        return Operation(lambda a: round_float(a.astype(np.float64), result, mode), (source,), result)
    if mode != "rn" or result not in {"f32", "f64"}:
        raise UnknownInstructionError(f"cvt.{mode}.{result}.{source} is unknown: float64 does not hold its source")
    return Operation(lambda a: a.astype(DTYPES[result]), (source,), result)


@operation(rf"cvt(?:\.(rn|rz|rm|rp))?\.{_FLOAT}\.{_FLOAT}")
def float_to_float(mode: str | None, result: str, source: str) -> Operation:
    return Operation(lambda a: round_float(_widened(a, source), result, mode or "rn"), (source,), result)


@operation(r"cvt\.(rn|rz)\.(f16|bf16)x2\.f32")
def pack_two(mode: str, half: str) -> Operation:
    def convert(high: np.ndarray, low: np.ndarray) -> np.ndarray:
        bits = [round_float(a.astype(np.float64), half, mode).view(np.uint16).astype(np.uint32) for a in (high, low)]
        return (bits[0] << np.uint32(16)) | bits[1]

    return Operation(convert, ("f32", "f32"), "b32")


@operation(r"cvt\.(rni|rzi|rmi|rpi)\.(?:(f32)\.f32|(f64)\.f64)")
def to_integral_float(mode: str, single: str | None, double: str | None) -> Operation:
    kind = single or double or ""
    return Operation(_TO_INTEGER[mode], (kind,), kind)


@operation(rf"cvt\.(rni|rzi|rmi|rpi)\.([us](?:8|16|32|64))\.{_FLOAT}")
def float_to_integer(mode: str, result: str, source: str) -> Operation:
    """Beyond its range a result is the nearest integer in it."""
    limits = np.iinfo(DTYPES[result])
    from_nan = 0
    if source == "f64" and result[1:] == "64":
        from_nan = int(limits.min) if result == "s64" else 2**63

    def convert(a: np.ndarray) -> np.ndarray:
        values = _TO_INTEGER[mode](_widened(a, source))
        inside = (values >= float(limits.min)) & (values < float(limits.max) + (1.0 if limits.bits < 64 else 0.0))
        integers = np.where(inside, values, 0.0).astype(limits.dtype)
        clamped = np.where(values > 0, limits.max, limits.min).astype(limits.dtype)
        clamped[np.isnan(values)] = from_nan
        return np.where(inside, integers, clamped)

    return Operation(convert, (source,), result)


def _widened(values: np.ndarray, kind: str) -> np.ndarray:
    return (bfloat16_to_float(values) if kind == "bf16" else values).astype(np.float64)
