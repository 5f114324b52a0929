"""One chunk of one request over all groups, in compiled code: reserve its blocks, give them back, drop all.

A request's table is int32 [groups, columns]; an entry is a block that the request holds, or the null block. For a
state group a chunk [start, end) touches these columns::

    column of start - 1     column of end - 2 blocks     column of end - 1     the next ones
    initial state (read)    checkpoint (written)         running state         states after draft tokens (written)
"""

import numpy as np

from numba_ckpt._jit import atomic_loop, borrow, host_loop, inlined_loop, int64
from numba_ckpt.cache.key_table import NO_GROUP
from numba_ckpt.cache.pool_loops import allocate_blocks, num_available, release_block, release_blocks
from numba_ckpt.cache.pool_memory import cut_pool
from numba_ckpt.prefix_cache.book import (
    ALIGNMENT,
    CHECKPOINTS_ABORTED,
    CHECKPOINTS_RESERVED,
    CHECKPOINTS_SKIPPED,
    COPIES,
    DROP_EAGLE,
    INTERVAL,
    LOOKAHEAD,
    UNIT,
    cut_book,
)
from numba_ckpt.prefix_cache.groups import ALIGNMENT as CHECKPOINT_ALIGNMENT
from numba_ckpt.prefix_cache.groups import BLOCK_SIZE, KIND, NUM_SPECULATIVE, STATE
from numba_ckpt.rules import (
    NULL_BLOCK_ID,
    ceil_div,
    is_multiple,
    is_state_kept,
    prefill_checkpoint,
    running_state_col,
)

__all__ = ["RESERVED_FIELDS", "drop_block", "release_table", "reserve_chunk", "undo_chunk"]

# Columns of what `reserve_chunk` says of each group.
OFFSET, CHECKPOINT_COL, CHECKPOINT_BLOCK, INITIAL_BLOCK, RUNNING_BLOCK, COPY_FROM, SKIPPED_OFFSET = range(7)
NUM_NEW_SPECULATIVE, RESERVED_FIELDS = 7, 8


@inlined_loop
def _is_private(pool, block):  # type: ignore[no-untyped-def]
    return pool.blocks[block].ref_count == 1 and pool.blocks[block].group == NO_GROUP


@host_loop
def _plan_state(pool, sizes, group_row, table_row, start, end, shared_start, row):  # type: ignore[no-untyped-def]
    """Fill the row of a state group; returns how many blocks it needs besides the checkpoint's.

    `shared_start` says that a commit in flight may let a key lead to the state at `start`, which must then stay as it
    is.
    """
    size, num_speculative = group_row[BLOCK_SIZE], group_row[NUM_SPECULATIVE]
    row[OFFSET], row[CHECKPOINT_COL] = prefill_checkpoint(
        start,
        end,
        sizes[ALIGNMENT],
        sizes[UNIT],
        size,
        group_row[CHECKPOINT_ALIGNMENT],
        sizes[DROP_EAGLE] != 0,
        sizes[LOOKAHEAD],
    )
    initial_col, running_col = running_state_col(start, size), running_state_col(end, size)
    initial = int64(table_row[initial_col]) if initial_col >= 0 else int64(NULL_BLOCK_ID)
    row[INITIAL_BLOCK] = initial
    if running_col == initial_col and (shared_start or not _is_private(pool, initial)):
        # The state moves on inside its column, but others may read it: it moves on in a copy.
        row[COPY_FROM] = initial
    if num_speculative > 0 and (initial_col < 0 or table_row[initial_col + 1] == NULL_BLOCK_ID):
        row[NUM_NEW_SPECULATIVE] = num_speculative
    needs_running = running_col != initial_col or row[COPY_FROM] != NULL_BLOCK_ID
    return needs_running + row[NUM_NEW_SPECULATIVE]


@host_loop
def _skip_checkpoints(reserved):  # type: ignore[no-untyped-def]
    """Do without checkpoints, in all groups: a boundary is of use only where all of them have it."""
    for group in range(reserved.shape[0]):
        reserved[group, SKIPPED_OFFSET] = reserved[group, OFFSET]
        reserved[group, OFFSET], reserved[group, CHECKPOINT_COL] = 0, -1


@host_loop
def _move_speculative(table_row, from_col, to_col, count):  # type: ignore[no-untyped-def]
    """Move the blocks of `count` columns after `from_col` to those after `to_col`; what they leave is null."""
    if to_col > from_col:
        for index in range(count, 0, -1):
            block = table_row[from_col + index]
            table_row[from_col + index] = NULL_BLOCK_ID
            table_row[to_col + index] = block
    elif to_col < from_col:
        for index in range(1, count + 1):
            block = table_row[from_col + index]
            table_row[from_col + index] = NULL_BLOCK_ID
            table_row[to_col + index] = block


