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

from typing import Any

import numpy as np

from numba_ckpt._check import INT32_MAX, check_int, check_integers, describe, refuse
from numba_ckpt.cache.key_table import NO_GROUP
from numba_ckpt.cache.pool_calls import (
    acquire_blocks,
    allocate_blocks,
    find_blocks,
    first_not_held,
    publish_blocks,
    release_blocks,
)
from numba_ckpt.cache.pool_loops import NONE
from numba_ckpt.cache.pool_memory import NUM_CACHED, NUM_EVICTED, NUM_FREE, NUM_IDLE, STEP, cut_pool_words, new_pool
from numba_ckpt.errors import ArgumentError, ArgumentTypeError

__all__ = ["BlockPool"]


def _block_ids(name: str, blocks: Any) -> np.ndarray:
    ids = check_integers(name, blocks)
    if ids.dtype != np.int32 and ids.size and (ids.max() > INT32_MAX or ids.min() < 0):
        refuse(name, "block ids of the pool", f"{ids.max()} or {ids.min()}", "pass ids that allocate returned")
    return np.ascontiguousarray(ids, np.int32)


def _check_keys(keys: Any, num_keys: int | None = None) -> np.ndarray:
    """Return keys as a contiguous uint64 [num_keys, 2], which is what loops can borrow: borrowing forgets strides."""
    rows = "n" if num_keys is None else num_keys
    is_right = isinstance(keys, np.ndarray) and keys.dtype == np.uint64 and keys.ndim == 2 and keys.shape[1] == 2
    if not is_right or num_keys not in (None, len(keys)):
        error = ArgumentError if isinstance(keys, np.ndarray) else ArgumentTypeError
        refuse("keys", f"a uint64 array of shape ({rows}, 2)", describe(keys), "hash the prefix", error)
    return np.ascontiguousarray(keys)


class BlockPool:
    """A fixed number of blocks with reference counts, shared by all cache groups.

    Block 0 is the null block: it is never handed out, held or cached, and lists of blocks may contain it anywhere.
    A pool belongs to one thread at a time: `allocate` hands no block to two threads, but the others are checked first
    and then done, in two steps. A deep or pickled copy is a pool of its own.

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
        self.words = new_pool(self.num_blocks)
        self.arrays = cut_pool_words(self.words)
        self._fill()

    def __getstate__(self) -> dict[str, Any]:
        # Views would come back as arrays of their own, and miss all that happens to the words.
        return {"num_blocks": self.num_blocks, "words": self.words}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.num_blocks, self.words = state["num_blocks"], state["words"]
        self.arrays = cut_pool_words(self.words)

    def _fill(self) -> None:
        """Put every block but the null block on the stack of free ones, the first on top."""
        self.arrays.blocks["group"] = NO_GROUP
        self.arrays.free[: self.num_blocks - 1] = np.arange(self.num_blocks - 1, 0, -1)
        self.arrays.counts[NUM_FREE] = self.num_blocks - 1

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out: free and idle ones."""
        return self.num_free + self.num_idle

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return int(self.arrays.counts[NUM_FREE])

    @property
    def num_idle(self) -> int:
        """Blocks that a key leads to and nobody holds."""
        return int(self.arrays.counts[NUM_IDLE])

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - 1 - self.num_available

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
        return allocated if allocate_blocks(self.words, allocated) else None

    def acquire(self, blocks: Any) -> None:
        """Hold each block once more; the blocks must be held or cached."""
        ids = _block_ids("blocks", blocks)
        outside = (ids < 0) | (ids >= self.num_blocks)
        records = self.arrays.blocks[np.where(outside, 0, ids)]
        bad = outside | ((ids > 0) & (records["ref_count"] == 0) & (records["group"] == NO_GROUP))
        if bad.any():
            refuse("blocks", "blocks that are held or cached", int(ids[bad][0]), "allocate a block before use")
        acquire_blocks(self.words, ids)

    def release(self, blocks: Any) -> None:
        """Drop one hold on each block, from the last to the first.

        Raises
        ------
        ArgumentError
            A block is not held, or listed more often than it is held; nothing has changed then.
        """
        ids = _block_ids("blocks", blocks)
        if (bad := int(first_not_held(self.words, ids))) != NONE:
            refuse("blocks", "blocks that are held", f"{ids[bad]} at entry {bad}", "release a block once for each hold")
        release_blocks(self.words, ids)

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
            Keys that lead to a new block; a key that leads to another held block, and a block with a key, are left
            alone. An idle block that a key led to is free then.
        """
        ids = _block_ids("blocks", blocks)
        keys, group = _check_keys(keys, ids.size), check_int("group", group, 0)
        if (bad := int(first_not_held(self.words, ids))) != NONE:
            refuse("blocks", "blocks that are held", f"{ids[bad]} at entry {bad}", "publish before releasing")
        return int(publish_blocks(self.words, ids, keys, group))

    def find(self, keys: np.ndarray, group: int) -> np.ndarray:
        """Return the blocks of `keys` (uint64 [n, 2]) up to the first that is missing: int32 [found]."""
        keys, group = _check_keys(keys), check_int("group", group, 0)
        found = np.empty(len(keys), np.int32)
        return found[: find_blocks(self.words, keys, group, found)]

    def reset(self) -> None:
        """Forget all keys: what was cached is free. Counts of steps and evictions go on.

        Raises
        ------
        ArgumentError
            A block is held.
        """
        if held := int(np.count_nonzero(self.arrays.blocks["ref_count"])):
            refuse("pool", "no block held", f"{held} held", "release them first")
        self.arrays.blocks[:] = 0
        self.arrays.slots[:] = 0
        self.arrays.counts[NUM_IDLE] = self.arrays.counts[NUM_CACHED] = 0
        self._fill()

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
