"""Arrays too large to have: only the rows that a test touches are backed."""

import math
from typing import NamedTuple

import numpy as np

from tests.ptx.interpreter import Window

__all__ = ["SparseArray"]


class SparseArray(NamedTuple):
    """A contiguous array of which some rows exist; a kernel that touches another is stopped.

    Attributes
    ----------
    shape : tuple of int
        As the kernel sees it.
    rows : dict
        Elements of the rows that exist, by their number along the first axis.

    Examples
    --------
    >>> cache = SparseArray((2**20, 4096), {2**20 - 1: np.zeros(4096, np.uint16)})
    >>> cache.nbytes, [window.start for window in cache.windows]
    (8589934592, [8589926400])
    """

    shape: tuple[int, ...]
    rows: dict[int, np.ndarray]

    @property
    def dtype(self) -> np.dtype:
        return next(iter(self.rows.values())).dtype

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
        return tuple(Window(row * self.strides[0], self.rows[row].view(np.uint8).ravel()) for row in sorted(self.rows))
