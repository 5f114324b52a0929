"""The longest prefix that every group can serve, over a key table."""

from numba_ckpt._jit import atomic_loop, borrow, host_loop, inlined_loop
from numba_ckpt.cache.key_table import find_block
from numba_ckpt.cache.pool_loops import acquire_blocks
from numba_ckpt.cache.pool_memory import cut_pool
from numba_ckpt.prefix_cache.book import (
    ALIGNMENT,
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

__all__ = ["count_waiting", "first_needed_col", "look_up_prefix"]


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


@inlined_loop
def _block_at(pool, keys, unit, end, group):  # type: ignore[no-untyped-def]
    """Block whose key is the prefix of `end` tokens."""
    last = floor_div(end, unit) - 1
    return find_block(pool.blocks, pool.slots, keys[last, 0], keys[last, 1], group)


@host_loop
def _attention_limit(pool, keys, unit, groups, limit):  # type: ignore[no-untyped-def]
    """Tokens of the prefix whose blocks every full-attention group holds, at most `limit`."""
    for group in range(groups.shape[0]):
        if groups[group, KIND] == FULL:
            size, end = groups[group, BLOCK_SIZE], 0
            while end + size <= limit and _block_at(pool, keys, unit, end + size, group) != NULL_BLOCK_ID:
                end += size
            limit = min(limit, end)
    return limit


@host_loop
def _serves(pool, keys, unit, groups, group, position):  # type: ignore[no-untyped-def]
    """Whether a group holds what a request that resumes at `position` reads."""
    size = groups[group, BLOCK_SIZE]
    if groups[group, KIND] == STATE:
        return _block_at(pool, keys, unit, position, group) != NULL_BLOCK_ID
    col = first_needed_col(groups[group, KIND], size, groups[group, WINDOW], position)
    while col * size < position:
        if _block_at(pool, keys, unit, (col + 1) * size, group) == NULL_BLOCK_ID:
            return False
        col += 1
    return True


@inlined_loop
def _longest(pool, keys, unit, step, groups, limit, with_states):  # type: ignore[no-untyped-def]
    position = floor_to(limit, step)
    while position > 0:
        served = True
        # States first: they are the scarcest.
        for group in range(groups.shape[0] - 1, -1, -1):
            kind = groups[group, KIND]
            if served and kind != FULL and (with_states or kind != STATE):
                served = _serves(pool, keys, unit, groups, group, position)
        if served:
            break
        position -= step
    return position


@host_loop
def _find_hit(pool, keys, sizes, groups, last_boundary):  # type: ignore[no-untyped-def]
    """(hit, ceiling): the longest boundary that all groups serve, and that all attention groups serve.

    Both are multiples of the hit step, at most `last_boundary`. With the EAGLE drop they lie one alignment unit below
    what the attention groups know: what a draft head wrote for a unit's last token depends on the token after it.
    """
    unit, margin = sizes[UNIT], sizes[ALIGNMENT] if sizes[DROP_EAGLE] else 0
    limit = min(last_boundary + margin, keys.shape[0] * unit)
    limit = min(_attention_limit(pool, keys, unit, groups, limit) - margin, last_boundary)
    ceiling = _longest(pool, keys, unit, sizes[HIT_STEP], groups, max(limit, 0), False)
    return _longest(pool, keys, unit, sizes[HIT_STEP], groups, ceiling, True), ceiling


@host_loop
def _fill_table(pool, keys, unit, groups, position, table):  # type: ignore[no-untyped-def]
    """Write the blocks that a request resuming at `position` reads into its table [groups, columns], and hold them."""
    for group in range(groups.shape[0]):
        size = groups[group, BLOCK_SIZE]
        first = first_needed_col(groups[group, KIND], size, groups[group, WINDOW], position)
        last = ceil_div(position, size) - 1
        for col in range(first, last + 1):
            end = min((col + 1) * size, position)
            table[group, col] = _block_at(pool, keys, unit, end, group)
        acquire_blocks(pool, table[group])
        # A state stands for all tokens before it.
        groups[group, TOKENS_SERVED] += position if groups[group, KIND] == STATE else position - first * size


@inlined_loop
def _count(counters, num_tokens, last_boundary, hit, ceiling):  # type: ignore[no-untyped-def]
    """Count a look-up: each of its tokens is served, or lost to one cause."""
    counters[LOOKUPS] += 1
    counters[PROMPT_TOKENS] += num_tokens
    counters[HIT_TOKENS] += hit
    counters[LOST_TO_STATES] += ceiling - hit
    counters[LOST_TO_ATTENTION] += last_boundary - ceiling
    counters[LOST_TO_BOUNDARIES] += num_tokens - last_boundary


@atomic_loop
def look_up_prefix(words, book, keys, table, num_tokens, last_boundary):  # type: ignore[no-untyped-def]
    """Find the longest hit of a prompt of `num_tokens`, hold its blocks in `table`, count it: (hit, ceiling)."""
    pool, (sizes, counters, groups, _) = cut_pool(words), cut_book(book)
    keys, table = borrow(keys), borrow(table)
    hit, ceiling = _find_hit(pool, keys, sizes, groups, last_boundary)
    if hit > 0:
        _fill_table(pool, keys, sizes[UNIT], groups, hit, table)
        for group in range(groups.shape[0]):
            counters[STATES_REUSED] += groups[group, KIND] == STATE
    _count(counters, num_tokens, last_boundary, hit, ceiling)
    return hit, ceiling


@atomic_loop
def count_waiting(book, hit, ceiling, pending):  # type: ignore[no-untyped-def]
    """Count the tokens between a hit and the longer one that waiting would give as lost to that alone."""
    counters = cut_book(book).counters
    counters[LOST_TO_WRITING] += pending - hit
    counters[LOST_TO_STATES] -= min(pending, ceiling) - hit
    counters[LOST_TO_ATTENTION] -= max(pending - ceiling, 0)
