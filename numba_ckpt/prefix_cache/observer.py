"""What looks on while a cache works: counts, states not kept, keys forgotten in a reset, and warnings."""

import warnings
from typing import NamedTuple

import numpy as np

from numba_ckpt.cache import BlockPool
from numba_ckpt.cache.key_table import NO_GROUP
from numba_ckpt.prefix_cache.book import INTERVAL, NUM_COUNTERS, NUM_UNKEPT, Book, cut_book_words
from numba_ckpt.prefix_cache.counters import CacheCounters, CacheWarning
from numba_ckpt.prefix_cache.groups import TOKENS_SERVED, CacheConfig

__all__ = ["CacheObserver", "LastReset", "UnkeptState"]


class UnkeptState(NamedTuple):
    """A state boundary inside a chunk [start, end) that nobody can find, and what is known of it.

    Attributes
    ----------
    prefix : tuple of int
        Key of the boundary.
    group : int
        State group.
    position, start, end : int
        The boundary and the chunk, in tokens.
    reason : int
        `NOT_ASKED`, `NOT_WORTH_IT`, `DECLINED` or `NO_BLOCKS` of `numba_ckpt.prefix_cache.book`.
    num_evicted_before : int
        Keys that had been evicted before: what dates it.
    """

    prefix: tuple[int, int]
    group: int
    position: int
    start: int
    end: int
    reason: int
    num_evicted_before: int


class LastReset(NamedTuple):
    """The last time that a cache forgot all that had been published.

    Attributes
    ----------
    keys : ndarray
        uint64 [n, 3], what was forgotten then and in earlier resets: the two halves of a key and its group; as many as
        the pool has blocks, the latest.
    num_evicted, num_unkept : int
        Keys evicted and states not kept before.
    """

    keys: np.ndarray
    num_evicted: int
    num_unkept: int


class CacheObserver:
    """Counters and memory of one cache.

    Attributes
    ----------
    words : ndarray
        The cache's book.
    waits, steps_committed, steps_aborted : int
        What compiled loops do not count.
    last_reset : LastReset
        What the cache was made to forget.
    """

    def __init__(self, config: CacheConfig, words: np.ndarray) -> None:
        self.words = words
        self.waits = self.steps_committed = self.steps_aborted = 0
        self.last_reset = LastReset(np.empty((0, 3), np.uint64), 0, 0)
        self._config, self._hit_step = config, config.hit_step
        self._is_even = config.hit_step == config.cache_hit_alignment_tokens
        self._warned_of: set[bool] = set()

    @property
    def _book(self) -> Book:
        # Cut when it is read, so that a copy of the cache reads its own.
        return cut_book_words(self.words)

    def count(self, pool: BlockPool) -> CacheCounters:
        """Say what has happened so far, and how full the cache's `pool` is."""
        book = self._book
        counts = [*book.counters[:NUM_COUNTERS].tolist(), self.waits, self.steps_committed, self.steps_aborted]
        counts += [pool.num_evicted, pool.num_held, pool.num_idle, pool.num_free]
        counts.append(tuple(book.groups[:, TOKENS_SERVED].tolist()))
        return CacheCounters(*counts)

    def warn_of_prompt(self, num_tokens: int, last_boundary: int) -> None:
        """Warn, once, of prompts that are never served: too short a one, or one whose states no hit reaches."""
        if bool(last_boundary) in self._warned_of or (self._is_even and last_boundary):
            return
        if why := self._why_never_hit(num_tokens, last_boundary):
            self._warned_of.add(bool(last_boundary))
            warnings.warn(f"a prompt of {num_tokens} tokens can never be hit{why}", CacheWarning, stacklevel=3)

    def _why_never_hit(self, num_tokens: int, last_boundary: int) -> str:
        longest, step = self._config.longest_hit(num_tokens), self._hit_step
        if not longest:
            return (
                f": hits are multiples of {step} tokens and leave one token (with EAGLE one unit, or attention block) "
                "to compute; use a finer hash block or smaller attention blocks"
            )
        if not self._config.keeps_states(longest, last_boundary, int(self._book.sizes[INTERVAL])):
            return (
                f" by itself, only where other prompts leave states: its last one lies at {last_boundary}, hits are "
                f"multiples of {step} up to {longest}; leave cache_hit_alignment_tokens out, or use smaller attention "
                "blocks"
            )
        return ""

    def unkept_rows(self) -> tuple[np.ndarray, int]:
        """Return where the book remembers states not kept, a ring int64 [n, UNKEPT_FIELDS], and how many there were."""
        return self._book.unkept, int(self._book.sizes[NUM_UNKEPT])

    def unkept(self) -> list[UnkeptState]:
        """Return the states that were not kept, oldest first."""
        rows, count = self.unkept_rows()
        return [unkept_state(row) for row in (np.roll(rows, -count, axis=0) if count > len(rows) else rows[:count])]

    def published(self, pool: BlockPool) -> np.ndarray:
        """Return all that a pool's keys lead to: uint64 [n, 3], the halves of a key and its group."""
        blocks = pool.arrays.blocks[pool.arrays.blocks["group"] != NO_GROUP]
        columns = blocks["key0"], blocks["key1"], blocks["group"].astype(np.uint64)
        return np.concatenate((np.stack(columns, axis=1), self.last_reset.keys))[: pool.num_blocks]

    def forget(self, published: np.ndarray, num_evicted: int) -> None:
        """Take in that all keys were forgotten, `published` among them."""
        self.last_reset = LastReset(published, num_evicted, self.unkept_rows()[1])


def unkept_state(row: np.ndarray) -> UnkeptState:
    """Return a row of the book as a record."""
    first, second = row[:2].view(np.uint64).tolist()
    return UnkeptState((first, second), *row[2:].tolist())
