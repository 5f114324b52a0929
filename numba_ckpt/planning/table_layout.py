"""How the block tables of all cache groups lie in one array, so that one launch serves all groups.

The groups of a hybrid model have tables of different widths. Their entries lie one table after another::

    entries   | group 0: rows x 10 columns | gap | group 1: rows x 3 columns | gap |
                                                 ^ start of group 1, on a multiple of 64 entries
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np

from numba_ckpt._array import Array, backend_of
from numba_ckpt._check import INT32_MAX, check_array, check_bool, check_int, check_shape, check_writable, refuse
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.rules import (
    NO_WINDOW,
    NUM_TABLE_PARAMS,
    TABLE_BLOCK_SIZE,
    TABLE_COLS,
    TABLE_CP_INTERLEAVE,
    TABLE_CP_RANK,
    TABLE_CP_SIZE,
    TABLE_HAS_SLOTS,
    TABLE_PARTS,
    TABLE_START,
    TABLE_WINDOW,
    ceil_to,
    is_multiple,
)

__all__ = ["TableArrays", "TableGroup", "TableLayout", "check_tables", "refuse_table_row"]

# Tables start on 256 bytes, which vector loads of attention kernels like.
_START_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class TableGroup:
    """The block table of one cache group; checked once, when made.

    Parameters
    ----------
    block_size : int
        Tokens per block that the pool hands out, on one rank.
    width : int
        Blocks of the pool that a row can hold.
    kernel_block_size : int, optional
        Tokens per block that the group's attention kernels see; divides `block_size`, which it is by default. The
        table is kept in these units.
    sliding_window : int, optional
        Tokens that a token sees, itself included; by default all.
    cp_size, cp_rank, cp_interleave : int
        Context-parallel ranks among which the tokens of this group are dealt out, which rank this is, and how many
        tokens a rank takes at a time (divides the kernel block size). Only for sharded groups: states, sliding windows
        and other replicated groups keep 1, 0, 1.
    has_slots : bool
        Whether the group stores tokens by slot; state groups do not.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A size is out of range, sizes do not divide, or a row would hold more than 2^31 - 1 tokens.

    Examples
    --------
    >>> group = TableGroup(block_size=528, width=4, kernel_block_size=16)
    >>> group.num_parts, group.num_cols
    (33, 132)
    >>> TableGroup(block_size=528, width=4, kernel_block_size=32)
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: kernel_block_size: expected a divisor of block_size (528), got 32; ...
    """

    block_size: int
    width: int
    kernel_block_size: int | None = None
    sliding_window: int | None = None
    cp_size: int = 1
    cp_rank: int = 0
    cp_interleave: int = 1
    has_slots: bool = True

    def __post_init__(self) -> None:
        size = check_int("block_size", self.block_size, 1)
        check_int("width", self.width, 0)
        if self.kernel_block_size is None:
            object.__setattr__(self, "kernel_block_size", size)
        part = check_int("kernel_block_size", self.kernel_block_size, 1)
        if not is_multiple(size, part):
            refuse("kernel_block_size", f"a divisor of block_size ({size})", part, "pick a size the backend supports")
        if self.sliding_window is not None:
            check_int("sliding_window", self.sliding_window, 1)
        ranks = check_int("cp_size", self.cp_size, 1)
        check_int("cp_rank", self.cp_rank, 0, ranks - 1)
        turn = check_int("cp_interleave", self.cp_interleave, 1)
        if not is_multiple(part, turn):
            do = "a turn of one rank must not cross its block"
            refuse("cp_interleave", f"a divisor of the kernel block size ({part})", turn, do)
        check_bool("has_slots", self.has_slots)
        if (tokens := self.width * size * ranks) > INT32_MAX:
            refuse("width", "rows of at most 2147483647 tokens", tokens, "size rows by the longest sequence")

    @property
    def num_parts(self) -> int:
        """Table entries per block of the pool."""
        return self.block_size // (self.kernel_block_size or self.block_size)

    @property
    def num_cols(self) -> int:
        """Entries per row."""
        return self.width * self.num_parts


class TableLayout:
    """Where the entries of all groups lie in one int32 array.

    Parameters
    ----------
    groups : sequence of TableGroup
        The groups, in the order of the cache configuration.
    num_rows : int
        Rows of each table: requests that can run at once.

    Attributes
    ----------
    groups : tuple of TableGroup
    num_rows : int
    num_entries : int
        Length of the shared array.
    params : ndarray
        int64 [groups, `NUM_TABLE_PARAMS`], what compiled code reads; see `numba_ckpt.rules.table_params`.

    Examples
    --------
    >>> layout = TableLayout([TableGroup(16, 10), TableGroup(1024, 3)], num_rows=4)
    >>> layout.num_entries
    128
    >>> [table.shape for table in layout.views(np.zeros(128, np.int32))]
    [(4, 10), (4, 3)]
    """

    def __init__(self, groups: Any, num_rows: int) -> None:
        self.groups: tuple[TableGroup, ...] = tuple(groups)
        for group in self.groups:
            if not isinstance(group, TableGroup):
                do = "describe each group's table in one"
                refuse("groups", "a sequence of TableGroup", type(group).__name__, do, ArgumentTypeError)
        self.num_rows = check_int("num_rows", num_rows, 0)
        sizes = [ceil_to(num_rows * group.num_cols, _START_MULTIPLE) for group in self.groups]
        self._starts = list(accumulate(map(int, sizes), initial=0))
        self.num_entries = self._starts[-1]
        self.max_num_cols = max((group.num_cols for group in self.groups), default=0)
        self.params = np.empty((len(self.groups), NUM_TABLE_PARAMS), np.int64)
        for start, group, row in zip(self._starts, self.groups, self.params, strict=False):
            _fill_params(row, start, group)

    def views(self, entries: Array, num_rows: int | None = None) -> tuple[Array, ...]:
        """Return each group's first `num_rows` rows (all by default) as a [num_rows, num_cols] view of `entries`."""
        rows = self.num_rows if num_rows is None else num_rows
        tables = zip(self._starts, self.groups, strict=False)
        # A list first: tuples made from a generator pile up in Python's free list.
        views = [entries[at : at + rows * group.num_cols].reshape(rows, group.num_cols) for at, group in tables]
        return tuple(views)

    def check_entries(self, name: str, entries: Array) -> None:
        """Refuse anything but a writable int32 array of `num_entries`."""
        check_array(name, entries, 1, "i")
        if entries.dtype != np.int32:
            refuse(name, "int32", entries.dtype, "block ids take 32 bits", ArgumentTypeError)
        check_shape(name, entries, (self.num_entries,), "the layout says how many entries its tables have")
        check_writable(name, entries)


