"""Where a prefill may leave a recurrent state behind, and whether a step can write it.

One prefill step computes the tokens [query_start, query_end) of a sequence. Its *checkpoint* is a state at a token
position inside that range, kept in a block of its own. Where in the block table follows from the query's end, not from
the position: it is the column before the running state's. With columns of 512 tokens, the query [512, 2000) has::

    column         0         1         2         3
              |---------|---------|---------|---------.
              0        512      1024      1536   1984 2000
    read      ^ initial state, after 512 tokens
    written                       ^ checkpoint, after 1984 tokens (unit 16)
    written                                 ^ running state, after 2000 tokens

The scheduler that reserves the block, the allocator that hands it out and the worker that writes it all ask these
functions: a block that one reserves and another declines to write would be served as garbage later. Behaviour follows
vLLM's Mamba prefill checkpoints.
"""

from numba_ckpt._jit import int64, rule
from numba_ckpt.rules.arithmetic import floor_div, floor_to, is_multiple

NO_OFFSET = 0
"""Offset of a row without a checkpoint: a checkpoint never lies on the query's first token."""
NO_BLOCK_COL = -1
"""Block-table column of a row without a checkpoint."""
NO_ALIGNMENT = 0
"""Checkpoint alignment of a backend that cannot export states."""
NULL_BLOCK_ID = 0
"""Block that table entries without a block point to; never written."""


@rule
def checkpoint_position(num_tokens: int, unit: int, drop_eagle_block: bool, num_lookahead_tokens: int) -> int:
    """Return the last reusable boundary of a prefill, in tokens from the sequence start.

    Parameters
    ----------
    num_tokens : int
        Tokens of the prefill, at least 0.
    unit : int
        Tokens per cache-hit alignment unit, at least 1.
    drop_eagle_block : bool
        Whether a hit gives up its last unit to the EAGLE draft head.
    num_lookahead_tokens : int
        Tokens beyond a boundary that its hash needs; 0 where a boundary's own tokens suffice.

    Returns
    -------
    int
        int64 multiple of `unit`; 0 means there is none.

    Notes
    -----
    A hit may never cover the whole prompt (one token has to be computed for its logits), so at least one token stays
    beyond the boundary; dropping the EAGLE block already leaves a whole unit.

    Examples
    --------
    >>> [int(checkpoint_position(n, 1536, True, 0)) for n in (1535, 3000, 3072)]
    [0, 0, 1536]
    >>> int(checkpoint_position(5000, 8, False, 0))
    4992
    """
    total = int64(num_tokens)
    dropped = int64(unit) if drop_eagle_block else int64(0)
    limit = total if drop_eagle_block else total - max(int64(1), int64(num_lookahead_tokens))
    # The upper bound always holds; stating it lets the compiler prove that offsets are small.
    return min(max(floor_to(limit, unit) - dropped, int64(0)), total)


@rule
def running_state_col(num_tokens: int, state_block_size: int) -> int:
    """Return the block-table column of the state after `num_tokens` tokens; -1 after none.

    Parameters
    ----------
    num_tokens : int
        Tokens that the state has seen, at least 0.
    state_block_size : int
        Tokens per block-table column of the state group (not of an attention group), at least 1.

    Examples
    --------
    >>> running_state_col(0, 2176), running_state_col(2176, 2176), running_state_col(100096, 2176)
    (-1, 0, 45)
    """
    return floor_div(int64(num_tokens) - 1, state_block_size)


@rule
def checkpoint_col(query_end: int, state_block_size: int) -> int:
    """Return the block-table column kept for the checkpoint of a query that ends at `query_end`.

    It is the column before the running state's. Negative where the query ends in the first column.

    Parameters
    ----------
    query_end : int
        Sequence length after the step, in tokens.
    state_block_size : int
        Tokens per block-table column of the state group, at least 1.

    Examples
    --------
    >>> checkpoint_col(5000, 2048), checkpoint_col(2048, 2048)
    (1, -1)
    """
    return running_state_col(query_end, state_block_size) - 1


@rule
def is_checkpoint_valid(
    query_start: int,
    query_end: int,
    position: int,
    hash_block_size: int,
    state_block_size: int,
    checkpoint_alignment: int,
) -> bool:
    """Say whether the query [query_start, query_end) can export a state at `position`.

    Parameters
    ----------
    query_start, query_end : int
        Half-open token range that the step computes.
    position : int
        Token position of the checkpoint, from the sequence start.
    hash_block_size : int
        Tokens per prefix hash, at least 1.
    state_block_size : int
        Tokens per block-table column of the state group, at least 1.
    checkpoint_alignment : int
        The backend exports states only at multiples of this many tokens from `query_start`; 0 (`NO_ALIGNMENT`) or less
        means that it exports none.

    Notes
    -----
    The checkpoint's column must lie beyond the initial state's column floor((query_start - 1) / state_block_size), or
    the step would overwrite a state that another request may be reading. For an integer column c,
    floor((s - 1) / b) < c is the same as s <= c * b. Here c * b is the start of the column before the running state's,
    floor_to(query_end - 1, b) - b, so no second division is needed.

    Examples
    --------
    >>> bool(is_checkpoint_valid(8, 5000, 4992, 8, 2048, 8))
    True
    >>> bool(is_checkpoint_valid(8, 5000, 4992, 8, 2048, 16))  # 4984 is no multiple of 16
    False
    """
    start, position_ = int64(query_start), int64(position)
    alignment = int64(checkpoint_alignment)
    return (
        (alignment > 0)  # the backend can export states
        & is_multiple(start, hash_block_size)  # the query starts on the hash grid
        & (floor_to(int64(query_end) - 1, state_block_size) - int64(state_block_size) >= start)  # a column of its own
        & (position_ - start >= int64(hash_block_size))  # a whole hash block is computed before it
        & (position_ < int64(query_end))
        & is_multiple(position_ - start, max(alignment, int64(1)))  # the backend can export this one
    )


@rule
def prefill_checkpoint(
    query_start: int,
    query_end: int,
    unit: int,
    hash_block_size: int,
    state_block_size: int,
    checkpoint_alignment: int,
    drop_eagle_block: bool,
    num_lookahead_tokens: int,
) -> tuple[int, int]:
    """Return the checkpoint of one row: its offset into the query and its block-table column.

    Parameters
    ----------
    query_start, query_end : int
        Half-open token range that the step computes.
    unit, drop_eagle_block, num_lookahead_tokens
        See `checkpoint_position`.
    hash_block_size, state_block_size, checkpoint_alignment
        See `is_checkpoint_valid`.

    Returns
    -------
    tuple of int
        (offset, column), int64; (`NO_OFFSET`, `NO_BLOCK_COL`) where the row has no checkpoint.

    Examples
    --------
    >>> tuple(map(int, prefill_checkpoint(8, 5000, 8, 8, 2048, 8, False, 0)))
    (4984, 1)
    >>> tuple(map(int, prefill_checkpoint(8, 5000, 8, 8, 2048, 16, False, 0)))
    (0, -1)
    """
    position = checkpoint_position(query_end, unit, drop_eagle_block, num_lookahead_tokens)
    valid = is_checkpoint_valid(
        query_start, query_end, position, hash_block_size, state_block_size, checkpoint_alignment
    )
    offset = position - int64(query_start)
    col = checkpoint_col(query_end, state_block_size)
    return (offset if valid else int64(NO_OFFSET)), (col if valid else int64(NO_BLOCK_COL))
