"""The longest prefix that every group can serve, over a key table."""

from typing import NamedTuple

import numpy as np

from numba_ckpt._jit import atomic_loop, borrow, host_loop, inlined_loop
from numba_ckpt.cache.key_table import find_block
from numba_ckpt.cache.pool_loops import acquire_blocks
from numba_ckpt.cache.pool_memory import NUM_CACHED, cut_pool
from numba_ckpt.prefix_cache.book import (
    DROP_EAGLE,
    HIT_STEP,
    HIT_TOKENS,
    LOOKUPS,
    LOST_TO_ATTENTION,
    LOST_TO_BOUNDARIES,
    LOST_TO_STATES,
    LOST_TO_WRITING,
    PROMPT_TOKENS,
    STATES_REUSED,
    UNIT,
    cut_book,
)
from numba_ckpt.prefix_cache.groups import (
    BLOCK_SIZE,
    CHUNKED_LOCAL,
    FULL,
    KIND,
    SLIDING_WINDOW,
    STATE,
    TOKENS_SERVED,
    WINDOW,
)
from numba_ckpt.rules import NULL_BLOCK_ID, ceil_div, floor_div, floor_to, local_chunk_start, sliding_window_start

__all__ = ["find_holes", "first_needed_col", "look_up_prefix"]


@inlined_loop
def first_needed_col(kind, block_size, window, position):  # type: ignore[no-untyped-def]
    """First table column of a group that a request at `position` still reads."""
    col = floor_div(position - 1, block_size)
    if kind == FULL:
        col = 0
    elif kind == SLIDING_WINDOW:
        col = floor_div(sliding_window_start(position, window), block_size)
    elif kind == CHUNKED_LOCAL:
        col = floor_div(local_chunk_start(position, window), block_size)
    return col


class Prefix(NamedTuple):
    """A prompt's prefixes, and where their blocks may be, inside compiled loops.

    Attributes
    ----------
    keys : ndarray
        uint64 [units, 2].
    unit, step, last_boundary, margin : int
        Tokens of a hash block, between two boundaries, of the longest hit that may be, and after a boundary that the
        full-attention groups have to know too.
    blocks, slots : ndarray
        Key table of what has been published.
    pending_blocks, pending_slots : ndarray
        Key table of what open steps are about to publish.
    with_pending : bool
        Whether the second table counts.
    """

    keys: np.ndarray
    unit: int
    step: int
    last_boundary: int
    margin: int
    blocks: np.ndarray
    slots: np.ndarray
    pending_blocks: np.ndarray
    pending_slots: np.ndarray
    with_pending: bool


@inlined_loop
def _prefix_of(pool, pending, sizes, keys, last_boundary, with_pending):  # type: ignore[no-untyped-def]
    # With EAGLE, what a draft head wrote for a token depends on the token after it, which a hash block more tells.
    margin = sizes[UNIT] if sizes[DROP_EAGLE] else 0
    tables = pool.blocks, pool.slots, pending.blocks, pending.slots
    return Prefix(keys, sizes[UNIT], sizes[HIT_STEP], last_boundary, margin, *tables, with_pending)


@inlined_loop
def _block_at(prefix, end, group):  # type: ignore[no-untyped-def]
    """Block whose key is the prefix of `end` tokens."""
    last = floor_div(end, prefix.unit) - 1
    return find_block(prefix.blocks, prefix.slots, prefix.keys[last, 0], prefix.keys[last, 1], group)


@inlined_loop
def _is_held(prefix, end, group):  # type: ignore[no-untyped-def]
    """Whether a group holds the block that ends on `end`."""
    last = floor_div(end, prefix.unit) - 1
    key0, key1 = prefix.keys[last, 0], prefix.keys[last, 1]
    block = find_block(prefix.blocks, prefix.slots, key0, key1, group)
    if prefix.with_pending and block == NULL_BLOCK_ID:
        block = find_block(prefix.pending_blocks, prefix.pending_slots, key0, key1, group)
    return block != NULL_BLOCK_ID


