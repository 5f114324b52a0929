"""Arrays at random places of larger buffers: strided, padded, reversed, transposed, aligned to their elements only."""

import numpy as np

__all__ = ["Places"]


class Places:
    """Places for arrays; the same seed gives the same ones, on a host (no device given) and on a device.

    Around and between the elements lies random data, which on a device is poisoned: to read it is an error there, and
    `contents` shows whether it was written. On a host calls get contiguous copies, which go to their places afterwards:
    its loops are compiled for each layout, and have strided tests of their own.
    """

    def __init__(self, seed, device=None):
        self.rng = np.random.default_rng(seed)
        self.device = device
        self._placed = []
        # In half of the calls contiguous arrays are aligned as an allocator would: else two hardly ever are.
        self._unit = int(self.rng.choice([1, 16]))

    def put(self, array, num_strided=None, is_written=True):
        """Place a copy of an array, of which the first `num_strided` axes (by default all) may have any strides.

        A contiguous one begins at any multiple of its elements' size.
        """
        array = np.asarray(array)
        free = array.ndim if num_strided is None else num_strided
        shape, steps = np.array(array.shape, int), np.ones(array.ndim, int)
        margins, order = np.zeros((2, array.ndim), int), np.arange(array.ndim)
        if free and self.rng.random() < 0.7:
            steps[:free] = self.rng.integers(1, 3, free)
            margins = self.rng.integers(0, 3, (2, array.ndim))
            margins[:, free:] *= self._unit
            order[:free] = self.rng.permutation(free)
        padded = shape * steps + margins.sum(axis=0)
        lead, tail = self.rng.integers(0, 16, 2) * self._unit
        root = self._root(int(lead + np.prod(padded) + tail), array.dtype)
        view = root[lead : lead + int(np.prod(padded))].reshape(padded[order]).transpose(np.argsort(order))
        view = view[
            tuple(slice(at, at + size * step, step) for at, size, step in zip(margins[0], shape, steps, strict=True))
        ]
        if free and self.rng.random() < 0.2:
            view = view[::-1]
        view[...] = array
        used = array.copy() if self.device is None else view
        self._placed.append((root, view, used))
        if self.device is not None:
            self.device.poison(view)
            if is_written:
                self.device.mark_written(view)
        return used

    def out(self, shape, dtype, num_strided=None):
        """Place an array that is only written: what it holds is random, and not to be read."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        held = self.rng.integers(0, 2 if dtype == np.bool_ else 256, size, np.uint8)
        return self.put(held.view(dtype).reshape(shape), num_strided, is_written=False)

    def _root(self, size, dtype):
        data = self.rng.integers(0, 2 if dtype == np.bool_ else 256, size * dtype.itemsize, np.uint8).view(dtype)
        return data if self.device is None else self.device.put(data)

    def contents(self):
        """Return the bytes of all buffers, whole."""
        for _, view, used in self._placed:
            view[...] = used
        return [root.tobytes() for root, _, _ in self._placed]
