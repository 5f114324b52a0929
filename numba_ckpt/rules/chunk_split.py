"""Where a chunk of a prefill may end, so that a recurrent state lies on every boundary that a later prompt can reuse.

A state can be kept only where a chunk ends, or where the backend hands one out in the middle (a *checkpoint*). So a
chunk that would run past a boundary worth keeping stops on it::

    start             block    junction       last block     tail  prompt's end
      |------------|-----v-----|---v-------|-----v-----|-------v---.
                   ^           ^           ^           ^  state blocks

- *block*: a chunk that starts inside a state block first completes it;
- *junction*: where an earlier prompt with the same prefix parted from this one;
- *last block*: the last boundary of whole state blocks that a hit can use;
- *tail*: the last boundary of the prompt that a hit can use, where hits are finer than state blocks;
- a chunk that does not finish the prefill ends on whole state blocks, unless no chunk is ever that long.

A chunk that finishes the prefill and can export the last boundary's state as a checkpoint is spared all of these stops
but the junction. Behaviour follows vLLM's Mamba block-aligned split.
"""

from numba_ckpt._jit import int64, rule
from numba_ckpt.rules.arithmetic import floor_to
from numba_ckpt.rules.checkpoint import NO_OFFSET, checkpoint_position, is_checkpoint_valid, prefill_checkpoint


@rule
def prefill_end(num_prompt_tokens: int, num_tokens: int) -> int:
    """Return the position at which a request's prefill is over and its decode begins.

    Parameters
    ----------
    num_prompt_tokens : int
        Tokens of the prompt, at least 1.
    num_tokens : int
        Tokens that are known: the prompt's, and outputs that a resumed request replays. At least `num_prompt_tokens`.

    Notes
    -----
    All outputs but the newest are replayed like a prompt; the newest is the input of the next decode.

    Examples
    --------
    >>> prefill_end(100, 100), prefill_end(100, 101), prefill_end(100, 140)
    (100, 100, 139)
    """
    return max(int64(num_prompt_tokens), int64(num_tokens) - 1)


@rule
def stop_inside(start: int, end: int, stop: int) -> int:
    """Return where the chunk [start, end) ends if it may not run past `stop`.

    Parameters
    ----------
    start, end : int
        Half-open token range.
    stop : int
        Token position; outside the chunk, or on one of its ends, it changes nothing.

    Examples
    --------
    >>> [stop_inside(8, 20, stop) for stop in (7, 8, 9, 20, 21)]
    [20, 20, 9, 20, 20]
    """
    return int64(stop) if (int64(start) < stop) & (int64(stop) < end) else int64(end)


@rule
def block_stop(position: int, state_block_size: int) -> int:
    """Return the end of the state block that `position` lies in; `position` itself where it lies on a boundary.

    Parameters
    ----------
    position : int
        Token position, at least 0.
    state_block_size : int
        Tokens per block-table column of the state group, at least 1.

    Examples
    --------
    >>> block_stop(0, 16), block_stop(1, 16), block_stop(16, 16)
    (0, 16, 16)
    """
    return -floor_to(-int64(position), state_block_size)


@rule
def junction_stop(start: int, junction: int, num_prompt_tokens: int, state_block_size: int, exact: bool) -> int:
    """Return where a chunk that starts at `start` stops for a junction at `junction`.

    Parameters
    ----------
    start, junction : int
        Token positions; a junction at 0 means that there is none.
    num_prompt_tokens : int
        Tokens of the prompt.
    state_block_size : int
        Tokens per block-table column of the state group, at least 1.
    exact : bool
        Whether to stop on the junction's very token. A junction beyond the prompt is never stopped at so.

    Returns
    -------
    int
        The junction, or the end of the last whole block that fits between `start` and it; at most `start` where
        there is nothing to stop at.

    Examples
    --------
    >>> junction_stop(0, 40, 100, 16, False), junction_stop(0, 40, 100, 16, True), junction_stop(0, 40, 39, 16, True)
    (32, 40, 32)
    """
    start_, junction_ = int64(start), int64(junction)
    on_token = bool(exact) & (junction_ <= int64(num_prompt_tokens))
    return junction_ if on_token else start_ + floor_to(junction_ - start_, state_block_size)


@rule
def whole_blocks_end(start: int, end: int, state_block_size: int, max_chunk_tokens: int) -> int:
    """Return where a chunk ends that was to compute [start, end) and more of its prefill is to come.

    Parameters
    ----------
    start, end : int
        Half-open token range.
    state_block_size : int
        Tokens per block-table column of the state group, at least 1.
    max_chunk_tokens : int
        Tokens of the longest chunk that a step can have, at least 1.

    Returns
    -------
    int
        The last block boundary in the chunk. Where there is none, `start`, so that the chunk waits for a step with
        more room; but `end` if no chunk is ever as long as a block, since it would wait for ever.

    Examples
    --------
    >>> whole_blocks_end(0, 40, 16, 64), whole_blocks_end(0, 12, 16, 64), whole_blocks_end(0, 12, 16, 12)
    (32, 0, 12)
    """
    boundary = floor_to(end, state_block_size)
    without = int64(start) if int64(max_chunk_tokens) >= int64(state_block_size) else int64(end)
    return boundary if boundary > int64(start) else without