@inlined_loop
def _known_tokens(prefix, groups, known):  # type: ignore[no-untyped-def]
    """Tokens of the prefix whose blocks every full-attention group holds, the first `known` of which it does hold.

    No more than a hit can use: a block that holds the last of them may end later, but inside the prompt.
    """
    last = prefix.keys.shape[0] * prefix.unit
    most = min(prefix.last_boundary + prefix.margin, last)
    for group in range(groups.shape[0]):
        if groups[group, KIND] == FULL:
            size = groups[group, BLOCK_SIZE]
            end = floor_to(known, size)
            while end < most and end + size <= last and _is_held(prefix, end + size, group):
                end += size
            most = min(most, end)
    return most


@inlined_loop
def _window_limit(prefix, groups, group, position, seen):  # type: ignore[no-untyped-def]
    """`position` if a group with a window serves it; else a limit below which the next one lies that it may serve.

    The blocks from column `seen[group]` on have been found to be held, as far as a longer boundary reached: boundaries
    are tried from the longest to the shortest, and no block is looked up twice.
    """
    size = groups[group, BLOCK_SIZE]
    first = first_needed_col(groups[group, KIND], size, groups[group, WINDOW], position)
    col, limit = min(seen[group], floor_div(position, size)), position
    while col > first and limit == position:
        if _is_held(prefix, col * size, group):
            col -= 1
        else:
            # The windows of all boundaries down to the hole reach back over it.
            limit = (col - 1) * size
    seen[group] = col
    return limit


@inlined_loop
def _is_known(prefix, groups, position):  # type: ignore[no-untyped-def]
    """Whether an attention group holds the block that ends on a boundary, be it needed there or not."""
    known = False
    for group in range(groups.shape[0]):
        known = known or (groups[group, KIND] != STATE and _is_held(prefix, position, group))
    return known


@inlined_loop
def _has_states(prefix, groups, position):  # type: ignore[no-untyped-def]
    """Whether all state groups hold the state that ends on a boundary."""
    complete = True
    for group in range(groups.shape[0]):
        complete = complete and (groups[group, KIND] != STATE or _is_held(prefix, position, group))
    return complete


@host_loop
def _find_hit(prefix, groups, known):  # type: ignore[no-untyped-def]
    """(hit, ceiling): the longest boundary that all groups serve, and that the attention groups know and serve.

    `known` are tokens that all full-attention groups hold. An attention group may need nothing at a boundary and so
    serve it from an empty cache; the ceiling is where one of them has been.
    """
    seen = np.full(groups.shape[0], prefix.keys.shape[0])
    position = floor_to(max(min(known - prefix.margin, prefix.last_boundary), 0), prefix.step)
    ceiling = 0
    while position > 0:
        limit, has_states = position, _has_states(prefix, groups, position)
        if has_states or ceiling == 0:
            for group in range(groups.shape[0]):
                if groups[group, KIND] == SLIDING_WINDOW or groups[group, KIND] == CHUNKED_LOCAL:
                    limit = min(limit, _window_limit(prefix, groups, group, position, seen))
            if limit == position and ceiling == 0 and _is_known(prefix, groups, position):
                ceiling = position
        if limit == position:
            if has_states:
                break
            limit -= prefix.step
        position = floor_to(limit, prefix.step)
    return position, max(ceiling, position)


@host_loop
def _find_pending(prefix, groups, known, hit):  # type: ignore[no-untyped-def]
    """Hit that a prompt would have if all open steps were committed; 0 if that is no longer than `hit`."""
    pending = 0
    if hit < floor_to(prefix.last_boundary, prefix.step):
        pending, _ = _find_hit(prefix, groups, _known_tokens(prefix, groups, known))
    return pending if pending > hit else 0


@inlined_loop
def _fill_table(pool, prefix, groups, position, table):  # type: ignore[no-untyped-def]
    """Write the blocks that a request resuming at `position` reads into its table [groups, columns], and hold them."""
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        first = first_needed_col(groups[group, KIND], size, groups[group, WINDOW], position)
        last = ceil_div(position, size) - 1
        for col in range(first, last + 1):
            end = min((col + 1) * size, position)
            table[group, col] = _block_at(prefix, end, group)
        acquire_blocks(pool, table[group])
        # A state stands for all tokens before it.
        groups[group, TOKENS_SERVED] += position if groups[group, KIND] == STATE else position - first * size


