"""Small host arrays to a device in one asynchronous copy.

A pinned host buffer may be rewritten only after the copy that reads it is done. Waiting for that would stall the step,
so a buffer whose copy is still in flight is left alone and another one is used: the ring grows to the number of steps
that overlap, usually two.
"""

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, Event
from numba_ckpt.rules import ceil_to

__all__ = ["StagingRing"]

_ALIGNMENT = 16


class _Slot:
    def __init__(self, backend: DeviceBackend, num_bytes: int) -> None:
        self.host = backend.pinned(num_bytes)
        self.event: Event | None = None

    def is_free_for(self, num_bytes: int) -> bool:
        return self.host.nbytes >= num_bytes and (self.event is None or self.event.done)


class StagingRing:
    """Packs host arrays into pinned memory and sends them to the device together.

    Not thread-safe: one ring per thread that submits steps.
    """

    def __init__(self, backend: DeviceBackend) -> None:
        self.backend = backend
        self._slots: list[_Slot] = []

    def send(self, *arrays: np.ndarray) -> list[Array]:
        """Copy contiguous host arrays to the device in one copy; does not wait for it.

        Returns
        -------
        list
            Device arrays, views of one buffer, with the dtypes and shapes of `arrays`.
        """
        starts, num_bytes = self._place(arrays)
        slot = self._acquire(num_bytes)
        for start, array in zip(starts, arrays, strict=True):
            slot.host[start : start + array.nbytes].view(array.dtype)[:] = array.reshape(-1)
        device = self.backend.empty((num_bytes,), np.uint8)
        self.backend.copy_async(device, slot.host[:num_bytes])
        slot.event = self.backend.record_event()
        return [
            device[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]

    @staticmethod
    def _place(arrays: tuple[np.ndarray, ...]) -> tuple[list[int], int]:
        starts, end = [], 0
        for array in arrays:
            starts.append(end)
            end += int(ceil_to(array.nbytes, _ALIGNMENT))
        return starts, max(end, _ALIGNMENT)

    def _acquire(self, num_bytes: int) -> _Slot:
        for slot in self._slots:
            if slot.is_free_for(num_bytes):
                return slot
        # Powers of two, so that growing batches do not leave one buffer per size behind.
        slot = _Slot(self.backend, 1 << (num_bytes - 1).bit_length())
        self._slots.append(slot)
        return slot
