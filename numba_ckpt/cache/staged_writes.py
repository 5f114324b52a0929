"""Blocks on their way into block tables: gathered on the host during a step, written in one launch."""

from typing import NamedTuple

import numpy as np

from numba_ckpt.kernels.apply_staged_writes import (
    NUM_WRITE_FIELDS,
    WRITE_COL,
    WRITE_COUNT,
    WRITE_GROUP,
    WRITE_ROW,
    WRITE_SIZE,
    WRITE_SOURCE,
)

__all__ = ["StagedWrite", "StagedWrites"]


class StagedWrite(NamedTuple):
    """Where some blocks go.

    Attributes
    ----------
    group, row : int
        The table and its row.
    col : int
        First table entry, in kernel blocks.
    num_parts : int
        Kernel blocks per block of the pool.

    Examples
    --------
    >>> StagedWrite(group=0, row=3, col=66, num_parts=33).col
    66
    """

    group: int
    row: int
    col: int
    num_parts: int


class StagedWrites:
    """Writes that have not been applied, in buffers that are kept from step to step.

    The writes of one row never overlap: a device applies all at once, in no order.

    Examples
    --------
    >>> staged = StagedWrites()
    >>> staged.add(StagedWrite(group=0, row=1, col=0, num_parts=1), np.array([5, 6, 7]))
    >>> staged.add(StagedWrite(group=0, row=1, col=0, num_parts=1), np.array([9]))  # replaces block 5
    >>> writes, block_ids = staged.take(np.array([[0, 3]]))
    >>> writes[:, [WRITE_COL, WRITE_SIZE, WRITE_SOURCE]].tolist(), block_ids.tolist()
    ([[1, 2, 1], [0, 1, 3]], [5, 6, 7, 9])
    """

    def __init__(self) -> None:
        self._writes = np.zeros((16, NUM_WRITE_FIELDS), np.int64)
        self._block_ids = np.zeros(64, np.int32)
        self._rows_with_tails: set[tuple[int, int]] = set()
        self.clear()

    def __len__(self) -> int:
        return self._num_writes

    def clear(self) -> None:
        """Forget all writes."""
        self._num_writes = self._num_ids = self.max_num_entries = 0
        self._rows_with_tails.clear()

    def add(self, write: StagedWrite, block_ids: np.ndarray) -> None:
        """Stage a write of checked `block_ids`; what it covers of earlier ones is taken from them."""
        num_ids = len(block_ids)
        self._cut_earlier(write, write.col + num_ids * write.num_parts)
        self._reserve(self._num_writes + 1, self._num_ids + num_ids)
        row = self._writes[self._num_writes]
        row[WRITE_GROUP], row[WRITE_ROW], row[WRITE_COL] = write.group, write.row, write.col
        row[WRITE_SIZE], row[WRITE_SOURCE] = num_ids, self._num_ids
        self._block_ids[self._num_ids : self._num_ids + num_ids] = block_ids
        self._num_writes += 1
        self._num_ids += num_ids
        self.max_num_entries = max(self.max_num_entries, num_ids * write.num_parts)

    def take(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return writes and ids, given the entries in use of each group and row once they are applied."""
        writes = self._writes[: self._num_writes]
        writes[:, WRITE_COUNT] = counts[writes[:, WRITE_GROUP], writes[:, WRITE_ROW]]
        return writes, self._block_ids[: self._num_ids]

    def _cut_earlier(self, write: StagedWrite, end: int) -> None:
        """Take the columns from `write.col` to `end` from earlier writes of the row.

        An overwrite of fewer blocks leaves tails of earlier writes, all behind its end; what is appended to it then
        meets these. Any other append is behind all writes of its row.
        """
        key = write.group, write.row
        if write.col > 0 and key not in self._rows_with_tails:
            return
        writes = self._writes[: self._num_writes]
        of_row = (writes[:, WRITE_GROUP] == write.group) & (writes[:, WRITE_ROW] == write.row)
        for index in np.flatnonzero(of_row & (writes[:, WRITE_COL] >= write.col)):
            earlier = writes[index]
            cut = min(max((end - earlier[WRITE_COL]) // write.num_parts, 0), earlier[WRITE_SIZE])
            earlier[WRITE_COL] += cut * write.num_parts
            earlier[WRITE_SIZE] -= cut
            earlier[WRITE_SOURCE] += cut
            if earlier[WRITE_SIZE]:
                self._rows_with_tails.add(key)

    def _reserve(self, num_writes: int, num_ids: int) -> None:
        if num_writes > len(self._writes):
            self._writes = np.concatenate([self._writes, np.zeros_like(self._writes)])
        if num_ids > len(self._block_ids):
            grown = np.zeros(1 << (num_ids - 1).bit_length(), np.int32)
            grown[: len(self._block_ids)] = self._block_ids
            self._block_ids = grown
