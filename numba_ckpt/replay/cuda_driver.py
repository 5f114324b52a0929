"""What the CUDA driver itself says, asked without any Python package of CUDA."""

import ctypes
import sys
from dataclasses import dataclass

__all__ = ["CudaDriver", "find_driver"]

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_NAME_BYTES = 128


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """A loaded CUDA driver.

    Attributes
    ----------
    version : tuple of int
        Newest CUDA (major, minor) that it runs.
    devices : tuple of str
        Name and compute capability of each GPU; empty if it finds none.
    """

    version: tuple[int, int]
    devices: tuple[str, ...]


def find_driver() -> CudaDriver | None:
    """Ask the CUDA driver for its version and devices; None where no driver is installed."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    number = _ask(library.cuDriverGetVersion)
    version = (number // 1000, number % 1000 // 10)
    if library.cuInit(0) != 0:
        return CudaDriver(version, ())
    return CudaDriver(version, tuple(_describe(library, device) for device in range(_ask(library.cuDeviceGetCount))))


def _ask(function: "ctypes._NamedFuncPointer", *arguments: int) -> int:
    answer = ctypes.c_int(0)
    function(ctypes.byref(answer), *arguments)
    return answer.value


def _describe(library: ctypes.CDLL, ordinal: int) -> str:
    device = _ask(library.cuDeviceGet, ordinal)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    library.cuDeviceGetName(name, _NAME_BYTES, device)
    major, minor = (
        _ask(library.cuDeviceGetAttribute, which, device) for which in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR)
    )
    return f"{name.value.decode()} (compute capability {major}.{minor})"