@rule
def is_stop_spared(
    start: int,
    end: int,
    prompt_tail: int,
    unit: int,
    hash_block_size: int,
    state_block_size: int,
    checkpoint_alignment: int,
    drop_eagle_block: bool,
    num_lookahead_tokens: int,
) -> bool:
    """Say whether the chunk [start, end), which finishes its prefill, exports a checkpoint instead of stopping for it.

    Parameters
    ----------
    start, end : int
        Half-open token range.
    prompt_tail : int
        The `checkpoint_position` of the prompt.
    unit, hash_block_size, state_block_size, checkpoint_alignment, drop_eagle_block, num_lookahead_tokens
        See `prefill_checkpoint`.

    Notes
    -----
    The worker's own rule has to agree, or a stop is spared and no state is written. It goes by `end`; what a
    repetition of the prompt asks for is the prompt's tail. The two differ where outputs are replayed, and then both
    have to be valid.

    Examples
    --------
    >>> bool(is_stop_spared(0, 5000, 4992, 16, 16, 2048, 16, False, 0))
    True
    >>> bool(is_stop_spared(4096, 5000, 4992, 16, 16, 2048, 16, False, 0))  # no column to spare for it
    False
    """
    offset, _ = prefill_checkpoint(
        start,
        end,
        unit,
        hash_block_size,
        state_block_size,
        checkpoint_alignment,
        drop_eagle_block,
        num_lookahead_tokens,
    )
    valid = is_checkpoint_valid(start, end, prompt_tail, hash_block_size, state_block_size, checkpoint_alignment)
    return (offset != NO_OFFSET) & valid


@rule
def boundary_stop(start: int, end: int, last_block: int, prompt_tail: int, state_block_size: int) -> int:
    """Return where the chunk [start, end) ends if it stops for state blocks and for the prompt's tail.

    Parameters
    ----------
    start, end : int
        Half-open token range.
    last_block, prompt_tail : int
        The last whole state block and the last boundary of the prompt that a hit can use.
    state_block_size : int
        Tokens per block-table column of the state group, at least 1.

    Notes
    -----
    A tail at or before the last block is not worth a chunk of its own.

    Examples
    --------
    >>> [int(boundary_stop(start, 45, 32, 40, 16)) for start in (0, 20, 32, 40)]
    [32, 32, 40, 45]
    """
    stop = stop_inside(start, end, block_stop(start, state_block_size))
    stop = stop_inside(start, stop, last_block)
    return stop_inside(start, stop, prompt_tail) if int64(prompt_tail) > int64(last_block) else stop


@rule
def chunk_end(
    start: int,
    end: int,
    num_prompt_tokens: int,
    num_tokens: int,
    junction: int,
    unit: int,
    hash_block_size: int,
    state_block_size: int,
    checkpoint_alignment: int,
    drop_eagle_block: bool,
    num_lookahead_tokens: int,
    max_chunk_tokens: int,
    exact_junction: bool,
) -> int:
    """Return where the chunk of a prefill ends that a scheduler would like to be [start, end).

    Parameters
    ----------
    start, end : int
        Half-open token range, `end` at most `num_tokens` while the prefill lasts.
    num_prompt_tokens, num_tokens : int
        See `prefill_end`.
    junction, exact_junction
        See `junction_stop`.
    unit, hash_block_size, state_block_size, checkpoint_alignment, drop_eagle_block, num_lookahead_tokens
        See `prefill_checkpoint`.
    max_chunk_tokens : int
        See `whole_blocks_end`.

    Returns
    -------
    int
        int64 in [start, end]; `start` means that the chunk has to wait for a step with more room.

    Examples
    --------
    >>> sizes = dict(unit=16, hash_block_size=16, state_block_size=2048, drop_eagle_block=False, num_lookahead_tokens=0)
    >>> limits = dict(junction=0, max_chunk_tokens=8192, exact_junction=False)
    >>> int(chunk_end(0, 5000, 5000, 5000, checkpoint_alignment=0, **sizes, **limits))
    4096
    >>> int(chunk_end(0, 5000, 5000, 5000, checkpoint_alignment=16, **sizes, **limits))  # exports a state inside
    5000
    """
    goal = prefill_end(num_prompt_tokens, num_tokens)
    if int64(start) >= goal:
        return int64(end)
    finishes = int64(end) >= goal
    stop = int64(end) if finishes else whole_blocks_end(start, end, state_block_size, max_chunk_tokens)
    at_junction = junction_stop(start, junction, num_prompt_tokens, state_block_size, exact_junction)
    stop = stop_inside(start, stop, at_junction)
    tail = checkpoint_position(num_prompt_tokens, unit, drop_eagle_block, num_lookahead_tokens)
    if finishes and is_stop_spared(
        start,
        end,
        tail,
        unit,
        hash_block_size,
        state_block_size,
        checkpoint_alignment,
        drop_eagle_block,
        num_lookahead_tokens,
    ):
        return stop
    last_block = checkpoint_position(num_tokens, state_block_size, drop_eagle_block, num_lookahead_tokens)
    return boundary_stop(start, stop, last_block, tail, state_block_size)
