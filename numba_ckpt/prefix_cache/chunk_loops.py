"""One chunk of one request over all groups, in compiled code: reserve its blocks, then publish and retire them.

A request's table is int32 [groups, columns]; an entry is a block that the request holds, or the null block. For a
state group a chunk [start, end) touches three columns::

    column of start - 1     column of end - 2 blocks     column of end - 1
    initial state (read)    checkpoint (written)         running state (written)
"""

import numpy as np

from numba_ckpt._jit import host_loop, inlined_loop, int64
from numba_ckpt.cache.key_table import NO_GROUP
from numba_ckpt.cache.pool_loops import allocate_blocks, publish_block, release_blocks
from numba_ckpt.prefix_cache.groups import ALIGNMENT, BLOCK_SIZE, KIND, STATE, WINDOW
from numba_ckpt.prefix_cache.longest_hit import first_needed_col
from numba_ckpt.rules import (
    NULL_BLOCK_ID,
    ceil_div,
    floor_div,
    is_multiple,
    is_state_kept,
    prefill_checkpoint,
    running_state_col,
)

__all__ = [
    "RESERVED_FIELDS",
    "collect_publications",
    "commit_chunk",
    "max_publications",
    "release_table",
    "reserve_chunk",
    "undo_chunk",
]

# Columns of what `reserve_chunk` says of each group.
OFFSET, CHECKPOINT_COL, CHECKPOINT_BLOCK, INITIAL_BLOCK, RUNNING_BLOCK, COPY_FROM, RESERVED_FIELDS = range(7)


@inlined_loop
def _checkpoint_of(groups, group, sizes, start, end):  # type: ignore[no-untyped-def]
    return prefill_checkpoint(
        start, end, sizes[1], sizes[0], groups[group, BLOCK_SIZE], groups[group, ALIGNMENT], sizes[2] != 0, sizes[3]
    )


@inlined_loop
def _is_private(pool, block):  # type: ignore[no-untyped-def]
    return pool.blocks[block].ref_count == 1 and pool.blocks[block].group == NO_GROUP


@inlined_loop
def _is_kept(position, keep, size):  # type: ignore[no-untyped-def]
    return is_state_kept(position, keep[0], keep[1], keep[2], size)


@host_loop
def _plan_groups(pool, groups, sizes, table, start, end, in_flight, keep, reserved):  # type: ignore[no-untyped-def]
    """Fill `reserved`; returns how many blocks the chunk needs."""
    count = 0
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        reserved[group, :] = 0
        reserved[group, CHECKPOINT_COL] = -1
        if groups[group, KIND] != STATE:
            count += ceil_div(end, size) - ceil_div(start, size)
            continue
        offset, col = _checkpoint_of(groups, group, sizes, start, end)
        reserved[group, OFFSET], reserved[group, CHECKPOINT_COL] = offset, col
        initial_col, running_col = running_state_col(start, size), running_state_col(end, size)
        initial = int64(table[group, initial_col]) if initial_col >= 0 else int64(NULL_BLOCK_ID)
        reserved[group, INITIAL_BLOCK] = initial
        # The commit of a chunk in flight may let a key lead to its running state, which must then stay as it is.
        will_be_shared = in_flight and is_multiple(start, sizes[1]) and _is_kept(start, keep, size)
        if running_col == initial_col and (will_be_shared or not _is_private(pool, initial)):
            # The state moves on inside its column, but others may read it: it moves on in a copy.
            reserved[group, COPY_FROM] = initial
        count += (offset > 0) + (running_col != initial_col or reserved[group, COPY_FROM] != NULL_BLOCK_ID)
    return count


@host_loop
def reserve_chunk(pool, groups, sizes, table, start, end, in_flight, keep, reserved):  # type: ignore[no-untyped-def]
    """Reserve what the chunk [start, end) writes, in all groups or in none; False if there are not enough blocks.

    `sizes` is (hash block, hit alignment, drop EAGLE block, lookahead), `in_flight` whether an earlier chunk of the
    request waits for its commit. `reserved` [groups, RESERVED_FIELDS] says what the worker has to know.
    """
    count = _plan_groups(pool, groups, sizes, table, start, end, in_flight, keep, reserved)
    blocks = np.empty(count, np.int32)
    if not allocate_blocks(pool, blocks):
        return False
    taken = 0
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        if groups[group, KIND] != STATE:
            for col in range(ceil_div(start, size), ceil_div(end, size)):
                table[group, col] = blocks[taken]
                taken += 1
            continue
        if reserved[group, OFFSET] > 0:
            table[group, reserved[group, CHECKPOINT_COL]] = reserved[group, CHECKPOINT_BLOCK] = blocks[taken]
            taken += 1
        running_col = running_state_col(end, size)
        if running_col != running_state_col(start, size) or reserved[group, COPY_FROM] != NULL_BLOCK_ID:
            table[group, running_col] = blocks[taken]
            taken += 1
        reserved[group, RUNNING_BLOCK] = table[group, running_col]
    return True


