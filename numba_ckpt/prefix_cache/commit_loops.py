"""The end of a chunk, in compiled code: publish what was written, drop what nobody reads now, note what is missing."""

import numpy as np

from numba_ckpt._jit import atomic_loop, borrow, host_loop, inlined_loop, int64
from numba_ckpt.cache.key_table import NO_GROUP
from numba_ckpt.cache.pool_loops import publish_block, release_block
from numba_ckpt.cache.pool_memory import NUM_EVICTED, cut_pool
from numba_ckpt.prefix_cache.book import (
    ALIGNMENT,
    CHECKPOINTS_DECLINED,
    CHECKPOINTS_WRITTEN,
    DECLINED,
    END,
    GROUP,
    INTERVAL,
    KEY0,
    KEY1,
    NO_BLOCKS,
    NOT_ASKED,
    NOT_WORTH_IT,
    NUM_EVICTED_BEFORE,
    NUM_UNKEPT,
    POSITION,
    REASON,
    START,
    UNIT,
    cut_book,
)
from numba_ckpt.prefix_cache.chunk_loops import (
    CHECKPOINT_BLOCK,
    CHECKPOINT_COL,
    COPY_FROM,
    OFFSET,
    RUNNING_BLOCK,
    SKIPPED_OFFSET,
    drop_block,
)
from numba_ckpt.prefix_cache.groups import BLOCK_SIZE, KIND, STATE, WINDOW
from numba_ckpt.prefix_cache.longest_hit import first_needed_col
from numba_ckpt.rules import NULL_BLOCK_ID, floor_div, is_multiple, is_state_kept, running_state_col

__all__ = ["collect_publications", "commit_chunk"]


@inlined_loop
def _collect(book, table, reserved, start, end, declined, last_boundary, junction):  # type: ignore[no-untyped-def]
    """(rows, count): what the chunk may publish, rows of (block, tokens of its prefix, group)."""
    sizes, groups, count = book.sizes, book.groups, 0
    most = 0
    for group in range(groups.shape[0]):
        most += floor_div(end - start, groups[group, BLOCK_SIZE]) + 2
    found = np.empty((most, 3), np.int64)
    for group in range(groups.shape[0]):
        size, offset = groups[group, BLOCK_SIZE], reserved[group, OFFSET]
        if groups[group, KIND] != STATE:
            for col in range(floor_div(start, size), floor_div(end, size)):
                found[count, 0], found[count, 1], found[count, 2] = table[group, col], (col + 1) * size, group
                count += 1
            continue
        position = start + offset
        is_worth_it = is_state_kept(position, sizes[INTERVAL], last_boundary, junction, size)
        if offset > 0 and not declined and is_worth_it:
            found[count, 0], found[count, 1], found[count, 2] = reserved[group, CHECKPOINT_BLOCK], position, group
            count += 1
        if is_multiple(end, sizes[ALIGNMENT]) and is_state_kept(end, sizes[INTERVAL], last_boundary, junction, size):
            found[count, 0], found[count, 1], found[count, 2] = reserved[group, RUNNING_BLOCK], end, group
            count += 1
    return found, count


@atomic_loop
def collect_publications(words, table, reserved, start, end, declined, last_boundary, junction):  # type: ignore[no-untyped-def]
    """Return what the commit of a chunk may publish: int64 [n, 3], rows (block, tokens of its prefix, group)."""
    found, count = _collect(cut_book(words), table, reserved, start, end, declined, last_boundary, junction)
    return found[:count]


@atomic_loop
def commit_chunk(words, book, keys, table, reserved, start, end, declined, last_boundary, junction):  # type: ignore[no-untyped-def]
    """Publish what the chunk [start, end) wrote, then drop what its request does not read any more.

    `declined` says that the worker wrote no checkpoint.
    """
    pool, parts = cut_pool(words), cut_book(book)
    keys, table, reserved = borrow(keys), borrow(table), borrow(reserved)
    found, count = _collect(parts, table, reserved, start, end, declined, last_boundary, junction)
    for index in range(count):
        block, last = found[index, 0], floor_div(found[index, 1], parts.sizes[UNIT]) - 1
        if pool.blocks[block].group == NO_GROUP:
            publish_block(pool, block, keys[last, 0], keys[last, 1], found[index, 2])
    num_evicted = pool.counts[NUM_EVICTED]
    _note_unkept(parts, num_evicted, keys, reserved, start, end, declined, last_boundary, junction)
    _retire(pool, parts.groups, table, reserved, start, end)


@host_loop
def _note(book, num_evicted, keys, group, position, start, end, reason):  # type: ignore[no-untyped-def]
    """Remember a state that is not kept."""
    row = book.unkept[book.sizes[NUM_UNKEPT] % book.unkept.shape[0]]
    last = floor_div(position, book.sizes[UNIT]) - 1
    row[KEY0], row[KEY1] = int64(keys[last, 0]), int64(keys[last, 1])
    row[GROUP], row[POSITION], row[START], row[END], row[REASON] = group, position, start, end, reason
    row[NUM_EVICTED_BEFORE] = num_evicted
    book.sizes[NUM_UNKEPT] += 1


@host_loop
def _note_unkept(book, num_evicted, keys, reserved, start, end, declined, last_boundary, junction):  # type: ignore[no-untyped-def]
    """Count the checkpoints of a chunk that is done, and remember the states that it did not leave behind."""
    for group in range(book.groups.shape[0]):
        if book.groups[group, KIND] != STATE:
            continue
        offset, skipped, reason = reserved[group, OFFSET], reserved[group, SKIPPED_OFFSET], NOT_ASKED
        size, interval, planned = book.groups[group, BLOCK_SIZE], book.sizes[INTERVAL], last_boundary
        if offset > 0:
            planned, reason = start + offset, DECLINED if declined else NOT_WORTH_IT
            book.counters[CHECKPOINTS_DECLINED if declined else CHECKPOINTS_WRITTEN] += 1
        elif skipped > 0:
            planned, reason = start + skipped, NO_BLOCKS
        is_kept = is_state_kept(planned, interval, last_boundary, junction, size)
        if start < planned < end and (offset == 0 or declined or not is_kept):
            _note(book, num_evicted, keys, group, planned, start, end, reason)
        if is_multiple(end, book.sizes[UNIT]) and not is_state_kept(end, interval, last_boundary, junction, size):
            _note(book, num_evicted, keys, group, end, start, end, NOT_WORTH_IT)
        if planned != last_boundary and start < last_boundary < end:
            # Outputs replayed in the same chunk have moved its checkpoint beyond the prompt's last boundary.
            _note(book, num_evicted, keys, group, last_boundary, start, end, NOT_ASKED)


@host_loop
def _retire(pool, groups, table, reserved, start, end):  # type: ignore[no-untyped-def]
    """Drop what a request does not read any more once its chunk [start, end) is done."""
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        if groups[group, KIND] == STATE:
            initial_col = running_state_col(start, size)
            if reserved[group, COPY_FROM] != NULL_BLOCK_ID:
                release_block(pool, reserved[group, COPY_FROM])
            elif initial_col >= 0 and initial_col != running_state_col(end, size):
                drop_block(pool, table, group, initial_col)
            if reserved[group, OFFSET] > 0:
                drop_block(pool, table, group, reserved[group, CHECKPOINT_COL])
        else:
            first = first_needed_col(groups[group, KIND], size, groups[group, WINDOW], end)
            before = first_needed_col(groups[group, KIND], size, groups[group, WINDOW], start)
            for col in range(max(before, 0), first):
                drop_block(pool, table, group, col)
