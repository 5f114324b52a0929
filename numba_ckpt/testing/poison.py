"""Memory that shows when it is read before it was written."""

from typing import Any

import numpy as np

__all__ = ["poison", "poisoned"]


def poison(array: np.ndarray) -> np.ndarray:
    """Fill an array with bytes of ones: NaN in every float format, -1 in every signed integer.

    Parameters
    ----------
    array : ndarray
        Overwritten; any dtype and strides.

    Returns
    -------
    ndarray
        The same array.

    Examples
    --------
    >>> poison(np.zeros(2, np.float32)).tolist(), poison(np.zeros(2, np.int32)).tolist()
    ([nan, nan], [-1, -1])
    """
    ones = np.full(array.dtype.itemsize, 0xFF, np.uint8).view(array.dtype)
    array[...] = ones[0]
    return array


def poisoned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return a new array full of poison.

    Examples
    --------
    >>> poisoned((1, 2), np.float16).tolist()
    [[nan, nan]]
    """
    return poison(np.empty(shape, dtype))