@host_loop
def max_publications(groups, start, end):  # type: ignore[no-untyped-def]
    """Return the most rows that `collect_publications` can list."""
    count = 0
    for group in range(groups.shape[0]):
        count += floor_div(end - start, groups[group, BLOCK_SIZE]) + 2
    return count


@host_loop
def collect_publications(groups, sizes, table, start, end, reserved, written, keep, found):  # type: ignore[no-untyped-def]
    """List what the chunk may publish: rows (block, tokens of its prefix, group) of `found`; returns how many.

    `written` [groups] says whether the worker wrote the group's checkpoint; `keep` which state boundaries are worth it.
    """
    count = 0
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        if groups[group, KIND] != STATE:
            for col in range(floor_div(start, size), floor_div(end, size)):
                found[count, 0], found[count, 1], found[count, 2] = table[group, col], (col + 1) * size, group
                count += 1
            continue
        position = start + reserved[group, OFFSET]
        if reserved[group, OFFSET] > 0 and written[group] and _is_kept(position, keep, size):
            found[count, 0], found[count, 1], found[count, 2] = reserved[group, CHECKPOINT_BLOCK], position, group
            count += 1
        if is_multiple(end, sizes[1]) and _is_kept(end, keep, size):
            found[count, 0], found[count, 1], found[count, 2] = reserved[group, RUNNING_BLOCK], end, group
            count += 1
    return count


@host_loop
def commit_chunk(pool, keys, groups, sizes, table, start, end, reserved, written, keep):  # type: ignore[no-untyped-def]
    """Publish what the chunk [start, end) wrote, then drop what its request does not read any more."""
    found = np.empty((max_publications(groups, start, end), 3), np.int64)
    count = collect_publications(groups, sizes, table, start, end, reserved, written, keep, found)
    for index in range(count):
        block, last = found[index, 0], floor_div(found[index, 1], sizes[0]) - 1
        if pool.blocks[block].group == NO_GROUP:
            publish_block(pool, block, keys[last, 0], keys[last, 1], found[index, 2])
    retire_chunk(pool, groups, table, start, end, reserved)


@inlined_loop
def _drop(pool, table, group, col):  # type: ignore[no-untyped-def]
    release_blocks(pool, table[group, col : col + 1])
    table[group, col] = NULL_BLOCK_ID


@host_loop
def retire_chunk(pool, groups, table, start, end, reserved):  # type: ignore[no-untyped-def]
    """Drop what a request does not read any more once its chunk [start, end) is done."""
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        if groups[group, KIND] == STATE:
            initial_col = running_state_col(start, size)
            if reserved[group, COPY_FROM] != NULL_BLOCK_ID:
                release_blocks(pool, reserved[group, COPY_FROM : COPY_FROM + 1])
            elif initial_col >= 0 and initial_col != running_state_col(end, size):
                _drop(pool, table, group, initial_col)
            if reserved[group, OFFSET] > 0:
                _drop(pool, table, group, reserved[group, CHECKPOINT_COL])
        else:
            first = first_needed_col(groups[group, KIND], size, groups[group, WINDOW], end)
            before = first_needed_col(groups[group, KIND], size, groups[group, WINDOW], start)
            for col in range(max(before, 0), first):
                _drop(pool, table, group, col)


@host_loop
def undo_chunk(pool, groups, table, start, end, reserved):  # type: ignore[no-untyped-def]
    """Give back what `reserve_chunk` took for the chunk [start, end)."""
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        if groups[group, KIND] != STATE:
            for col in range(ceil_div(start, size), ceil_div(end, size)):
                _drop(pool, table, group, col)
            continue
        if reserved[group, OFFSET] > 0:
            _drop(pool, table, group, reserved[group, CHECKPOINT_COL])
        running_col = running_state_col(end, size)
        if reserved[group, COPY_FROM] != NULL_BLOCK_ID:
            _drop(pool, table, group, running_col)
            table[group, running_col] = reserved[group, COPY_FROM]
        elif running_col != running_state_col(start, size):
            _drop(pool, table, group, running_col)


@host_loop
def release_table(pool, table):  # type: ignore[no-untyped-def]
    """Drop all that a request holds, each group's blocks from the last to the first."""
    for group in range(table.shape[0]):
        release_blocks(pool, table[group])
    table[:] = NULL_BLOCK_ID
