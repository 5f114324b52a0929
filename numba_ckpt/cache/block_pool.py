"""Who owns which block: a fixed pool shared by all cache groups.

A block is in exactly one place, and has a key or not::

                 allocate                    release, no key
       free ───────────────────► held ───────────────────────► free
                                 ▲  │
                        acquire  │  │  release, with a key
                                 │  ▼
       free ◄──── (allocate) ─── idle, in order of release; allocate takes the oldest when nothing is free

Records live in one structured array, so that bulk operations are one compiled call and a million blocks are 40 MB.
"""

from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._check import check_array, check_int, refuse
from numba_ckpt._jit import host_loop, inlined_loop
from numba_ckpt.cache.key_table import BLOCK, NO_GROUP, find_blocks, insert_block, new_slots, remove_block
from numba_ckpt.rules import NULL_BLOCK_ID

__all__ = ["BlockPool", "PoolArrays"]

# Entries of `PoolArrays.counts`.
NUM_FREE, NUM_IDLE, NUM_CACHED, NUM_EVICTED, STEP, NUM_COUNTS = range(6)
# Offsets of failures that compiled loops report as negative numbers.
_OK = -1

EVICTION = np.dtype([("key0", np.uint64), ("key1", np.uint64), ("group", np.int64), ("step", np.int64)])
"""A key that was given up, and in which step."""


class PoolArrays(NamedTuple):
    """The pool as compiled loops see it.

    Attributes
    ----------
    blocks : ndarray
        `BLOCK` [B]; record 0 heads the list of idle blocks.
    slots : ndarray
        int32 [S], the key table.
    free : ndarray
        int32 [B], a stack of free blocks.
    counts : ndarray
        int64 [NUM_COUNTS].
    evictions : ndarray
        `EVICTION` [E], the latest evicted keys, a ring.
    """

    blocks: np.ndarray
    slots: np.ndarray
    free: np.ndarray
    counts: np.ndarray
    evictions: np.ndarray


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
    if allocated.size > pool.counts[NUM_FREE] + pool.counts[NUM_IDLE]:
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
def first_not_held(pool, blocks):  # type: ignore[no-untyped-def]
    """Place of the first block that is no block of the pool or held less often than it is listed; -1 if none."""
    bad = _OK
    for index in range(blocks.size):
        block = blocks[index]
        if block < 0 or block >= pool.blocks.size:
            bad = index
            break
        pool.blocks[block].ref_count -= block != NULL_BLOCK_ID
        if pool.blocks[block].ref_count < 0:
            bad = index
            break
    for index in range(blocks.size if bad == _OK else bad + 1):
        if 0 <= blocks[index] < pool.blocks.size:
            pool.blocks[blocks[index]].ref_count += blocks[index] != NULL_BLOCK_ID
    return bad


@host_loop
def release_blocks(pool, blocks):  # type: ignore[no-untyped-def]
    """Drop one hold on each of `blocks`, the last one first, so that a prefix is evicted from its end."""
    for index in range(blocks.size - 1, -1, -1):
        block = blocks[index]
        if block != NULL_BLOCK_ID:
            pool.blocks[block].ref_count -= 1
            if pool.blocks[block].ref_count == 0:
                if pool.blocks[block].group != NO_GROUP:
                    _link_last(pool, block)
                else:
                    pool.free[pool.counts[NUM_FREE]] = block
                    pool.counts[NUM_FREE] += 1


@host_loop
def publish_blocks(pool, blocks, keys, group):  # type: ignore[no-untyped-def]
    """Let keys [n, 2] lead to held blocks [n], null blocks and keys that lead elsewhere apart; returns how many do."""
    records, slots, count = pool.blocks, pool.slots, 0
    for index in range(blocks.size):
        block = blocks[index]
        if block != NULL_BLOCK_ID and records[block].group == NO_GROUP:
            count += insert_block(records, slots, block, keys[index, 0], keys[index, 1], group)
    pool.counts[NUM_CACHED] += count
    return count


def _block_ids(name: str, blocks: Any) -> np.ndarray:
    ids = np.asarray(blocks, np.int32) if isinstance(blocks, (list, tuple)) else blocks
    check_array(name, ids, 1, "iu")
    return np.ascontiguousarray(ids, np.int32)


