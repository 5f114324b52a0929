"""Launches on a GPU: a kernel is compiled once for each kind of arguments, which travel as one block of words.

::

    arguments ─► kinds, words ─► function of (kernel, kinds, device) ─► words into its block ─► driver
                                  │ not yet there
                                  └─► compile to PTX, or read it from disk ─► load

An array is its address, shape and strides (see `_device.CompactArray`), a number is one word. Numba's own dispatcher
launches the same kernels, with a type check and 5 + 2n parameters for each array.
"""

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from numba_ckpt._code_cache import cached_code
from numba_ckpt.errors import DeviceError, MissingDependencyError

__all__ = ["Driver", "Kinds", "Launcher"]

Kinds = tuple[tuple[str, int] | None, ...]
"""What a kernel is compiled for: (dtype character, dimensions) of an array, None for a number."""


class Driver(Protocol):
    """The few things that a launch asks of CUDA."""

    def current_device(self) -> int:
        """Return the number of the current device."""

    def capability(self) -> tuple[int, int]:
        """Return the current device's compute capability."""

    def load(self, code: str, name: str) -> Any:
        """Load PTX on the current device and return its function."""

    def launch(self, function: Any, grid: tuple[int, int, int], num_threads: int, parameters: int) -> None:
        """Queue a launch on the current stream; `parameters` is the address of the parameters' addresses."""

    def synchronize(self) -> None:
        """Wait for the current stream."""


class _Function(NamedTuple):
    """A loaded kernel, and the block that its parameters are packed into."""

    function: Any
    words: struct.Struct
    block: Any
    parameters: int
    kept: Any


def _new_function(function: Any, kinds: Kinds) -> _Function:
    """Lay parameters out, each from a multiple of a word on, as the ABI of PTX has them."""
    sizes = [1 if kind is None else 1 + 2 * kind[1] for kind in kinds]
    words = struct.Struct(f"={sum(sizes)}q")
    block = ctypes.create_string_buffer(max(words.size, 8))
    starts = [ctypes.addressof(block) + 8 * sum(sizes[:index]) for index in range(len(sizes))]
    table = (ctypes.c_void_p * max(len(starts), 1))(*starts)
    return _Function(function, words, block, ctypes.addressof(table), table)


_REMEDIES = {
    "UNSUPPORTED_PTX_VERSION": "the driver is older than the compiler: update it, or install the extra of its CUDA "
    "version, as in pip install 'numba-ckpt[cuda12]'",
    "NO_BINARY_FOR_GPU": "this GPU is not supported by the compiler: install a newer numba-cuda",
    "INVALID_PTX": "remove the folder of compiled code (NUMBA_CKPT_CACHE_DIR), and update the driver",
    "OUT_OF_MEMORY": "give the caches fewer blocks",
    "NO_DEVICE": "run it where nvidia-smi lists a GPU",
    "INSUFFICIENT_DRIVER": "update the driver",
    "ILLEGAL_ADDRESS": "an earlier launch went astray: run with NUMBA_CKPT_DEBUG=1 to see which",
    "MISALIGNED_ADDRESS": "an earlier launch went astray: run with NUMBA_CKPT_DEBUG=1 to see which",
}


def _refuse(kernel: Any, doing: str, cause: Exception) -> NoReturn:
    """Say what could not be done, why, and what mends it."""
    text = f"{type(cause).__name__}: {cause}"
    plain = text.upper().replace(" ", "_")
    remedies = [do for name, do in _REMEDIES.items() if name in plain or name.replace("_", "") in plain]
    name = kernel.py_func.__name__
    raise DeviceError(f"{name}: could not {doing} ({text}); {(remedies or ['run numba-ckpt doctor'])[0]}") from cause


def compile_code(kernel: Any, kinds: Kinds, capability: tuple[int, int], num_threads: int) -> str:
    """Return a kernel's PTX."""
    try:
        from numba_ckpt._device import compile_ptx, types_of
    except ImportError as cause:
        raise MissingDependencyError(
            "numba-cuda: expected it beside CuPy, to compile kernels; pip install 'numba-ckpt[cuda13]' (or [cuda12])"
        ) from cause
    try:
        return compile_ptx(kernel, types_of(kinds), capability, num_threads)
    except Exception as cause:
        _refuse(kernel, f"compile it for sm_{capability[0]}{capability[1]}", cause)


class Launcher:
    """Launches kernels on the current device and stream; safe to share between threads.

    Parameters
    ----------
    driver : Driver
        CUDA, or what a test puts in its place.
    compiler : callable
        Makes PTX of a kernel, kinds of arguments, compute capability and threads of a block.

    Notes
    -----
    With ``NUMBA_CKPT_DEBUG=1`` in the environment every launch waits for its end, so that an error names its kernel.
    """

    def __init__(self, driver: Driver, compiler: Callable[..., str] = compile_code) -> None:
        self._driver, self._compiler = driver, compiler
        self._functions: dict[Any, _Function] = {}
        self._lock = threading.Lock()
        self._waits = os.environ.get("NUMBA_CKPT_DEBUG") == "1"

    def launch(self, kernel: Any, grid: tuple[int, ...], num_threads: int, arguments: tuple[Any, ...]) -> None:
        """Queue a launch; numbers are ints, everything else is a CuPy array of the current device."""
        kinds: list[tuple[str, int] | None] = []
        words: list[int] = []
        for argument in arguments:
            if type(argument) is int or isinstance(argument, np.generic):
                kinds.append(None)
                words.append(int(argument))
            else:
                shape = argument.shape
                kinds.append((argument.dtype.char, len(shape)))
                words.append(argument.data.ptr)
                words += shape
                words += argument.strides
        function = self.prepare(kernel, tuple(kinds), num_threads)
        x, y, z = (*grid, 1, 1)[:3]
        with self._lock:
            function.words.pack_into(function.block, 0, *words)
            try:
                self._driver.launch(function.function, (x, y, z), num_threads, function.parameters)
                if self._waits:
                    self._driver.synchronize()
            except Exception as cause:
                _refuse(kernel, "launch it", cause)

    def prepare(self, kernel: Any, kinds: Kinds, num_threads: int) -> _Function:
        """Compile and load a kernel, unless that has been done."""
        key = kernel, kinds, num_threads, self._driver.current_device()
        function = self._functions.get(key)
        return self._load(key) if function is None else function

    def _load(self, key: Any) -> _Function:
        kernel, kinds, num_threads, _ = key
        capability = self._driver.capability()
        name = kernel.py_func.__name__
        entry = kernel.py_func.__module__, name, kinds, capability, num_threads
        code = cached_code(entry, lambda: self._compiler(kernel, kinds, capability, num_threads))
        try:
            loaded = self._driver.load(code, name)
        except Exception as cause:
            _refuse(kernel, f"load it on sm_{capability[0]}{capability[1]}", cause)
        return self._functions.setdefault(key, _new_function(loaded, kinds))
