"""The block pool's bulk operations as Python calls them: over the pool's memory, checking nothing."""

from numba_ckpt._jit import atomic_loop, borrow
from numba_ckpt.cache import pool_loops
from numba_ckpt.cache.key_table import NO_GROUP, find_block
from numba_ckpt.cache.pool_loops import NONE, publish_block
from numba_ckpt.cache.pool_memory import cut_pool
from numba_ckpt.rules import NULL_BLOCK_ID

__all__ = [
    "acquire_blocks",
    "allocate_blocks",
    "find_blocks",
    "find_each_block",
    "first_not_held",
    "publish_blocks",
    "release_blocks",
]

# Compiled code knows other loops by names of its own module.
_acquire, _allocate, _release = pool_loops.acquire_blocks, pool_loops.allocate_blocks, pool_loops.release_blocks


@atomic_loop
def allocate_blocks(words, allocated):  # type: ignore[no-untyped-def]
    """Fill `allocated` [n] with blocks, each held once; False, and nothing changed, if there are not so many."""
    return _allocate(cut_pool(words), borrow(allocated))


@atomic_loop
def acquire_blocks(words, blocks):  # type: ignore[no-untyped-def]
    """Hold each of `blocks` once more; null blocks are skipped."""
    _acquire(cut_pool(words), borrow(blocks))


@atomic_loop
def release_blocks(words, blocks):  # type: ignore[no-untyped-def]
    """Drop one hold on each of `blocks`, the last one first, so that a prefix is evicted from its end."""
    _release(cut_pool(words), borrow(blocks))


@atomic_loop
def first_not_held(words, blocks):  # type: ignore[no-untyped-def]
    """Place of the first block that is no block of the pool or held less often than it is listed; -1 if none."""
    records, bad = cut_pool(words).blocks, NONE
    for index in range(blocks.size):
        block = blocks[index]
        if block < 0 or block >= records.size:
            bad = index
            break
        records[block].ref_count -= block != NULL_BLOCK_ID
        if records[block].ref_count < 0:
            bad = index
            break
    for index in range(blocks.size if bad == NONE else bad + 1):
        if 0 <= blocks[index] < records.size:
            records[blocks[index]].ref_count += blocks[index] != NULL_BLOCK_ID
    return bad


@atomic_loop
def publish_blocks(words, blocks, keys, group):  # type: ignore[no-untyped-def]
    """Let keys [n, 2] lead to held blocks [n] that have none, null blocks apart; returns how many now do."""
    pool, count, keys = cut_pool(words), 0, borrow(keys)
    for index in range(blocks.size):
        if blocks[index] != NULL_BLOCK_ID and pool.blocks[blocks[index]].group == NO_GROUP:
            count += publish_block(pool, blocks[index], keys[index, 0], keys[index, 1], group)
    return count


@atomic_loop
def find_blocks(words, keys, group, found):  # type: ignore[no-untyped-def]
    """Fill `found` [n] with the blocks of `keys` [n, 2] until the first miss; returns how many were found."""
    pool = cut_pool(words)
    for index in range(keys.shape[0]):
        found[index] = find_block(pool.blocks, pool.slots, keys[index, 0], keys[index, 1], group)
        if found[index] == NULL_BLOCK_ID:
            return index
    return keys.shape[0]


@atomic_loop
def find_each_block(words, keys, group, found):  # type: ignore[no-untyped-def]
    """Fill `found` [n] with the block of each of `keys` [n, 2], the null block where there is none."""
    pool = cut_pool(words)
    for index in range(keys.shape[0]):
        found[index] = find_block(pool.blocks, pool.slots, keys[index, 0], keys[index, 1], group)
