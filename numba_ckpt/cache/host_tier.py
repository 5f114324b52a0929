"""A host tier: every block of a host-resident group has a page on the host, the hot ones also one on the device.

::

    block id   0     1     2     3     4     5     6        pages on the host, 0 is the null block
               ·     ■     ■     ·     ■     ■     ·        ■ has contents
    slot       0     2                 3     1              0 is none
                      ╲               ╱     ╱
    hot set    [null, 5, 1, 4]                              pages on the device, slot 0 is the null block
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_ckpt._array import Array, Event
from numba_ckpt._check import check_array, check_int, check_integers, describe, refuse
from numba_ckpt.cache.page_copies import PageCopies
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.rules import NULL_BLOCK_ID

__all__ = ["HostTier"]


class HostTier:
    """Keeps a hot set of blocks on the device and moves the others' pages out and in.

    Block ids are those of the block table; kernels index the hot set, by the slots that `load` returns. The block table
    stays on the host, so ids are NumPy arrays.

    Parameters
    ----------
    hot_pages : sequence of ndarray or cupy.ndarray
        uint8 [num_slots, page bytes] of each storage; slot 0 is the null block's. Written by copies.
    num_blocks : int
        Blocks of the tier, null block included.

    Attributes
    ----------
    num_blocks, num_slots : int
        Blocks on the host, and slots of the hot set, null ones included.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        As `PageCopies`; fewer than two slots.

    Notes
    -----
    No call waits, except `close`. A call that is refused has changed nothing.

    Examples
    --------
    >>> import numpy as np
    >>> hot = np.full((3, 4), 255, np.uint8)
    >>> tier = HostTier([hot], num_blocks=10)
    >>> slots = tier.load(np.array([0, 7, 8]))
    >>> slots.tolist(), int(hot[slots].max())
    ([0, 1, 2], 0)
    >>> hot[slots[1]] = 7  # a step writes block 7
    >>> tier.mark_written(np.array([7]))
    >>> tier.load(np.array([9, 8])).tolist()  # block 7 makes room: its page goes to the host
    [1, 2]
    >>> hot[tier.load(np.array([7]))].tolist()
    [[7, 7, 7, 7]]
    """

    def __init__(self, hot_pages: Sequence[Array], num_blocks: int) -> None:
        self._pages = PageCopies(hot_pages, num_blocks)
        self.num_blocks = self._pages.num_blocks
        self.num_slots = check_int("num_slots", self._pages.num_slots, 2)
        self._slot_of = np.zeros(self.num_blocks, np.int32)
        self._block_in = np.zeros(self.num_slots, np.int32)
        self._used_at = np.zeros(self.num_slots, np.int64)
        self._is_written = np.zeros(self.num_slots, np.bool_)
        self._is_stored = np.zeros(self.num_blocks, np.bool_)
        # The null block is always there, and its slot never makes room.
        self._used_at[NULL_BLOCK_ID] = np.iinfo(np.int64).max
        self._clock = 0
        self._pages.copy_in(np.zeros(1, np.int64), np.zeros(1, np.int64))

    @property
    def last_event(self) -> Event | None:
        """Event of the last copies: let a stream that uses the hot set wait for it; None on a host."""
        return self._pages.last_event

    @property
    def num_resident(self) -> int:
        """Blocks in the hot set, the null block not counted."""
        return int(np.count_nonzero(self._block_in))

    def load(self, block_ids: Any, after: Event | None = None) -> np.ndarray:
        """Bring blocks into the hot set, all at once, and return their slots.

        Blocks that have not been used for the longest time make room; those written since they came are copied out
        first. A block without contents (never written, or forgotten) comes as zeros.

        Parameters
        ----------
        block_ids : array_like
            Integers on the host, a list or an array of any shape; null ids are skipped, duplicates count once.
        after : Event, optional
            What has to end first: the work of another stream that still uses the hot set.

        Returns
        -------
        ndarray
            int32, of the same shape: the slot of each block; 0 for the null block.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An id is out of range, there are more blocks than slots, or the tier is closed.
        """
        ids = self._check_ids(block_ids)
        wanted = self._without_null(ids)
        if wanted.size >= self.num_slots:
            expected = f"at most {self.num_slots - 1} blocks, the size of the hot set"
            refuse("block_ids", expected, wanted.size, "load fewer at a time, or make the hot set larger")
        missing = wanted[self._slot_of[wanted] == 0]
        resident = self._slot_of[wanted]
        self._clock += 1
        self._used_at[resident[resident > 0]] = self._clock
        if missing.size:
            self._bring(missing, self._make_room(missing.size, after), after)
        slots: np.ndarray = self._slot_of[ids]
        return slots

    def mark_written(self, block_ids: Any) -> None:
        """Note that blocks of the hot set are being written, so that they are copied out before they make room.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An id is out of range or not in the hot set, or the tier is closed.
        """
        slots = self._slot_of[self._resident(block_ids)]
        self._is_written[slots] = True

    def store(self, block_ids: Any = None, after: Event | None = None) -> int:
        """Copy written blocks out, and keep them in the hot set.

        Parameters
        ----------
        block_ids : array_like, optional
            Which of them; all by default. Null ids are skipped.
        after : Event, optional
            What has to end first: the step that writes them, if it runs on another stream than the copies.

        Returns
        -------
        int
            Blocks copied.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            As `mark_written`.
        """
        self._check_open()
        written = np.flatnonzero(self._is_written) if block_ids is None else self._slot_of[self._resident(block_ids)]
        slots = written[self._is_written[written]]
        self._copy_out(slots, after)
        return int(slots.size)

    def forget(self, block_ids: Any) -> None:
        """Drop the contents of blocks that were given back, wherever they are; what is loaded next is zero.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An id is out of range, or the tier is closed.
        """
        ids = self._without_null(self._check_ids(block_ids))
        slots = self._slot_of[ids]
        self._empty_slots(slots[slots > 0])
        self._is_stored[ids] = False

    def is_stored(self, block_ids: Any) -> np.ndarray:
        """Say which blocks have their present contents on the host, or on the way there; never the null block.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An id is out of range, or the tier is closed.
        """
        ids = self._check_ids(block_ids)
        stored: np.ndarray = self._is_stored[ids] & ~self._is_written[self._slot_of[ids]]
        return stored

    def host_pages(self, block_id: int) -> list[np.ndarray]:
        """View a stored block's page of each storage; valid until the block is stored again or forgotten.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            The block is not stored, or copies are in flight.
        """
        block = check_int("block_id", block_id, 1, self.num_blocks - 1)
        if not bool(self.is_stored(np.array([block]))[0]):
            refuse("block_id", "a block stored on the host", block, "store it first")
        if not self._pages.is_settled:
            refuse("host_pages", "no copies in flight", "some", "wait for last_event first")
        return [pages[block] for pages in self._pages.host_pages]

    def close(self) -> None:
        """Wait for copies in flight and let go of all pages; again is a no-op."""
        self._pages.close()

    def _make_room(self, count: int, after: Event | None) -> np.ndarray:
        """Empty the `count` slots that were not used for the longest time; empty ones come first."""
        used_at = np.where(self._block_in == 0, -1, self._used_at)
        used_at[NULL_BLOCK_ID] = self._used_at[NULL_BLOCK_ID]
        slots = np.sort(np.argsort(used_at, kind="stable")[:count])
        self._copy_out(slots[self._is_written[slots]], after)
        self._empty_slots(slots)
        return slots

    def _copy_out(self, slots: np.ndarray, after: Event | None) -> None:
        blocks = self._block_in[slots]
        # Not stored while a copy may have been half made.
        self._is_stored[blocks] = False
        self._pages.copy_out(blocks, slots, after)
        self._is_stored[blocks] = True
        self._is_written[slots] = False

    def _empty_slots(self, slots: np.ndarray) -> None:
        self._slot_of[self._block_in[slots]] = 0
        self._block_in[slots] = NULL_BLOCK_ID
        self._is_written[slots] = False

    def _bring(self, blocks: np.ndarray, slots: np.ndarray, after: Event | None) -> None:
        # A block without contents reads the null block's page, which is zero.
        self._pages.copy_in(np.where(self._is_stored[blocks], blocks, NULL_BLOCK_ID), slots, after)
        self._slot_of[blocks], self._block_in[slots] = slots, blocks
        self._used_at[slots] = self._clock

    def _resident(self, block_ids: Any) -> np.ndarray:
        ids = self._without_null(self._check_ids(block_ids))
        absent = ids[self._slot_of[ids] == 0]
        if absent.size:
            refuse("block_ids", "blocks in the hot set", f"block {absent[0]}, which is not", "load it first")
        return ids

    def _check_open(self) -> None:
        if not self._pages.host_pages:
            refuse("host tier", "an open one", "one that was closed", "allocate the caches again")

    def _check_ids(self, block_ids: Any) -> np.ndarray:
        self._check_open()
        ids: np.ndarray = block_ids if type(block_ids) is np.ndarray else check_integers("block_ids", block_ids)
        if type(ids) is not np.ndarray:
            refuse("block_ids", "a NumPy array", describe(ids), "keep the block table on the host", ArgumentTypeError)
        check_array("block_ids", ids, ids.ndim, "iu")
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_blocks:
            bad = ids[(ids < 0) | (ids >= self.num_blocks)].flat[0]
            do = "pass ids of this tier's blocks, and null ids for none"
            refuse("block_ids", f"ids in [0, {self.num_blocks - 1}]", bad, do)
        return ids.astype(np.int64, copy=False)

    def _without_null(self, ids: np.ndarray) -> np.ndarray:
        """Return the distinct ids, in order, but not the null block's."""
        is_given = np.zeros(self.num_blocks, np.bool_)
        is_given[ids] = True
        is_given[NULL_BLOCK_ID] = False
        return np.flatnonzero(is_given)
