"""What compiled loops know of a cache besides its pool: sizes, groups, counters, and the states that were not kept.

::

    words   │ sizes │ counters │ groups │ states not kept, a ring │
            0       8          24

One plain int64 array, cut into its parts inside every loop, for the same reason as the pool's memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._jit import borrow_part, inlined_loop, view_part
from numba_ckpt.prefix_cache.groups import NUM_FIELDS

__all__ = ["Book", "cut_book", "new_book"]

# Entries of `Book.sizes`; the first six are in tokens but for the switch.
UNIT, ALIGNMENT, DROP_EAGLE, LOOKAHEAD, HIT_STEP, INTERVAL, NUM_GROUPS, NUM_UNKEPT = range(8)
NUM_SIZES = 8
# Entries of `Book.counters`.
(
    LOOKUPS,
    PROMPT_TOKENS,
    HIT_TOKENS,
    LOST_TO_BOUNDARIES,
    LOST_TO_ATTENTION,
    LOST_TO_STATES,
    LOST_TO_WRITING,
    STATES_REUSED,
    CHECKPOINTS_RESERVED,
    CHECKPOINTS_WRITTEN,
    CHECKPOINTS_DECLINED,
    CHECKPOINTS_ABORTED,
    CHECKPOINTS_SKIPPED,
    COPIES,
    NUM_COUNTERS,
) = range(15)
_GROUPS_AT = 24
# Columns of `Book.unkept`.
KEY0, KEY1, GROUP, POSITION, START, END, REASON, NUM_EVICTED_BEFORE, UNKEPT_FIELDS = range(9)
# Why a state was not kept.
NOT_ASKED, NOT_WORTH_IT, DECLINED, NO_BLOCKS = range(4)

NUM_REMEMBERED = 65_536
"""States not kept that `explain` can look back on: 4 MiB."""


class Book(NamedTuple):
    """A cache as compiled loops see it.

    Attributes
    ----------
    sizes : ndarray
        int64 [NUM_SIZES].
    counters : ndarray
        int64 [16].
    groups : ndarray
        int64 [groups, NUM_FIELDS], `CacheConfig.group_rows`; one column counts.
    unkept : ndarray
        int64 [NUM_REMEMBERED, UNKEPT_FIELDS]; a row is the two halves of a key, its group, the boundary, the chunk's
        start and end, a reason, and how many keys had been evicted before.
    """

    sizes: np.ndarray
    counters: np.ndarray
    groups: np.ndarray
    unkept: np.ndarray


def _cutter(part: Callable[..., Any]) -> Callable[[Any], Book]:
    def cut(words: Any) -> Book:
        num_groups = words[NUM_GROUPS]
        unkept = _GROUPS_AT + num_groups * NUM_FIELDS
        num_rest = NUM_REMEMBERED * UNKEPT_FIELDS
        return Book(
            part(words, 0, NUM_SIZES, NUM_SIZES, np.int64),
            part(words, NUM_SIZES, _GROUPS_AT, _GROUPS_AT - NUM_SIZES, np.int64),
            part(words, _GROUPS_AT, unkept, unkept - _GROUPS_AT, np.int64).reshape((num_groups, NUM_FIELDS)),
            part(words, unkept, unkept + num_rest, num_rest, np.int64).reshape((NUM_REMEMBERED, UNKEPT_FIELDS)),
        )

    return cut


cut_book: Any = inlined_loop(_cutter(borrow_part))
"""``cut_book(words)``: the parts of a book, borrowed, inside compiled loops."""
cut_book_words = _cutter(view_part)
"""The same outside: views."""


def new_book(sizes: list[int], groups: np.ndarray) -> np.ndarray:
    """Return a book with `sizes` (the first six) and `groups`, and nothing counted."""
    words = np.zeros(_GROUPS_AT + groups.size + NUM_REMEMBERED * UNKEPT_FIELDS, np.int64)
    words[: len(sizes)] = sizes
    words[NUM_GROUPS] = len(groups)
    cut_book_words(words).groups[:] = groups
    return words