def _fill_params(row: np.ndarray, start: int, group: TableGroup) -> None:
    row[TABLE_START], row[TABLE_COLS] = start, group.num_cols
    row[TABLE_BLOCK_SIZE], row[TABLE_PARTS] = group.kernel_block_size or 0, group.num_parts
    row[TABLE_WINDOW], row[TABLE_HAS_SLOTS] = group.sliding_window or NO_WINDOW, group.has_slots
    row[TABLE_CP_SIZE], row[TABLE_CP_RANK] = group.cp_size, group.cp_rank
    row[TABLE_CP_INTERLEAVE] = group.cp_interleave


@dataclass(frozen=True, slots=True, eq=False)
class TableArrays:
    """The block tables of all groups.

    Parameters
    ----------
    layout : TableLayout
        Where the entries lie.
    params : ndarray or cupy.ndarray
        A copy of ``layout.params`` on the device of the tables.
    entries : ndarray or cupy.ndarray
        int32 [num_entries], block ids in the groups' kernel block sizes.
    num_blocks : ndarray or cupy.ndarray
        int32 [groups, num_rows], how many entries of each row are in use.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, arrays of different devices.

    Examples
    --------
    >>> layout = TableLayout([TableGroup(16, 3)], num_rows=2)
    >>> tables = TableArrays(layout, layout.params, np.zeros(64, np.int32), np.zeros((1, 2), np.int32))
    >>> layout.views(tables.entries)[0].tolist()
    [[0, 0, 0], [0, 0, 0]]
    """

    layout: TableLayout
    params: Array
    entries: Array
    num_blocks: Array

    def __post_init__(self) -> None:
        if not isinstance(self.layout, TableLayout):
            got, do = type(self.layout).__name__, "make one from the groups"
            refuse("layout", "a TableLayout", got, do, ArgumentTypeError)
        backend_of(params=self.params, entries=self.entries, num_blocks=self.num_blocks)
        check_array("params", self.params, 2, "i")
        check_shape("params", self.params, self.layout.params.shape, "copy the layout's")
        self.layout.check_entries("entries", self.entries)
        check_array("num_blocks", self.num_blocks, 2, "i")
        shape = len(self.layout.groups), self.layout.num_rows
        check_shape("num_blocks", self.num_blocks, shape, "one count for each group and row")


def check_tables(tables: Any) -> None:
    """Refuse anything but `TableArrays`."""
    if not isinstance(tables, TableArrays):
        refuse("tables", "TableArrays", type(tables).__name__, "wrap the tables in it", ArgumentTypeError)


def refuse_table_row(request_rows: np.ndarray, entry: int, num_rows: int) -> NoReturn:
    """Refuse the row of a request that no table has."""
    expected = f"table rows in [0, {num_rows}), or -1 for a dummy"
    refuse("request_rows", expected, f"{request_rows[entry]} at entry {entry}", "check where requests get their rows")