class BlockPool:
    """A fixed number of blocks with reference counts, shared by all cache groups.

    Block 0 is the null block: it is never handed out, held or cached, and lists of blocks may contain it anywhere.

    Parameters
    ----------
    num_blocks : int
        Blocks of the pool, the null block included; at least 2.

    Raises
    ------
    ArgumentError
        Fewer than 2 blocks.

    Examples
    --------
    >>> pool = BlockPool(4)
    >>> pool.allocate(2).tolist(), pool.allocate(2), pool.num_available
    ([1, 2], None, 1)
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = check_int("num_blocks", num_blocks, 2)
        blocks = np.zeros(num_blocks, BLOCK)
        blocks["group"] = NO_GROUP
        counts = np.zeros(NUM_COUNTS, np.int64)
        counts[NUM_FREE] = num_blocks - 1
        free = np.zeros(num_blocks, np.int32)
        free[:-1] = np.arange(num_blocks - 1, 0, -1)
        self.arrays = PoolArrays(blocks, new_slots(num_blocks), free, counts, np.zeros(num_blocks, EVICTION))

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out: free and idle ones."""
        return int(self.arrays.counts[NUM_FREE] + self.arrays.counts[NUM_IDLE])

    @property
    def num_cached(self) -> int:
        """Blocks that a key leads to, held or idle."""
        return int(self.arrays.counts[NUM_CACHED])

    @property
    def num_evicted(self) -> int:
        """Keys given up so far."""
        return int(self.arrays.counts[NUM_EVICTED])

    def allocate(self, count: int) -> np.ndarray | None:
        """Hand out `count` blocks, each held once: free ones, then the idle ones released longest ago.

        Returns
        -------
        ndarray or None
            int32 [count]; None, and nothing changed, if fewer are available.
        """
        allocated = np.empty(check_int("count", count, 0), np.int32)
        return allocated if allocate_blocks(self.arrays, allocated) else None

    def acquire(self, blocks: Any) -> None:
        """Hold each block once more; the blocks must be held or cached."""
        ids = _block_ids("blocks", blocks)
        outside = (ids < 0) | (ids >= self.num_blocks)
        records = self.arrays.blocks[np.where(outside, 0, ids)]
        bad = outside | ((ids > 0) & (records["ref_count"] == 0) & (records["group"] == NO_GROUP))
        if bad.any():
            refuse("blocks", "blocks that are held or cached", int(ids[bad][0]), "allocate a block before use")
        acquire_blocks(self.arrays, ids)

    def release(self, blocks: Any) -> None:
        """Drop one hold on each block, from the last to the first.

        Raises
        ------
        ArgumentError
            A block is not held, or listed more often than it is held; nothing has changed then.
        """
        ids = _block_ids("blocks", blocks)
        if (bad := int(first_not_held(self.arrays, ids))) != _OK:
            refuse("blocks", "blocks that are held", f"{ids[bad]} at entry {bad}", "release a block once for each hold")
        release_blocks(self.arrays, ids)

    def publish(self, blocks: Any, keys: np.ndarray, group: int) -> int:
        """Let prefix keys lead to held blocks that have been written.

        Parameters
        ----------
        blocks : sequence of int or ndarray
            [n], null blocks are skipped.
        keys : ndarray
            uint64 [n, 2].
        group : int
            Cache group, at least 0; one prefix has a block in each group.

        Returns
        -------
        int
            Keys that lead to a new block; a key that leads to another block, and a block with a key, are left alone.
        """
        ids = _block_ids("blocks", blocks)
        if keys.dtype != np.uint64 or keys.shape != (ids.size, 2):
            refuse("keys", f"uint64 of shape ({ids.size}, 2)", f"{keys.dtype} of shape {keys.shape}", "hash the prefix")
        if (bad := int(first_not_held(self.arrays, ids))) != _OK:
            refuse("blocks", "blocks that are held", f"{ids[bad]} at entry {bad}", "publish before releasing")
        return int(publish_blocks(self.arrays, ids, keys, check_int("group", group, 0)))

    def find(self, keys: np.ndarray, group: int) -> np.ndarray:
        """Return the blocks of `keys` (uint64 [n, 2]) up to the first that is missing: int32 [found]."""
        found = np.empty(keys.shape[0], np.int32)
        return found[: find_blocks(self.arrays.blocks, self.arrays.slots, keys, group, found)]

    def advance_step(self) -> None:
        """Count a scheduler step; evictions are dated by it."""
        self.arrays.counts[STEP] += 1

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is in exactly one place and every key leads to its block."""
        blocks, slots, free, counts, _ = self.arrays
        idle = self._idle_blocks()
        freed = free[: counts[NUM_FREE]]
        cached = blocks["group"] != NO_GROUP
        assert len(idle) == counts[NUM_IDLE]
        assert cached.sum() == counts[NUM_CACHED] == (slots != 0).sum()
        places = np.zeros(self.num_blocks, np.int64)
        for ids in (np.array(idle, np.int64), freed, np.nonzero(blocks["ref_count"])[0]):
            np.add.at(places, ids, 1)
        assert places[0] == 0
        assert (places[1:] == 1).all()
        assert cached[idle].all()
        assert not cached[freed].any()
        for block in np.nonzero(cached)[0]:
            record = blocks[block : block + 1]
            key = np.stack([record["key0"], record["key1"]], axis=1)
            assert self.find(key, int(record["group"][0])).tolist() == [block]

    def _idle_blocks(self) -> list[int]:
        blocks, idle, block = self.arrays.blocks, [], 0
        while (following := int(blocks[block]["next"])) != 0:
            assert blocks[following]["previous"] == block
            idle.append(following)
            block = following
        return idle