@host_loop
def _place_state(group_row, table_row, blocks, start, end, row):  # type: ignore[no-untyped-def]
    """Write the blocks of a state group into its table row; returns how many of `blocks` it took."""
    size, taken = group_row[BLOCK_SIZE], 0
    initial_col, running_col = running_state_col(start, size), running_state_col(end, size)
    num_new = row[NUM_NEW_SPECULATIVE]
    if num_new == 0:
        _move_speculative(table_row, initial_col, running_col, group_row[NUM_SPECULATIVE])
    if row[OFFSET] > 0:
        table_row[row[CHECKPOINT_COL]] = row[CHECKPOINT_BLOCK] = blocks[taken]
        taken += 1
    if running_col != initial_col or row[COPY_FROM] != NULL_BLOCK_ID:
        table_row[running_col] = blocks[taken]
        taken += 1
    row[RUNNING_BLOCK] = table_row[running_col]
    for index in range(num_new):
        table_row[running_col + 1 + index] = blocks[taken + index]
    return taken + num_new


@atomic_loop
def reserve_chunk(words, book, table, reserved, start, end, in_flight, last_boundary, junction):  # type: ignore[no-untyped-def]
    """Reserve what the chunk [start, end) writes, in all groups or in none; False if there are not enough blocks.

    Checkpoints alone are done without where blocks are short. `in_flight` says whether an earlier chunk of the request
    waits for its commit; the last boundary and the junction are the request's. `reserved` [groups, RESERVED_FIELDS]
    says what the worker has to know.
    """
    pool, (sizes, counters, groups, _) = cut_pool(words), cut_book(book)
    table, reserved = borrow(table), borrow(reserved)
    count, num_checkpoints, num_copies, taken = 0, 0, 0, 0
    for group in range(groups.shape[0]):
        size, row = groups[group, BLOCK_SIZE], reserved[group]
        row[:] = 0
        row[CHECKPOINT_COL] = -1
        if groups[group, KIND] != STATE:
            count += ceil_div(end, size) - ceil_div(start, size)
            continue
        is_kept = is_state_kept(start, sizes[INTERVAL], last_boundary, junction, size)
        shared_start = in_flight and is_multiple(start, sizes[ALIGNMENT]) and is_kept
        count += _plan_state(pool, sizes, groups[group], table[group], start, end, shared_start, row)
        num_checkpoints += row[OFFSET] > 0
        num_copies += row[COPY_FROM] != NULL_BLOCK_ID
    has_room = count + num_checkpoints <= num_available(pool)
    blocks = np.empty(count + num_checkpoints if has_room else count, np.int32)
    if not allocate_blocks(pool, blocks):
        return False
    counters[CHECKPOINTS_RESERVED if has_room else CHECKPOINTS_SKIPPED] += num_checkpoints
    counters[COPIES] += num_copies
    if not has_room:
        _skip_checkpoints(reserved)
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        if groups[group, KIND] == STATE:
            taken += _place_state(groups[group], table[group], blocks[taken:], start, end, reserved[group])
            continue
        for col in range(ceil_div(start, size), ceil_div(end, size)):
            table[group, col] = blocks[taken]
            taken += 1
    return True


@inlined_loop
def drop_block(pool, table, group, col):  # type: ignore[no-untyped-def]
    """Drop a request's hold on the block of a column."""
    release_block(pool, table[group, col])
    table[group, col] = NULL_BLOCK_ID


@atomic_loop
def undo_chunk(words, book, table, reserved, start, end):  # type: ignore[no-untyped-def]
    """Give back what `reserve_chunk` took for the chunk [start, end)."""
    pool, (_, counters, groups, _) = cut_pool(words), cut_book(book)
    table, reserved = borrow(table), borrow(reserved)
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        if groups[group, KIND] != STATE:
            for col in range(ceil_div(start, size), ceil_div(end, size)):
                drop_block(pool, table, group, col)
            continue
        if reserved[group, OFFSET] > 0:
            drop_block(pool, table, group, reserved[group, CHECKPOINT_COL])
            counters[CHECKPOINTS_ABORTED] += 1
        counters[CHECKPOINTS_SKIPPED] -= reserved[group, SKIPPED_OFFSET] > 0
        counters[COPIES] -= reserved[group, COPY_FROM] != NULL_BLOCK_ID
        initial_col, running_col = running_state_col(start, size), running_state_col(end, size)
        if reserved[group, COPY_FROM] != NULL_BLOCK_ID:
            drop_block(pool, table, group, running_col)
            table[group, running_col] = reserved[group, COPY_FROM]
        elif running_col != initial_col:
            drop_block(pool, table, group, running_col)
        for index in range(reserved[group, NUM_NEW_SPECULATIVE]):
            drop_block(pool, table, group, running_col + 1 + index)
        if reserved[group, NUM_NEW_SPECULATIVE] == 0:
            _move_speculative(table[group], running_col, initial_col, groups[group, NUM_SPECULATIVE])


@atomic_loop
def release_table(words, table):  # type: ignore[no-untyped-def]
    """Drop all that a request holds, each group's blocks from the last to the first."""
    pool, table = cut_pool(words), borrow(table)
    for group in range(table.shape[0]):
        release_blocks(pool, table[group])
    table[:] = NULL_BLOCK_ID
