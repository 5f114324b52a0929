"""Two ways to launch a kernel, with the interpreter in CUDA's place: our launcher's, and the ordinary one of Numba."""

import ctypes
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, from_dtype, types

from numba_ckpt._code_cache import cached_code
from numba_ckpt._launcher import Launcher, compile_code
from numba_ckpt.errors import DeviceError
from numba_ckpt.kernels._launch import THREADS_PER_BLOCK
from tests.ptx.interpreter import Kernel, Memory, PtxError, parse_kernel, run

__all__ = ["InterpretedDriver", "OnDevice", "Way", "by_dispatcher", "by_launcher"]

_parsed = functools.cache(parse_kernel)


class OnDevice:
    """An array as a launch sees it: what CuPy tells of its arrays."""

    def __init__(self, array: Any, address: int) -> None:
        self.array = array
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.data = SimpleNamespace(ptr=address)


class InterpretedDriver:
    """What our launcher asks of CUDA.

    Attributes
    ----------
    memory : Memory
        What the next launch may use.
    reached : dict
        Basic blocks that ran, by kernel.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        self.memory = Memory()
        self.reached: dict[Kernel, set[int]] = {}
        self._capability = capability
        # Tests launch few threads; the code shall be the one that a GPU is given.
        self.launcher = Launcher(self, lambda *what: compile_code(*what[:-1], THREADS_PER_BLOCK))

    def current_device(self) -> int:
        return 0

    def capability(self) -> tuple[int, int]:
        return self._capability

    def load(self, code: str, name: str) -> Kernel:
        kernel = _parsed(code)
        assert kernel.name == name
        return kernel

    def launch(self, function: Kernel, grid: tuple[int, ...], num_threads: int, parameters: int) -> None:
        """Read parameters where the launcher says that they lie, as CUDA would, and run."""
        table = (ctypes.c_void_p * len(function.parameters)).from_address(parameters)
        pairs = zip(table, function.parameters, strict=True)
        self.run(function, grid, num_threads, [ctypes.string_at(start, each.size) for start, each in pairs])

    def run(self, function: Kernel, grid: tuple[int, ...], num_threads: int, arguments: list[Any]) -> None:
        reached = run(function, grid, (num_threads,), arguments, self.memory)
        self.reached.setdefault(function, set()).update(reached)

    def synchronize(self) -> None:
        """All is done when a launch returns."""


Way = Callable[[InterpretedDriver, Any, tuple[Any, int], tuple[Any, ...]], None]
"""Launches a kernel on a driver, on (grid, threads of a block), with numbers and `OnDevice` arrays."""


def by_launcher(driver: InterpretedDriver, kernel: Any, shape: tuple[Any, int], arguments: tuple[Any, ...]) -> None:
    """Launch as the package does."""
    try:
        driver.launcher.launch(kernel, *shape, arguments)
    except DeviceError as error:
        # What went wrong inside: the launcher's own words are about GPUs.
        raise error.__cause__ if isinstance(error.__cause__, PtxError) else error from None


def by_dispatcher(driver: InterpretedDriver, kernel: Any, shape: tuple[Any, int], arguments: tuple[Any, ...]) -> None:
    """Launch as ``kernel[grid, block](...)`` does, where an array is 5 + 2n parameters."""
    signature, capability = tuple(map(_ordinary_type, arguments)), driver.capability()
    key = kernel.py_func.__module__, kernel.py_func.__name__, str(signature), capability
    code = cached_code(key, lambda: str(cuda.compile_ptx(kernel.py_func, signature, cc=capability)[0]))
    driver.run(_parsed(code), *shape, [word for argument in arguments for word in _ordinary_words(argument)])


def _ordinary_type(argument: Any) -> types.Type:
    if not isinstance(argument, OnDevice):
        return types.int64
    # Device arrays are always writable and aligned to their elements.
    flags = getattr(argument.array, "flags", None)
    layout = "A" if flags is None else "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return types.Array(from_dtype(argument.dtype), len(argument.shape), layout)


def _ordinary_words(argument: Any) -> Iterator[int]:
    if not isinstance(argument, OnDevice):
        yield int(argument)
        return
    # Two pointers for the host, then size, bytes of an element, data, shape, strides.
    size = int(np.prod(argument.shape, dtype=np.int64))
    yield from (0, 0, size, argument.dtype.itemsize, argument.data.ptr, *argument.shape, *argument.strides)
