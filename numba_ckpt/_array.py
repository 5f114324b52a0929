"""Which device arrays live on, and how to reach it: memory, streams, host-to-device copies, launches.

The arrays of a call choose its backend: NumPy arrays run host loops, CuPy arrays run kernels on CuPy's current stream,
and a mixture is refused. CuPy is found through ``sys.modules``: whoever holds a CuPy array has imported it.
"""

import sys
from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np

from numba_ckpt._check import arrays_overlap, describe, refuse
from numba_ckpt._jit import cuda
from numba_ckpt.errors import ArgumentTypeError, BackendMixError

__all__ = [
    "HOST",
    "Array",
    "Backend",
    "DeviceBackend",
    "HostBackend",
    "backend_of",
    "register_backend",
    "unregister_backend",
]

Array = Any
"""A NumPy or CuPy array."""


class Backend(ABC):
    """A place where arrays live."""

    name: str
    is_host: bool

    @abstractmethod
    def owns(self, array: Array) -> bool:
        """Say whether `array` lives here."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Allocate an uninitialised array."""

    @abstractmethod
    def may_overlap(self, a: Array, b: Array) -> bool:
        """Say whether two arrays share bytes, as far as it can be told quickly; True where it cannot."""

    @abstractmethod
    def address(self, array: Array) -> int:
        """Return the address of an array's first element."""

    def as_strided(self, array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """View an array with another shape and other strides (bytes), which the caller has checked."""
        return np.lib.stride_tricks.as_strided(array, shape, strides, subok=True)

    def check_current(self, arrays: dict[str, Array]) -> None:  # noqa: B027  (nothing to check on a host)
        """Refuse arrays that this backend could not reach with one launch."""


class Event(Protocol):
    """A point in a stream's order."""

    @property
    def done(self) -> bool:
        """Whether the stream has passed it; does not wait."""


class DeviceBackend(Backend):
    """A backend whose work is queued on a stream."""

    is_host = False

    @abstractmethod
    def pinned(self, num_bytes: int) -> np.ndarray:
        """Allocate page-locked host memory, as uint8 [num_bytes]."""

    @abstractmethod
    def copy_async(self, destination: Array, source: np.ndarray) -> None:
        """Queue a copy from pinned host memory; `source` must not change until a later event is done."""

    @abstractmethod
    def copy_back_async(self, destination: np.ndarray, source: Array) -> None:
        """Queue a copy to pinned host memory; `destination` holds it once a later event is done."""

    @abstractmethod
    def record_event(self) -> Event:
        """Mark the current end of the stream."""

    @abstractmethod
    def wait_event(self, event: Event) -> None:
        """Let the current stream go on only after `event`; the host does not wait."""

    @abstractmethod
    def synchronize(self, event: Event) -> None:
        """Let the host wait for `event`."""

    @abstractmethod
    def launch(self, kernel: Any, grid: tuple[int, ...], block: int, arguments: tuple[Any, ...]) -> None:
        """Queue a kernel on the current stream; does not synchronise."""


class HostBackend(Backend):
    """NumPy arrays; work is done when a call returns."""

    name = "numpy"
    is_host = True

    def owns(self, array: Array) -> bool:
        return type(array) is np.ndarray or isinstance(array, np.ndarray)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.empty(shape, dtype)

    def may_overlap(self, a: Array, b: Array) -> bool:
        return arrays_overlap(a, b)

    def address(self, array: Array) -> int:
        return int(array.ctypes.data)


class _CupyEvent:
    def __init__(self, event: Any) -> None:
        self.event = event

    @property
    def done(self) -> bool:
        return bool(self.event.done)


class CupyBackend(DeviceBackend):
    """CuPy arrays; work is queued on CuPy's current stream of the current device."""

    name = "cupy"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def owns(self, array: Array) -> bool:
        return isinstance(array, self._cupy.ndarray)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._cupy.empty(shape, dtype)

    def may_overlap(self, a: Array, b: Array) -> bool:
        return bool(self._cupy.may_share_memory(a, b))

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def as_strided(self, array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        return self._cupy.lib.stride_tricks.as_strided(array, shape, strides)

    def check_current(self, arrays: dict[str, Array]) -> None:
        current = self._cupy.cuda.runtime.getDevice()
        elsewhere = {name: array.device.id for name, array in arrays.items() if array.device.id != current}
        if elsewhere:
            places = ", ".join(f"{name} on device {device}" for name, device in elsewhere.items())
            raise BackendMixError(
                f"arrays: expected all on the current device {current}, got {places}; "
                "move them, or enter their device with cupy.cuda.Device"
            )

    def pinned(self, num_bytes: int) -> np.ndarray:
        memory = self._cupy.cuda.alloc_pinned_memory(num_bytes)
        return np.frombuffer(memory, np.uint8, num_bytes)

    def copy_async(self, destination: Array, source: np.ndarray) -> None:
        stream = self._cupy.cuda.get_current_stream()
        destination.data.copy_from_host_async(source.ctypes.data, source.nbytes, stream)

    def copy_back_async(self, destination: np.ndarray, source: Array) -> None:
        stream = self._cupy.cuda.get_current_stream()
        source.data.copy_to_host_async(destination.ctypes.data, source.nbytes, stream)

    def record_event(self) -> Event:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(self._cupy.cuda.get_current_stream())
        return _CupyEvent(event)

    def wait_event(self, event: Any) -> None:
        self._cupy.cuda.get_current_stream().wait_event(event.event)

    def synchronize(self, event: Any) -> None:
        event.event.synchronize()

    def launch(self, kernel: Any, grid: tuple[int, ...], block: int, arguments: tuple[Any, ...]) -> None:
        # Numba would synchronise with a CuPy array's stream; the launch is on that stream already.
        stream = cuda.external_stream(self._cupy.cuda.get_current_stream().ptr)
        passed = (self._as_kernel_argument(argument) for argument in arguments)
        kernel[grid, block, stream](*passed)

    def _as_kernel_argument(self, argument: Any) -> Any:
        if not self.owns(argument):
            return argument
        return cuda.from_cuda_array_interface(argument.__cuda_array_interface__, owner=argument, sync=False)


HOST = HostBackend()
_registered: list[Backend] = []


def register_backend(backend: Backend) -> None:
    """Add a backend that is asked before the host about arrays (the simulated device of the tests)."""
    if backend not in _registered:
        _registered.insert(0, backend)


def unregister_backend(backend: Backend) -> None:
    """Forget a backend that was added."""
    _registered.remove(backend)


def _find_backend(name: str, array: Array) -> Backend:
    if "cupy" in sys.modules and not any(isinstance(backend, CupyBackend) for backend in _registered):
        register_backend(CupyBackend(sys.modules["cupy"]))
    owners = [backend for backend in (*_registered, HOST) if backend.owns(array)]
    if not owners:
        do = "convert it, or wrap it without a copy"
        refuse(name, "a NumPy or CuPy array", describe(array), do, ArgumentTypeError)
    return owners[0]


def backend_of(**arrays: Array) -> Backend:
    """Return the backend that all the given arrays share; None stands for an argument not given.

    Raises
    ------
    ArgumentTypeError
        Something is not an array.
    BackendMixError
        Arrays of several backends.
    """
    given = {name: array for name, array in arrays.items() if array is not None}
    if all(type(array) is np.ndarray for array in given.values()):
        return HOST
    found = {name: _find_backend(name, array) for name, array in given.items()}
    backends = set(found.values())
    if len(backends) == 1:
        backend = backends.pop()
        backend.check_current(given)
        return backend
    places = ", ".join(f"{name} on {backend.name}" for name, backend in found.items())
    raise BackendMixError(f"arrays: expected all on one device, got {places}; move them to one device first")
