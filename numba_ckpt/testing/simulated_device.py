"""A device made of host memory: real kernels in Numba's CUDA simulator, and a stream that runs late.

Copies to a real device happen some time after they are queued. Here they happen at the latest possible moment: when a
kernel needs them, or when somebody waits. A host buffer that is rewritten too early therefore shows up as wrong data.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numba_ckpt._array import (
    Array,
    DeviceBackend,
    Event,
    register_backend,
    unregister_backend,
)
from numba_ckpt._check import arrays_overlap
from numba_ckpt._jit import SIMULATED, cuda
from numba_ckpt.errors import MissingDependencyError
from numba_ckpt.testing.poison import poison

__all__ = ["SimulatedArray", "SimulatedDevice"]


class SimulatedArray(np.ndarray):
    """An array on the simulated device."""


@dataclass(eq=False)
class _QueuedEvent:
    done: bool = False


@dataclass(eq=False)
class SimulatedDevice(DeviceBackend):
    """A device backend that owns `SimulatedArray` and counts what is asked of it.

    Use it as a context manager's value: ``with SimulatedDevice.attached() as device``. Launching kernels needs
    ``NUMBA_ENABLE_CUDASIM=1``; copies and allocations do not.

    Attributes
    ----------
    num_copies, num_launches, num_waits : int
        Copies queued, kernels launched, and times the host waited.

    Examples
    --------
    >>> with SimulatedDevice.attached() as device:
    ...     array = device.put(np.arange(3))
    ...     type(array).__name__, device.get(array).tolist()
    ('SimulatedArray', [0, 1, 2])
    """

    num_copies: int = 0
    num_launches: int = 0
    num_waits: int = 0
    _queue: list[Any] = field(default_factory=list)

    name = "simulated"

    @classmethod
    @contextmanager
    def attached(cls) -> Iterator["SimulatedDevice"]:
        """Make a device and let it own simulated arrays for the length of a ``with`` block."""
        device = cls()
        register_backend(device)
        try:
            yield device
        finally:
            unregister_backend(device)

    def put(self, array: Any) -> Array:
        """Copy a host array here, at once; None stays None."""
        return None if array is None else np.array(array).view(SimulatedArray)

    def get(self, array: Array) -> np.ndarray:
        """Wait, then view a device array as a host array."""
        self.wait()
        host: np.ndarray = array.view(np.ndarray)
        return host

    def wait(self) -> None:
        """Wait for all queued work."""
        self.num_waits += 1
        self._run_queue()

    def _run_queue(self) -> None:
        for step in self._queue:
            step()
        self._queue.clear()

    def owns(self, array: Array) -> bool:
        return isinstance(array, SimulatedArray)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return poison(np.empty(shape, dtype)).view(SimulatedArray)

    def may_overlap(self, a: Array, b: Array) -> bool:
        return arrays_overlap(a.view(np.ndarray), b.view(np.ndarray))

    def address(self, array: Array) -> int:
        return int(array.ctypes.data)

    def pinned(self, num_bytes: int) -> np.ndarray:
        return poison(np.empty(num_bytes, np.uint8))

    def copy_async(self, destination: Array, source: np.ndarray) -> None:
        self.num_copies += 1
        self._queue.append(lambda: np.copyto(destination.view(np.ndarray), source))

    def copy_back_async(self, destination: np.ndarray, source: Array) -> None:
        self.num_copies += 1
        self._queue.append(lambda: np.copyto(destination, source.view(np.ndarray)))

    def record_event(self) -> Event:
        event = _QueuedEvent()
        self._queue.append(lambda: setattr(event, "done", True))
        return event

    def wait_event(self, event: Event) -> None:
        """Nothing to do: there is one stream, which keeps its order."""

    def synchronize(self, event: Event) -> None:
        if not event.done:
            self.wait()

    def launch(self, kernel: Any, grid: tuple[int, ...], block: int, arguments: tuple[Any, ...]) -> None:
        if not SIMULATED:
            raise MissingDependencyError(
                "kernels: expected Numba's CUDA simulator, got a process without it; set NUMBA_ENABLE_CUDASIM=1"
            )
        self.num_launches += 1
        self._run_queue()
        # The simulator copies host arrays in and out; its own array type is used in place, with any strides.
        in_place = type(cuda.device_array(1))
        kernel[grid, block](*(in_place(a.view(np.ndarray)) if self.owns(a) else a for a in arguments))
