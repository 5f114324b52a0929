"""A first, simple prefix index: one recurrent state per prefix, found by the prefix's key.

The one promise that matters: a key leads to a block only after somebody said that the block has been written.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from numba_ckpt._check import refuse
from numba_ckpt.prefix_cache.prefix_keys import PrefixKey
from numba_ckpt.prefix_cache.state_pool import StatePool

__all__ = ["IndexCounters", "PrefixIndex"]


@dataclass(slots=True)
class IndexCounters:
    """What an index has done so far, in calls and blocks."""

    lookups: int = 0
    hits: int = 0
    published: int = 0
    duplicates: int = 0
    evicted: int = 0


class PrefixIndex:
    """Prefix keys to blocks of recurrent state, over a pool of its own.

    Parameters
    ----------
    num_blocks : int
        Blocks of the pool, the null block 0 included; at least 2.

    Notes
    -----
    A block's life: `reserve`, write it, `mark_written`, `publish` under its prefix's key, `release`. It can be found
    from `publish` until it is evicted, which happens only to blocks that nobody holds, least recently used first.

    Examples
    --------
    >>> index = PrefixIndex(8)
    >>> [block] = index.reserve(1)
    >>> index.mark_written([block])
    >>> index.publish(("some prefix", -1, 0), block)
    True
    >>> index.release(block)
    >>> index.acquire_longest([("longer", -1, 0), ("some prefix", -1, 0)])  # place in the list, block
    (1, 1)
    """

    def __init__(self, num_blocks: int) -> None:
        self.counters = IndexCounters()
        self._pool = StatePool(num_blocks, self._forget)
        self._block_of: dict[PrefixKey, int] = {}
        self._key_of: dict[int, PrefixKey] = {}
        self._unwritten: set[int] = set()

    @property
    def num_available(self) -> int:
        """Blocks that can be reserved now, evicting idle ones if need be."""
        return self._pool.num_available

    @property
    def num_cached(self) -> int:
        """Blocks that a key leads to."""
        return len(self._block_of)

    def acquire_longest(self, keys: Iterable[PrefixKey]) -> tuple[int, int] | None:
        """Find the first key with a published state and hold its block.

        Parameters
        ----------
        keys : iterable of PrefixKey
            Candidate prefixes, longest first.

        Returns
        -------
        tuple of int or None
            Place of the key among the candidates, and the block, which the caller must `release`.
        """
        self.counters.lookups += 1
        for place, key in enumerate(keys):
            block = self._block_of.get(key)
            if block is not None:
                self.counters.hits += 1
                self._pool.acquire(block)
                return place, block
        return None

    def reserve(self, count: int) -> list[int]:
        """Hand out `count` blocks to be written; all or none. Raises ArgumentError if fewer are available."""
        blocks = self._pool.reserve(count)
        self._unwritten.update(blocks)
        return blocks

    def mark_written(self, blocks: Iterable[int]) -> None:
        """Record that the states of these held blocks have been written, or their writes enqueued in stream order."""
        blocks = list(blocks)
        for block in blocks:
            self._pool.check_held(block)
        self._unwritten.difference_update(blocks)

    def publish(self, key: PrefixKey, block: int) -> bool:
        """Let lookups of `key` find a held, written block.

        Returns
        -------
        bool
            False if another block serves this key already; the block stays private then.

        Raises
        ------
        ArgumentError
            Nobody holds the block, it has not been written, or it is published under another key.
        """
        self._pool.check_held(block)
        if block in self._unwritten:
            refuse("block", "a written block", f"block {block}, only reserved so far", "write it, then mark_written")
        if block in self._key_of:
            refuse("block", "a private block", f"block {block}, which is published", "reserve another block")
        if key in self._block_of:
            self.counters.duplicates += 1
            return False
        self._block_of[key], self._key_of[block] = block, key
        self.counters.published += 1
        return True

    def release(self, block: int) -> None:
        """Drop a hold on a block; a published one stays findable until its place is needed."""
        self._pool.release(block, keep=block in self._key_of)

    def check_integrity(self) -> None:
        """Raise AssertionError unless pool, keys and writes agree."""
        self._pool.check_integrity()
        assert {block: key for key, block in self._block_of.items()} == self._key_of, "keys and blocks disagree"
        assert not self._unwritten & self._key_of.keys(), "a published block was never written"

    def _forget(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
        self.counters.evicted += 1
