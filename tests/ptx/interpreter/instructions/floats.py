"""Floating-point arithmetic, rounded to nearest even as the opcodes say."""

import numpy as np

from tests.ptx.interpreter.instructions.table import Operation, operation
from tests.ptx.interpreter.rounding import fused_multiply_add

_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@operation(r"(add|sub|mul)(?:\.rn)?\.(f32|f64)")
def binary(name: str, kind: str) -> Operation:
    return Operation(_BINARY[name], (kind, kind), kind)


@operation(r"div\.rn\.(f32|f64)")
def divide(kind: str) -> Operation:
    return Operation(np.divide, (kind, kind), kind)


@operation(r"rcp\.rn\.(f32|f64)")
def reciprocal(kind: str) -> Operation:
    return Operation(np.reciprocal, (kind,), kind)


@operation(r"sqrt\.rn\.(f32|f64)")
def square_root(kind: str) -> Operation:
    return Operation(np.sqrt, (kind,), kind)


@operation(r"fma\.rn\.(f32|f64)")
def fused(kind: str) -> Operation:
    return Operation(fused_multiply_add, (kind, kind, kind), kind)


@operation(r"(neg|abs)\.(f32|f64)")
def sign(name: str, kind: str) -> Operation:
    return Operation(np.negative if name == "neg" else np.abs, (kind,), kind)


@operation(r"(min|max)\.(f32|f64)")
def extremum(name: str, kind: str) -> Operation:
    # Of a number and a NaN the number is taken; -0 is below +0.
    return Operation(_minimum if name == "min" else _maximum, (kind, kind), kind)


def _minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))


def _maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return -_minimum(-a, -b)
