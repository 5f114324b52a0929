"""Races: two threads of a launch that use one byte in no order, one of them writing something new.

Threads are in order only within a block, where a barrier lies between them. What the interpreter's own schedule makes
of a race says nothing about a GPU, so all loads and stores of a launch are kept, and looked at when it has ended.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.ptx.interpreter.errors import RaceError

if TYPE_CHECKING:
    from tests.ptx.interpreter.memory import Access

__all__ = ["Ledger"]


class _Entry(NamedTuple):
    """Loads (`before` is None) or stores of one instruction; uint8 [n, width]."""

    access: "Access"
    before: np.ndarray | None
    values: np.ndarray


class _Use(NamedTuple):
    """What one thread did to one byte."""

    thread: int
    block: int
    epoch: int
    is_store: int
    before: int
    value: int
    entry: int


class Ledger:
    """The loads and stores of a launch."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def clear(self) -> None:
        """Forget them, before the next launch."""
        self._entries.clear()

    def record_load(self, access: "Access", values: np.ndarray) -> None:
        """Keep a load."""
        self._entries.append(_Entry(access, None, values))

    def record_store(self, access: "Access", before: np.ndarray, values: np.ndarray) -> None:
        """Keep a store and the bytes that it replaced."""
        self._entries.append(_Entry(access, before, values))

    def written(self) -> np.ndarray:
        """Addresses of all bytes stored to, uint64, sorted."""
        stores = [_bytes_of(entry.access).ravel() for entry in self._entries if entry.before is not None]
        return np.unique(np.concatenate(stores)) if stores else np.zeros(0, np.uint64)

    def check(self, locate: Callable[[int], str]) -> None:
        """Raise RaceError for the first byte, by address, on which two threads race; `locate` says where one lies."""
        written = self.written()
        if not written.size:
            return
        columns = [_columns(number, entry, written) for number, entry in enumerate(self._entries)]
        address, thread, *_ = uses = [np.concatenate(column) for column in zip(*columns, strict=True)]
        order = np.argsort(address, kind="stable")
        starts = np.flatnonzero(np.diff(address[order], prepend=address[order[0]] - np.uint64(1)))
        shared = np.minimum.reduceat(thread[order], starts) != np.maximum.reduceat(thread[order], starts)
        ends = np.append(starts[1:], order.size)
        for start, end in zip(starts[shared], ends[shared], strict=True):
            rows = order[start:end]
            if race := _first_race([_Use(*(int(use[row]) for use in uses[1:])) for row in rows]):
                store, other = race
                what = "another value" if other.is_store else "a read of it"
                where = f"race in {locate(int(address[rows[0]]))}: no barrier parts a store from {what}"
                raise RaceError(f"{self._describe(store)}\n{self._describe(other)}\n  {where}")

    def _describe(self, use: _Use) -> str:
        what = f"stores {use.value:#04x}" if use.is_store else f"reads {use.value:#04x}"
        instruction = self._entries[use.entry].access.instruction
        return f"{instruction}\n  thread {use.thread} (block {use.block}) {what}"


def _first_race(uses: list[_Use]) -> tuple[_Use, _Use] | None:
    pairs = ((store, other) for store in uses if store.is_store for other in uses)
    return next((pair for pair in pairs if _race(*pair)), None)


def _race(store: _Use, other: _Use) -> bool:
    ordered = store.thread == other.thread or (store.block == other.block and store.epoch != other.epoch)
    if ordered:
        return False
    if other.is_store:
        return store.value != other.value
    return store.before != store.value or store.value != other.value


def _bytes_of(access: "Access") -> np.ndarray:
    return access.addresses[:, None] + np.arange(access.width, dtype=np.uint64)


def _columns(number: int, entry: _Entry, written: np.ndarray) -> tuple[Any, ...]:
    """Return the address, and the fields of `_Use`, of each byte that an entry shares with some store."""
    addresses = _bytes_of(entry.access)
    is_store = entry.before is not None
    if is_store:
        keep = np.ones(addresses.shape, bool)
    else:
        keep = written[np.minimum(np.searchsorted(written, addresses), written.size - 1)] == addresses
    access, before = entry.access, entry.values if entry.before is None else entry.before
    lanes = np.nonzero(keep)[0]
    constants = (np.full(lanes.size, is_store), before[keep], entry.values[keep], np.full(lanes.size, number))
    return addresses[keep], access.threads[lanes], access.blocks[lanes], access.epochs[lanes], *constants
