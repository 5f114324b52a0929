"""A device whose kernels are compiled for a real GPU and run by the interpreter."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from numba_ckpt._array import Array, register_backend, unregister_backend
from numba_ckpt.testing import SimulatedArray, SimulatedDevice
from tests.ptx.interpreter import Memory
from tests.ptx.launching import InterpretedDriver, OnDevice, Way, by_launcher
from tests.ptx.sparse import SparseArray

__all__ = ["PtxDevice"]


def root_of(array: np.ndarray) -> np.ndarray:
    """Return the array that owns another's memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def bytes_of(root: np.ndarray) -> np.ndarray:
    """View the memory of a contiguous array."""
    return root.view(np.ndarray).ravel("K").view(np.uint8)


def offset_in(root: np.ndarray, array: np.ndarray) -> int:
    """Return the byte of an array's memory at which a view of it begins."""
    return int(array.ctypes.data - root.ctypes.data)


class WatchedArray(SimulatedArray):
    """An array that tells its device what the host assigns to it."""

    device: Any = None

    def __array_finalize__(self, source: Any) -> None:
        self.device = getattr(source, "device", None)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if self.device is not None:
            self.device.mark_written(self, key)


class PtxDevice(SimulatedDevice):
    """A simulated device that runs machine code.

    Each array that owns memory is an allocation; `empty` ones are poisoned until something is copied or stored to them.

    Parameters
    ----------
    way : Way
        How kernels are launched.
    capability : tuple of int
        Compute capability that they are compiled for.

    Attributes
    ----------
    driver : InterpretedDriver
        With the memory of the last launch, and what was reached of each kernel.
    launched : set
        Kernels that ran.
    """

    name = "ptx"

    def __init__(self, way: Way = by_launcher, capability: tuple[int, int] = (9, 0)) -> None:
        super().__init__()
        self.driver = InterpretedDriver(capability)
        self.launched: set[Any] = set()
        self._way = way
        self._written: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    @contextmanager
    def attached(cls, **options: Any) -> Iterator["PtxDevice"]:
        device = cls(**options)
        register_backend(device)
        try:
            yield device
        finally:
            unregister_backend(device)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        array = super().empty(shape, dtype).view(WatchedArray)
        array.device = self
        self.poison(array)
        return array

    def poison(self, array: Array) -> None:
        """Let reads of an array's memory be errors until it is written; padding between its elements included."""
        root = root_of(array)
        self._written[id(root)] = root, np.zeros(root.nbytes, bool)

    def copy_async(self, destination: Array, source: np.ndarray) -> None:
        super().copy_async(destination, source)
        self._queue.append(lambda: self.mark_written(destination))

    def mark_written(self, array: Array, key: Any = ...) -> None:
        """Let an array's elements be read, or those that a key selects."""
        root = root_of(array)
        if id(root) in self._written and array.size:
            for byte in range(array.itemsize):
                first = offset_in(root, array) + byte
                np.ndarray(array.shape, bool, self._written[id(root)][1], first, array.strides)[key] = True

    def launch(self, kernel: Any, grid: tuple[int, ...], block: int, arguments: tuple[Any, ...]) -> None:
        self.num_launches += 1
        self._run_queue()
        self.launched.add(kernel)
        self.driver.memory = Memory()
        named = zip(inspect.signature(kernel.py_func).parameters, arguments, strict=True)
        bases: dict[int, int] = {}
        self._way(self.driver, kernel, (grid, block), tuple(self._passed(*each, bases) for each in named))

    def _passed(self, name: str, argument: Any, bases: dict[int, int]) -> Any:
        """Declare what an argument points to, once for all that share it."""
        memory = self.driver.memory
        if isinstance(argument, SparseArray):
            return OnDevice(argument, memory.declare_sparse(name, argument.nbytes, *argument.windows).base)
        if not isinstance(argument, np.ndarray):
            return argument
        root = root_of(argument)
        if id(root) not in bases:
            _, written = self._written.get(id(root), (root, None))
            bases[id(root)] = memory.declare(name, bytes_of(root), written).base
        return OnDevice(argument, bases[id(root)] + offset_in(root, argument))
