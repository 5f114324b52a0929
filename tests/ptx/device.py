"""A device whose kernels are compiled for a real GPU and run by the interpreter."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import cuda, from_dtype, types

from numba_ckpt._array import Array
from numba_ckpt.testing import SimulatedDevice
from tests.ptx.interpreter import Kernel, Memory, parse_kernel, run

__all__ = ["CAPABILITY", "PtxDevice", "compiled", "flattened", "type_of"]

CAPABILITY = (9, 0)


def type_of(argument: Any) -> types.Type:
    """Return the type with which Numba compiles for an argument: device arrays are writable and aligned."""
    if isinstance(argument, tuple):
        return types.UniTuple(type_of(argument[0]), len(argument))
    if not isinstance(argument, np.ndarray):
        return types.boolean if isinstance(argument, bool) else types.int64
    layout = "C" if argument.flags.c_contiguous else "F" if argument.flags.f_contiguous else "A"
    return types.Array(from_dtype(argument.dtype), argument.ndim, layout)


@functools.cache
def compiled(kernel: Any, signature: tuple[types.Type, ...], capability: tuple[int, int] = CAPABILITY) -> Kernel:
    """Compile a kernel for argument types and read what comes out."""
    ptx, _ = cuda.compile_ptx(kernel.py_func, signature, cc=capability)
    return parse_kernel(ptx)


def flattened(argument: Any, address: int = 0) -> Iterator[int]:
    """Yield the numbers that a kernel is passed for an argument; an array's data begins at `address`."""
    if isinstance(argument, tuple):
        for part in argument:
            yield from flattened(part)
    elif isinstance(argument, np.ndarray):
        # Two pointers for the host, size, bytes of an element, data, shape, strides.
        yield from (0, 0, argument.size, argument.itemsize, address, *argument.shape, *argument.strides)
    else:
        yield int(argument)


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


class PtxDevice(SimulatedDevice):
    """A simulated device that runs machine code.

    Each array that owns memory is an allocation; `empty` ones are poisoned until something is copied or stored to them.

    Attributes
    ----------
    launched : set
        Kernels that ran.
    capability : tuple of int
        Compute capability that kernels are compiled for.
    """

    name = "ptx"

    def __init__(self, capability: tuple[int, int] = CAPABILITY) -> None:
        super().__init__()
        self.launched: set[Any] = set()
        self.capability = capability
        self._written: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        array = super().empty(shape, dtype)
        self.poison(array)
        return array

    def poison(self, array: Array) -> None:
        """Let reads of an array's memory be errors until it is written; padding between its elements included."""
        root = root_of(array)
        self._written[id(root)] = root, np.zeros(root.nbytes, bool)

    def copy_async(self, destination: Array, source: np.ndarray) -> None:
        super().copy_async(destination, source)
        self._queue.append(lambda: self.mark_written(destination))

    def mark_written(self, array: Array) -> None:
        """Let an array's elements be read."""
        root = root_of(array)
        if id(root) in self._written:
            shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
            np.ndarray(shape, bool, self._written[id(root)][1], offset_in(root, array), strides)[...] = True

    def launch(self, kernel: Any, grid: tuple[int, int], block: int, arguments: tuple[Any, ...]) -> None:
        self.num_launches += 1
        self._run_queue()
        self.launched.add(kernel)
        program = compiled(kernel, tuple(map(type_of, arguments)), self.capability)
        memory = Memory()
        addresses = self._declare(
            memory, dict(zip(inspect.signature(kernel.py_func).parameters, arguments, strict=True))
        )
        values = [value for each in zip(arguments, addresses, strict=True) for value in flattened(*each)]
        run(program, grid, (block,), values, memory)

    def _declare(self, memory: Memory, arguments: dict[str, Any]) -> Iterator[int]:
        """Declare what arguments point to, and yield each one's address; 0 for a number."""
        bases: dict[int, int] = {}
        for name, argument in arguments.items():
            if not isinstance(argument, np.ndarray):
                yield 0
                continue
            root = root_of(argument)
            if id(root) not in bases:
                _, written = self._written.get(id(root), (root, None))
                bases[id(root)] = memory.declare(name, bytes_of(root), written).base
            yield bases[id(root)] + offset_in(root, argument)
