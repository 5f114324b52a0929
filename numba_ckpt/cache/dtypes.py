"""Element types by name, and what NumPy and CuPy store them as: what they lack (bfloat16, float8) is raw bits."""

import numpy as np

from numba_ckpt._check import refuse
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["check_dtype_name", "storage_dtype"]

# Array interfaces have no type string for bfloat16 and float8, so these cross libraries as unsigned words.
_STORED = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    **{name: name for name in ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64")},
}
_ALIASES = {
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "half": "float16",
    "fp16": "float16",
    "float": "float32",
    "fp32": "float32",
}


def check_dtype_name(name: str, value: object) -> str:
    """Return the one name of an element type.

    Parameters
    ----------
    name : str
        What the type is of, for a message.
    value : str
        A type's name, or another spelling of it.

    Raises
    ------
    ArgumentTypeError
        It names no known type.

    Examples
    --------
    >>> check_dtype_name("dtype", "fp8"), check_dtype_name("dtype", "bfloat16")
    ('float8_e4m3fn', 'bfloat16')
    """
    known = _ALIASES.get(value, value) if isinstance(value, str) else None
    if known not in _STORED:
        refuse(name, "one of " + ", ".join(_STORED), repr(value), "name the element type", ArgumentTypeError)
    return known


def storage_dtype(name: str) -> np.dtype:
    """Return the dtype of the arrays that hold elements of a named type.

    Examples
    --------
    >>> storage_dtype("bfloat16").name, storage_dtype("float32").name
    ('uint16', 'float32')
    """
    return np.dtype(_STORED[check_dtype_name("dtype", name)])
