"""One style of argument check: name, expected, got, what to do.

All checks are for the caller's mistakes and run before anything is changed.
"""

import operator
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from numba_ckpt.errors import ArgumentError, ArgumentTypeError

INT32_MAX = 2**31 - 1


def refuse(name: str, expected: str, got: object, do: str, error: type[ArgumentError] = ArgumentError) -> NoReturn:
    """Raise `error` in the house's wording."""
    raise error(f"{name}: expected {expected}, got {got}; {do}")


def check_int(name: str, value: object, low: int, high: int = INT32_MAX) -> int:
    """Return `value` as an int in [low, high]; bools and floats are refused."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        refuse(name, "an integer", f"{value!r} ({type(value).__name__})", "pass a plain int", ArgumentTypeError)
    if not low <= number <= high:
        refuse(name, f"an integer in [{low}, {high}]", number, "check the configuration it comes from")
    return number


def check_bool(name: str, value: object) -> bool:
    """Return `value` as a bool; anything but a bool is refused."""
    if not isinstance(value, (bool, np.bool_)):
        refuse(name, "True or False", f"{value!r} ({type(value).__name__})", "pass a bool", ArgumentTypeError)
    return bool(value)


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse anything but an object of `kind`."""
    if not isinstance(value, kind):
        expected, do = f"an object of {kind.__name__}", "make one, and mind the order of the arguments"
        refuse(name, expected, type(value).__name__, do, ArgumentTypeError)


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`."""
    allowed = tuple(choices)
    if not isinstance(value, str) or value not in allowed:
        refuse(name, "one of " + ", ".join(map(repr, allowed)), repr(value), "pick one of these")
    return value


def describe(array: Any) -> str:
    """Say what an array is, for the *got* part of a message."""
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    return type(array).__name__ if dtype is None else f"{dtype} of shape {shape}"


def check_array(name: str, array: Any, ndim: int, kinds: str = "") -> None:
    """Refuse anything but an array of `ndim` dimensions whose dtype kind is in `kinds` ("" takes any)."""
    try:
        kind, num_dimensions = array.dtype.kind, len(array.shape)
    except (AttributeError, TypeError):
        refuse(name, f"a {ndim}-d array", describe(array), "wrap it with numpy.asarray", ArgumentTypeError)
    if kinds and kind not in kinds:
        wanted = {"iu": "an integer dtype", "i": "a signed integer dtype", "b": "a bool dtype"}.get(kinds, kinds)
        refuse(name, wanted, describe(array), "convert it with .astype", ArgumentTypeError)
    if num_dimensions != ndim:
        refuse(name, f"{ndim} dimension(s)", describe(array), "reshape it")


def check_shape(name: str, array: Any, shape: tuple[int, ...], why: str) -> None:
    """Refuse an array whose shape is not `shape`; `why` says where the shape comes from."""
    if tuple(array.shape) != shape:
        refuse(name, f"shape {shape}", f"shape {tuple(array.shape)}", why)


_SEQUENCES = frozenset({list, tuple, range})
_INTS = frozenset({int})


def check_integers(name: str, values: Any) -> np.ndarray:
    """Return `values` (a list, tuple or host array) as a 1-d integer array, without copying an integer array.

    Bools, floats, 0-d and 2-d input are refused.
    """
    if type(values) in _SEQUENCES:
        if _INTS.issuperset(map(type, values)):
            return _int64_array(name, values)
        values = _untidy_array(name, values)
    elif not isinstance(values, np.ndarray):
        expected = "a list or a 1-d integer array"
        refuse(name, expected, describe(values), "pass a list or a NumPy array", ArgumentTypeError)
    check_array(name, values, 1, "iu")
    return values  # type: ignore[no-any-return]


def _int64_array(name: str, values: Any) -> np.ndarray:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        refuse(name, "integers below 2^63", "a larger one", "check where the number comes from")


def _untidy_array(name: str, values: Any) -> np.ndarray:
    """Make an array of whatever a sequence holds besides ints: NumPy scalars, or a mistake."""
    if not {bool, np.bool_}.isdisjoint(map(type, values)):
        refuse(name, "integers", "a bool among them", "pass lengths as ints", ArgumentTypeError)
    try:
        return np.asarray(values)
    except (ValueError, OverflowError) as cause:
        raise ArgumentError(f"{name}: expected a flat list of integers, got {cause}; check its elements") from cause


def check_int64_range(name: str, values: np.ndarray) -> np.ndarray:
    """Return an integer array as int64, refusing unsigned values above 2^63 - 1."""
    if values.dtype == np.int64:
        return values
    if values.dtype == np.uint64 and values.size and int(values.max()) > np.iinfo(np.int64).max:
        refuse(name, "values below 2^63", int(values.max()), "check where the number comes from")
    return values.astype(np.int64, copy=False)


def check_mirror(name: str, mirror: Any, array: Any) -> None:
    """Refuse a host mirror that is not a signed integer NumPy array of the mirrored array's shape."""
    if not isinstance(mirror, np.ndarray):
        got, do = describe(mirror), "keep a host copy in a NumPy array"
        refuse(f"{name}_cpu", "a NumPy array", got, do, ArgumentTypeError)
    check_array(f"{name}_cpu", mirror, 1, "i")
    check_shape(f"{name}_cpu", mirror, tuple(array.shape), f"it mirrors {name}")


def check_writable(name: str, array: Any) -> None:
    """Refuse a read-only output."""
    flags = getattr(array, "flags", None)
    if getattr(flags, "writeable", True) is False:
        refuse(name, "a writable array", "a read-only one", "pass a copy")


def arrays_overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Say whether two host arrays share bytes: their spans first, then exactly unless that takes long."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def check_no_overlap(output: tuple[str, Any], inputs: Iterable[tuple[str, Any]]) -> None:
    """Refuse an output whose memory bounds overlap those of an input."""
    name, array = output
    for other, source in inputs:
        if source is not None and arrays_overlap(array, source):
            refuse(name, f"memory apart from {other}", "overlapping memory", "write into a separate array")