@inlined_loop
def _count(counters, num_tokens, last_boundary, hit, ceiling, pending):  # type: ignore[no-untyped-def]
    """Count a look-up: each of its tokens is served, or lost to one cause; first of all to not waiting.

    `last_boundary` is the longest hit that may be. Without attention groups only states can be lacking.
    """
    soon = max(hit, pending)
    counters[LOOKUPS] += 1
    counters[PROMPT_TOKENS] += num_tokens
    counters[HIT_TOKENS] += hit
    counters[LOST_TO_WRITING] += soon - hit
    counters[LOST_TO_STATES] += max(ceiling - soon, 0)
    counters[LOST_TO_ATTENTION] += last_boundary - max(ceiling, soon)
    counters[LOST_TO_BOUNDARIES] += num_tokens - last_boundary


@atomic_loop
def look_up_prefix(words, pending_words, book, keys, table, num_tokens, last_boundary):  # type: ignore[no-untyped-def]
    """Find the longest hit of a prompt of `num_tokens`, hold its blocks in `table`, count it: (hit, ceiling, pending).

    The last is the hit that the prompt would have if all open steps, whose keys are in the pool `pending_words`, were
    committed; 0 if that is no longer.
    """
    pool, pending_pool, (sizes, counters, groups, _) = cut_pool(words), cut_pool(pending_words), cut_book(book)
    keys, table = borrow(keys), borrow(table)
    prefix = _prefix_of(pool, pending_pool, sizes, keys, last_boundary, False)
    known = _known_tokens(prefix, groups, 0)
    hit, ceiling = _find_hit(prefix, groups, known)
    pending = 0
    if pending_pool.counts[NUM_CACHED] > 0:
        prefix = _prefix_of(pool, pending_pool, sizes, keys, last_boundary, True)
        pending = _find_pending(prefix, groups, known, hit)
    if hit > 0:
        _fill_table(pool, prefix, groups, hit, table)
        for group in range(groups.shape[0]):
            counters[STATES_REUSED] += groups[group, KIND] == STATE
    reach, has_attention = floor_to(last_boundary, sizes[HIT_STEP]), False
    for group in range(groups.shape[0]):
        has_attention = has_attention or groups[group, KIND] != STATE
    _count(counters, num_tokens, reach, hit, ceiling if has_attention else reach, pending)
    return hit, ceiling, pending


@host_loop
def find_holes(words, book, keys, last_boundary, holes):  # type: ignore[no-untyped-def]
    """Fill `holes` [boundaries, groups] with what each group lacks at each boundary; returns the longest hit.

    Boundary i lies after i + 1 steps. An entry is the end of the block that the group lacks and that lies next to the
    boundary, in tokens; 0 where it serves the boundary. It lies beyond the boundary where only the EAGLE margin is
    missing, or can never be known.
    """
    pool, (sizes, _, groups, _) = cut_pool(words), cut_book(book)
    prefix = _prefix_of(pool, pool, sizes, borrow(keys), last_boundary, False)
    last, step = prefix.keys.shape[0] * prefix.unit, prefix.step
    for group in range(groups.shape[0]):
        kind, size, window, col, hole = groups[group, KIND], groups[group, BLOCK_SIZE], groups[group, WINDOW], 0, 0
        for index in range(holes.shape[0]):
            position = (index + 1) * step
            if kind == STATE:
                holes[index, group] = 0 if _is_held(prefix, position, group) else position
                continue
            while col * size < position:
                col += 1
                hole = hole if _is_held(prefix, col * size, group) else col * size
            is_lacking = hole > first_needed_col(kind, size, window, position) * size
            holes[index, group] = hole if is_lacking else 0
            beyond = position + size
            if kind == FULL and prefix.margin > 0 and (beyond > last or not is_lacking):
                is_known = beyond <= last and _is_held(prefix, beyond, group)
                holes[index, group] = 0 if is_known else beyond
    hit, _ = _find_hit(prefix, groups, _known_tokens(prefix, groups, 0))
    return hit
