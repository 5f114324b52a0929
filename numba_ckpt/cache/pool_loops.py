"""The block pool as compiled loops see it: arrays, and bulk operations that check nothing."""

from numba_ckpt._jit import host_loop, inlined_loop
from numba_ckpt.cache.key_table import NO_GROUP, find_block, insert_block, remove_block
from numba_ckpt.cache.pool_memory import NUM_CACHED, NUM_EVICTED, NUM_FREE, NUM_IDLE, STEP
from numba_ckpt.rules import NULL_BLOCK_ID

__all__ = [
    "acquire_blocks",
    "allocate_blocks",
    "num_available",
    "publish_block",
    "release_block",
    "release_blocks",
]

NONE = -1
"""Place of a bad entry where there is none."""


@inlined_loop
def num_available(pool):  # type: ignore[no-untyped-def]
    """Blocks that `allocate_blocks` could hand out."""
    return pool.counts[NUM_FREE] + pool.counts[NUM_IDLE]


@inlined_loop
def _unlink(pool, block):  # type: ignore[no-untyped-def]
    before, after = pool.blocks[block].previous, pool.blocks[block].next
    pool.blocks[before].next = after
    pool.blocks[after].previous = before
    pool.counts[NUM_IDLE] -= 1


@inlined_loop
def _link_last(pool, block):  # type: ignore[no-untyped-def]
    last = pool.blocks[0].previous
    pool.blocks[last].next = block
    pool.blocks[block].previous = last
    pool.blocks[block].next = 0
    pool.blocks[0].previous = block
    pool.counts[NUM_IDLE] += 1


@host_loop
def _evict_oldest(pool):  # type: ignore[no-untyped-def]
    block = pool.blocks[0].next
    record = pool.blocks[block]
    entry = pool.evictions[pool.counts[NUM_EVICTED] % pool.evictions.size]
    entry.key0, entry.key1, entry.group, entry.step = record.key0, record.key1, record.group, pool.counts[STEP]
    pool.counts[NUM_EVICTED] += 1
    pool.counts[NUM_CACHED] -= 1
    _unlink(pool, block)
    remove_block(pool.blocks, pool.slots, block)
    return block


@host_loop
def allocate_blocks(pool, allocated):  # type: ignore[no-untyped-def]
    """Fill `allocated` [n] with blocks, each held once; False, and nothing changed, if there are not so many."""
    if allocated.size > num_available(pool):
        return False
    for index in range(allocated.size):
        if pool.counts[NUM_FREE] > 0:
            pool.counts[NUM_FREE] -= 1
            block = pool.free[pool.counts[NUM_FREE]]
        else:
            block = _evict_oldest(pool)
        pool.blocks[block].ref_count = 1
        allocated[index] = block
    return True


@host_loop
def acquire_blocks(pool, blocks):  # type: ignore[no-untyped-def]
    """Hold each of `blocks` once more; null blocks are skipped."""
    for block in blocks:
        if block != NULL_BLOCK_ID:
            if pool.blocks[block].ref_count == 0:
                _unlink(pool, block)
            pool.blocks[block].ref_count += 1


@host_loop
def release_block(pool, block):  # type: ignore[no-untyped-def]
    """Drop one hold on a block; nothing for the null block."""
    if block != NULL_BLOCK_ID:
        pool.blocks[block].ref_count -= 1
        if pool.blocks[block].ref_count == 0:
            if pool.blocks[block].group != NO_GROUP:
                _link_last(pool, block)
            else:
                pool.free[pool.counts[NUM_FREE]] = block
                pool.counts[NUM_FREE] += 1


@host_loop
def release_blocks(pool, blocks):  # type: ignore[no-untyped-def]
    """Drop one hold on each of `blocks`, the last one first, so that a prefix is evicted from its end."""
    for index in range(blocks.size - 1, -1, -1):
        release_block(pool, blocks[index])


@inlined_loop
def publish_block(pool, block, key0, key1, group):  # type: ignore[no-untyped-def]
    """Let a key lead to a held block that has none; False, and nothing changed, if it leads to another held block.

    An idle block gives way: it holds the same, was released longer ago, and would be evicted first.
    """
    records, slots = pool.blocks, pool.slots
    is_new = insert_block(records, slots, block, key0, key1, group)
    if not is_new:
        other = find_block(records, slots, key0, key1, group)
        if records[other].ref_count == 0:
            _unlink(pool, other)
            remove_block(records, slots, other)
            pool.free[pool.counts[NUM_FREE]] = other
            pool.counts[NUM_FREE] += 1
            pool.counts[NUM_CACHED] -= 1
            is_new = insert_block(records, slots, block, key0, key1, group)
    pool.counts[NUM_CACHED] += is_new
    return is_new
