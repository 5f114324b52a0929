"""Checks shared by the reference layers: a varlen batch is tokens [T, ...] and query_start_loc [N+1]."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numba_ckpt._check import (
    check_array,
    check_int64_range,
    check_integers,
    check_no_overlap,
    check_writable,
    describe,
    refuse,
)
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["check_checkpoints", "check_floats", "check_results", "check_starts"]


def check_starts(values: Any, num_tokens: int, name: str = "query_start_loc") -> np.ndarray:
    """Return cumulative starts as int64 [N+1]; they begin with 0, never fall and end with `num_tokens`."""
    starts = check_int64_range(name, check_integers(name, values))
    if starts.size == 0 or starts[0] != 0 or starts[-1] != num_tokens:
        got = starts.tolist() if starts.size < 3 else f"{starts[0]} ... {starts[-1]}"
        refuse(name, f"N+1 starts from 0 to the {num_tokens} tokens", got, "pass the cumulated lengths")
    if (np.diff(starts) < 0).any():
        refuse(name, "starts that never fall", starts.tolist(), "pass the cumulated lengths")
    return starts


def check_floats(name: str, array: Any, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return a float32 array of this shape (None: any length) in C order, copied only if it is not."""
    check_array(name, array, len(shape))
    if array.dtype != np.float32:
        refuse(name, "float32", describe(array), "convert it with .astype(numpy.float32)", ArgumentTypeError)
    if any(want is not None and want != got for want, got in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        refuse(name, f"shape ({wanted})", f"shape {array.shape}", "match it to the other arguments")
    return np.ascontiguousarray(array)


def check_results(
    out: Sequence[Any] | None,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    inputs: Mapping[str, np.ndarray],
) -> list[np.ndarray]:
    """Return the arrays of `out`, or new ones for None.

    They are written while the inputs are still read, so that they may share memory neither with them nor among
    themselves.
    """
    results: list[np.ndarray] = []
    apart = list(inputs.items())
    for place, (field, shape) in enumerate(zip(names, shapes, strict=True)):
        name = f"out.{field}"
        results.append(np.empty(shape, np.float32) if out is None else _check_result(name, out[place], shape, apart))
        apart.append((name, results[-1]))
    return results


def _check_result(name: str, array: Any, shape: tuple[int, ...], apart: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
    check_floats(name, array, shape)
    check_writable(name, array)
    if not array.flags.c_contiguous:
        refuse(name, "a C-contiguous array", f"strides {array.strides}", "allocate it with numpy.empty")
    check_no_overlap((name, array), apart)
    return array  # type: ignore[no-any-return]


def check_checkpoints(offsets: Any, rows: Any, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and rows of the wanted checkpoints as int64 [K]; checkpoint k is of row k when `rows` is None."""
    num_rows = starts.size - 1
    if offsets is None:
        offsets = np.zeros(0, np.int64)
        rows = offsets if rows is None else rows
    offsets = check_int64_range("checkpoint_offsets", check_integers("checkpoint_offsets", offsets))
    rows = np.arange(num_rows) if rows is None else check_integers("checkpoint_rows", rows)
    rows = check_int64_range("checkpoint_rows", rows)
    if rows.size != offsets.size:
        refuse("checkpoint_offsets", f"{rows.size} offsets", offsets.size, "pass one for each row (0: no checkpoint)")
    if ((rows < 0) | (rows >= num_rows)).any():
        refuse("checkpoint_rows", f"rows of the batch, 0 to {num_rows - 1}", rows.tolist(), "check the request rows")
    if ((offsets < 0) | (offsets > np.diff(starts)[rows])).any():
        refuse("checkpoint_offsets", "offsets inside their rows", offsets.tolist(), "count from the row's first token")
    return offsets, rows
