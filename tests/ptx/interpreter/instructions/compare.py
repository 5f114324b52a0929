"""Comparisons, and choices by them. A comparison with NaN is false, except where its name ends in "u"."""

import numpy as np

from tests.ptx.interpreter.instructions.table import Operation, operation

_SIGNED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


@operation(r"setp\.(eq|ne)\.(b(?:16|32|64))")
def equal(name: str, kind: str) -> Operation:
    return Operation(_SIGNED[name], (kind, kind), "pred")


@operation(r"setp\.(eq|ne|lt|le|gt|ge)\.([us](?:16|32|64))")
def integers(name: str, kind: str) -> Operation:
    return Operation(_SIGNED[name], (kind, kind), "pred")


@operation(r"setp\.(lo|ls|hi|hs)\.(u(?:16|32|64))")
def unsigned(name: str, kind: str) -> Operation:
    return Operation(_SIGNED[_UNSIGNED[name]], (kind, kind), "pred")


@operation(r"setp\.(eq|ne|lt|le|gt|ge)(u?)\.(f32|f64)")
def floats(name: str, unordered: str, kind: str) -> Operation:
    def compare(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        is_nan = np.isnan(a) | np.isnan(b)
        return np.where(is_nan, bool(unordered), _SIGNED[name](a, b))

    return Operation(compare, (kind, kind), "pred")


@operation(r"setp\.(num|nan)\.(f32|f64)")
def is_number(name: str, kind: str) -> Operation:
    return Operation(lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan"), (kind, kind), "pred")


@operation(r"selp\.([usb](?:16|32|64)|f32|f64)")
def select(kind: str) -> Operation:
    return Operation(lambda a, b, chosen: np.where(chosen, a, b), (kind, kind, "pred"), kind)
