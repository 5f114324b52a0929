"""Device memory as allocations far apart, and the checks that every access has to pass.

An allocation is one array of bytes, or, where only parts of a huge one are ever touched, the parts ("windows") alone::

    allocation   |=======....................=======|     ....  inside, but backed by nothing
    window        0     n                    m
"""

from typing import NamedTuple

import numpy as np

from tests.ptx.interpreter.errors import AlignmentError, OutOfBoundsError, PtxError, UnwrittenError
from tests.ptx.interpreter.program import Instruction
from tests.ptx.interpreter.races import Ledger

__all__ = ["GAP", "Access", "Allocation", "Memory", "Window"]

GAP = 2**44
"""Bytes from an allocation to the next: an index that overflowed does not reach a neighbour."""


class Window(NamedTuple):
    """A part of an allocation that has bytes.

    Attributes
    ----------
    start : int
        First byte, counted in the allocation.
    data : ndarray
        uint8 [n], read and written in place.
    written : ndarray or None
        bool [n], bytes that may be read, updated by stores; None where all may.
    """

    start: int
    data: np.ndarray
    written: np.ndarray | None = None


class Allocation(NamedTuple):
    """A range of addresses that a kernel may use.

    Attributes
    ----------
    name : str
        For messages.
    base : int
        Address of its first byte.
    size : int
        Bytes.
    windows : tuple of Window
        In order, not overlapping.
    """

    name: str
    base: int
    size: int
    windows: tuple[Window, ...]


class Access(NamedTuple):
    """One instruction's loads or stores, for all threads that execute it at once.

    Attributes
    ----------
    addresses : ndarray
        uint64 [n].
    width : int
        Bytes for each thread; addresses must be multiples of it.
    threads, blocks, epochs : ndarray
        int [n]: which thread of the grid, of which block, and how many barriers the block has passed.
    instruction : Instruction
        For messages.
    """

    addresses: np.ndarray
    width: int
    threads: np.ndarray
    blocks: np.ndarray
    epochs: np.ndarray
    instruction: Instruction

    def at(self, index: int) -> str:
        """Name the access of one thread, for messages."""
        who = f"thread {self.threads[index]} (block {self.blocks[index]})"
        return f"{self.instruction}\n  {who} at address {int(self.addresses[index]):#x}, {self.width} bytes"


class Memory:
    """Allocations by address.

    Examples
    --------
    >>> memory = Memory()
    >>> cache, table = (memory.declare(name, np.zeros(16, np.uint8)) for name in ("cache", "table"))
    >>> table.base - cache.base == GAP
    True
    """

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.ledger = Ledger()
        # Address 0 begins a window without bytes, so that every address lies behind some window's start.
        self._windows = [Window(0, np.zeros(0, np.uint8))]
        self._starts = np.zeros(1, np.uint64)

    def declare(self, name: str, data: np.ndarray, written: np.ndarray | None = None) -> Allocation:
        """Let kernels use an array's bytes; with `written`, as long as they are written (both are changed in place)."""
        return self.declare_sparse(name, data.size, Window(0, data, written))

    def declare_sparse(self, name: str, size: int, *windows: Window) -> Allocation:
        """Let kernels use the given parts of an allocation of `size` bytes."""
        allocation = Allocation(name, (len(self.allocations) + 1) * GAP, size, windows)
        self.allocations.append(allocation)
        starts = [allocation.base + window.start for window in windows]
        self._windows += windows
        self._starts = np.append(self._starts, np.array(starts, np.uint64))
        return allocation

    def load(self, access: Access) -> np.ndarray:
        """Return uint8 [n, width], after all checks."""
        loaded = np.empty((access.addresses.size, access.width), np.uint8)
        for window, lanes, where in self._find(access):
            if window.written is not None and not (known := window.written[where].all(axis=1)).all():
                index = _first(lanes, ~known)
                where_it_is = self.locate(int(access.addresses[index]))
                raise UnwrittenError(f"{access.at(index)}\n  reads what nothing has written, in {where_it_is}")
            loaded[lanes] = window.data[where]
        self.ledger.record_load(access, loaded)
        return loaded

    def store(self, access: Access, values: np.ndarray) -> None:
        """Write uint8 [n, width], after all checks; of several threads at one address the last one wins."""
        before = np.empty_like(values)
        for window, lanes, where in self._find(access):
            before[lanes] = window.data[where]
            window.data[where] = values[lanes]
            if window.written is not None:
                window.written[where] = True
        self.ledger.record_store(access, before, values)

    def _find(self, access: Access) -> list[tuple[Window, np.ndarray | slice, np.ndarray]]:
        """Return the windows of an access: each with its lanes, and the [lanes, width] bytes that they touch."""
        addresses = access.addresses
        found = np.searchsorted(self._starts, addresses, side="right") - 1
        if (misaligned := addresses % np.uint64(access.width) != 0).any():
            index = int(np.argmax(misaligned))
            raise AlignmentError(
                f"{access.at(index)}\n  is not aligned to its width, in {self.locate(int(access.addresses[index]))}"
            )
        parts: list[tuple[Window, np.ndarray | slice, np.ndarray]] = []
        for number in np.unique(found):
            lanes = slice(None) if (found == number).all() else np.flatnonzero(found == number)
            window = self._windows[number]
            offsets = addresses[lanes] - self._starts[number]
            if (outside := offsets > window.data.size - access.width).any():
                raise self._out_of_bounds(access, _first(lanes, outside))
            offsets = offsets.astype(np.int64)
            parts.append((window, lanes, offsets[:, None] + np.arange(access.width)))
        return parts

    def locate(self, address: int) -> str:
        """Say where an address lies, relative to the nearest allocation."""
        if not self.allocations:
            return "no allocation"
        nearest = min(self.allocations, key=lambda a: max(a.base - address, address - a.base - a.size, 0))
        return f"{nearest.name} of {nearest.size} bytes at byte {address - nearest.base}"

    def _out_of_bounds(self, access: Access, index: int) -> PtxError:
        address = int(access.addresses[index])
        inside = any(a.base <= address and address + access.width <= a.base + a.size for a in self.allocations)
        where = "is in a part that nothing backs" if inside else "is outside all allocations; the nearest is"
        return OutOfBoundsError(f"{access.at(index)}\n  {where}: {self.locate(int(access.addresses[index]))}")


def _first(lanes: np.ndarray | slice, wrong: np.ndarray) -> int:
    """Return the index, among all lanes, of the first wrong one of some."""
    index = int(np.argmax(wrong))
    return index if isinstance(lanes, slice) else int(lanes[index])
