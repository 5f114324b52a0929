"""Arrays too large to have: only the parts that a test touches are backed."""

import math
from typing import NamedTuple

import numpy as np

from tests.ptx.interpreter import Window

__all__ = ["SparseArray"]


class SparseArray(NamedTuple):
    """A contiguous array of which some parts exist; a kernel that touches another is stopped.

    Attributes
    ----------
    shape : tuple of int
        As the kernel sees it.
    parts : dict
        Arrays of consecutive elements, by the flat index of the first.

    Examples
    --------
    >>> cache = SparseArray((2**20, 4096), {(2**20 - 1) * 4096: np.zeros(4096, np.uint16)})
    >>> cache.nbytes, [window.start for window in cache.windows]
    (8589934592, [8589926400])
    """

    shape: tuple[int, ...]
    parts: dict[int, np.ndarray]

    @property
    def dtype(self) -> np.dtype:
        return next(iter(self.parts.values())).dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[axis + 1 :]) * self.itemsize for axis in range(self.ndim))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(Window(first * self.itemsize, self.parts[first].view(np.uint8)) for first in sorted(self.parts))
