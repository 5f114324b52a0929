"""Where a token's keys and values lie: column and entry of a block table, then slot in the cache.

A cache of blocks is one long line of *slots*, one per token: block b of `block_size` tokens holds the slots
``b * block_size`` to ``(b + 1) * block_size - 1``. Under context parallelism the ranks deal the tokens of a sequence
out among themselves, `interleave` at a time, so that one column of a table stands for `block_size` tokens on each
rank. With blocks of 4 tokens, 2 ranks and an interleave of 2::

    position        0  1  2  3  4  5  6  7 |  8  9 10 11 12 13 14 15
    rank            0  0  1  1  0  0  1  1 |  0  0  1  1  0  0  1  1
    local offset    0  1  0  1  2  3  2  3 |  0  1  0  1  2  3  2  3
    column                 0               |             1
"""

from numba_ckpt._jit import int64, rule
from numba_ckpt.rules.arithmetic import floor_div, floor_to
from numba_ckpt.rules.attention_span import sliding_window_start

PAD_SLOT_ID = -1
"""Slot of a token that is not stored; whoever writes by slot skips it."""
DUMMY_ROW = -1
"""Table row of a request that is none: its tokens have no slots, its gathered row is empty."""
NO_WINDOW = 0
"""Sliding window of a group that attends to everything."""


@rule
def entry_index(start: int, row: int, num_cols: int, col: int) -> int:
    """Return the index of a table's entry in the memory that all tables share.

    Parameters
    ----------
    start : int
        Index of the table's first entry.
    row, num_cols, col : int
        Row, entries per row, and column; the product takes 64 bits.

    Examples
    --------
    >>> entry_index(64, 2, 10, 3), entry_index(0, 2**20, 2**13, 0)
    (87, 8589934592)
    """
    return int64(start) + int64(row) * int64(num_cols) + int64(col)


@rule
def kernel_block_id(block: int, num_parts: int, part: int) -> int:
    """Return the id of one part of a block that attention kernels see as `num_parts` smaller blocks.

    Parameters
    ----------
    block : int
        Id that the block pool hands out, at least 0.
    num_parts : int
        Kernel blocks per block, at least 1.
    part : int
        0 to num_parts - 1, in token order.

    Examples
    --------
    >>> [kernel_block_id(7, 33, part) for part in (0, 32)]  # blocks of 528 tokens as 33 of 16
    [231, 263]
    """
    return int64(block) * int64(num_parts) + int64(part)


@rule
def token_col(position: int, block_size: int, cp_size: int) -> int:
    """Return the table column of a token.

    Parameters
    ----------
    position : int
        Token position; a negative one has a negative column.
    block_size : int
        Tokens per block of this group and rank, at least 1.
    cp_size : int
        Ranks among which the group's tokens are dealt out; 1 where it is not sharded.

    Examples
    --------
    >>> token_col(130, 4, 1), token_col(130, 4, 2), token_col(-1, 4, 1)
    (32, 16, -1)
    """
    return floor_div(position, int64(block_size) * int64(cp_size))


@rule
def num_cols_below_window(num_computed_tokens: int, window: int, block_size: int, cp_size: int) -> int:
    """Return how many leading columns of a row no later token sees.

    Parameters
    ----------
    num_computed_tokens : int
        Position of the first token still to come, at least 0.
    window : int
        Tokens that a token sees, itself included; `NO_WINDOW` sees all.
    block_size, cp_size : int
        See `token_col`.

    Examples
    --------
    >>> num_cols_below_window(100, 32, 16, 1), num_cols_below_window(100, NO_WINDOW, 16, 1)
    (4, 0)
    """
    if window == NO_WINDOW:
        return int64(0)
    return token_col(sliding_window_start(num_computed_tokens, window), block_size, cp_size)


@rule
def block_slot(block: int, offset: int, block_size: int) -> int:
    """Return the cache slot of the token at `offset` in a block; `PAD_SLOT_ID` if there is no block.

    Parameters
    ----------
    block : int
        Block id; a negative one is none and has no slots.
    offset : int
        Token in the block, 0 to block_size - 1.
    block_size : int
        Tokens per block, at least 1; the product takes 64 bits.

    Examples
    --------
    >>> block_slot(7, 1, 4), block_slot(-1, 1, 4), block_slot(2**31 - 1, 1, 64)
    (29, -1, 137438953409)
    """
    slot = int64(block) * int64(block_size) + int64(offset)
    return slot if block >= 0 else int64(PAD_SLOT_ID)


@rule
def slot_of(position: int, block: int, block_size: int, cp_size: int, cp_rank: int, cp_interleave: int) -> int:
    """Return the cache slot of a token, or `PAD_SLOT_ID` if another rank stores it.

    Parameters
    ----------
    position : int
        Token position, at least 0.
    block : int
        Table entry of the token's column; see `block_slot`.
    block_size, cp_size : int
        See `token_col`.
    cp_rank : int
        This rank, 0 to cp_size - 1.
    cp_interleave : int
        Consecutive tokens that one rank takes; divides `block_size`.

    Returns
    -------
    int
        int64.

    Examples
    --------
    >>> slot_of(9, 7, 4, 1, 0, 1)
    29
    >>> [slot_of(position, 1, 4, 2, 1, 2) for position in range(8)]  # see the picture above: rank 1's share
    [-1, -1, 4, 5, -1, -1, 6, 7]
    """
    offset = int64(position) - floor_to(position, int64(block_size) * int64(cp_size))
    owner = int64(0)
    if cp_size > 1:
        turn = floor_div(offset, cp_interleave)
        lap = floor_div(turn, cp_size)
        owner = turn - lap * int64(cp_size)
        offset += (lap - turn) * int64(cp_interleave)
    slot = block_slot(block, offset, block_size)
    return slot if owner == cp_rank else int64(PAD_SLOT_ID)
