"""The two ways in which a kernel is compiled and passed its arguments: Numba's own, and our launchers' compact one."""

import functools
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, from_dtype, types

from numba_ckpt._device import CompactArray, compile_ptx
from numba_ckpt.kernels._launch import THREADS_PER_BLOCK
from tests.ptx.interpreter import Kernel, parse_kernel
from tests.ptx.kept import kept
from tests.ptx.sparse import SparseArray

__all__ = ["COMPACT", "ORDINARY", "Abi", "compiled", "is_array"]


def is_array(argument: Any) -> bool:
    """Say whether an argument is passed by address; sparse arrays are arrays too."""
    return isinstance(argument, np.ndarray | SparseArray)


class Abi(NamedTuple):
    """How arrays become launch parameters.

    Attributes
    ----------
    name : str
        For messages.
    array_type : callable
        From an array to the type that Numba compiles for.
    pack : callable
        From an array and the address of its data to its parameters.
    ptx : callable
        From a kernel, argument types and a compute capability to PTX.
    """

    name: str
    array_type: Callable[[np.ndarray], types.Type]
    pack: Callable[[np.ndarray, int], Iterator[int | bytes]]
    ptx: Callable[[Any, tuple[types.Type, ...], tuple[int, int]], str]

    def type_of(self, argument: Any) -> types.Type:
        """Return the type that a kernel is compiled with for an argument."""
        if is_array(argument):
            return self.array_type(argument)
        return types.boolean if isinstance(argument, bool) else types.int64

    def packed(self, argument: Any, address: int) -> Iterator[int | bytes]:
        """Yield the launch parameters of an argument."""
        if is_array(argument):
            yield from self.pack(argument, address)
        else:
            yield int(argument)


def _ordinary_type(array: np.ndarray) -> types.Type:
    # Device arrays are always writable and aligned to their elements.
    layout = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else "A"
    return types.Array(from_dtype(array.dtype), array.ndim, layout)


def _ordinary_parameters(array: np.ndarray, address: int) -> Iterator[int | bytes]:
    # Two pointers for the host, then size, bytes of an element, data, shape, strides.
    yield from (0, 0, array.size, array.itemsize, address, *array.shape, *array.strides)


def _compact_parameters(array: np.ndarray, address: int) -> Iterator[int | bytes]:
    yield struct.pack(f"<Q{2 * array.ndim}q", address, *array.shape, *array.strides)


ORDINARY = Abi(
    "ordinary",
    _ordinary_type,
    _ordinary_parameters,
    lambda kernel, signature, capability: str(cuda.compile_ptx(kernel.py_func, signature, cc=capability)[0]),
)
"""What ``kernel[grid, block](...)`` does: each array is 5 + 2n parameters."""
COMPACT = Abi(
    "compact",
    lambda array: CompactArray(from_dtype(array.dtype), array.ndim),
    _compact_parameters,
    lambda kernel, signature, capability: compile_ptx(kernel, signature, capability, THREADS_PER_BLOCK),
)
"""What our launchers do: each array is one structure of address, shape and strides."""


@functools.cache
def compiled(abi: Abi, kernel: Any, signature: tuple[types.Type, ...], capability: tuple[int, int]) -> Kernel:
    """Compile a kernel for argument types, or read what an earlier run compiled, and parse it."""
    return parse_kernel(kept((abi, kernel, signature, capability), lambda: abi.ptx(kernel, signature, capability)))
