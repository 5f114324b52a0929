"""What a row of a batch is - decode, prefill or padding - and which recurrent states it starts from and leaves.

A decode verifies drafts: it leaves one state after each of its tokens, in columns side by side, because only later is
it known how many of them stay. The next step starts from the state after the last accepted token. With columns of 512
tokens, 1022 tokens computed and a query of one token and two drafts::

    tokens computed      1023    1024    1025
    written to column    1       2       3         running_state_col(1023), and the columns after it
    both drafts accepted: the next step starts from column 3, found from (1025 tokens, 3 accepted) alone
"""

from numba_ckpt._jit import int64, rule
from numba_ckpt.rules.checkpoint import NO_BLOCK_COL, running_state_col

NO_REQUEST = -1
"""Request of a token that only pads a batch to a captured size."""


@rule
def is_prefill(query_len: int, is_prefilling: bool, num_draft_tokens: int) -> bool:
    """Say whether a row is a prefill; otherwise it is a decode, or padding.

    Parameters
    ----------
    query_len : int
        Tokens that the step computes of the row; padding has none, and is never a prefill.
    is_prefilling : bool
        Whether some of them belong to the prompt.
    num_draft_tokens : int
        Drafts that a decode may verify besides its one token.

    Examples
    --------
    >>> [bool(is_prefill(query_len, False, 3)) for query_len in (0, 1, 4, 5)]
    [False, False, False, True]
    >>> [bool(is_prefill(query_len, True, 3)) for query_len in (0, 1, 4, 5)]
    [False, True, True, True]
    """
    return (query_len > 0) & (bool(is_prefilling) | (int64(query_len) > int64(num_draft_tokens) + 1))


@rule
def accepted_state_col(num_tokens: int, num_accepted_tokens: int, state_block_size: int) -> int:
    """Return the column of the state after `num_tokens` tokens, of which a decode computed the last ones.

    Parameters
    ----------
    num_tokens : int
        Tokens that the state has seen.
    num_accepted_tokens : int
        How many of them that decode computed; 1 too where a prefill did.
    state_block_size : int
        Tokens per block-table column, at least 1.

    Returns
    -------
    int
        int64; -1 where `num_tokens` is 0 and one is accepted.

    Examples
    --------
    >>> [int(accepted_state_col(1022 + a, a, 512)) for a in (1, 2, 3)], int(accepted_state_col(0, 1, 512))
    ([1, 2, 3], -1)
    """
    num_drafts = int64(num_accepted_tokens) - 1
    return running_state_col(int64(num_tokens) - num_drafts, state_block_size) + num_drafts


@rule
def initial_state_col(num_computed_tokens: int, query_len: int, num_accepted_tokens: int, state_block_size: int) -> int:
    """Return the column of the state that a row starts from; -1 where there is none.

    Parameters
    ----------
    num_computed_tokens, query_len : int
        Tokens before the step, and in it; a row without tokens reads nothing.
    num_accepted_tokens : int
        Tokens that the row's last step computed and kept, if that was a decode; 1 otherwise.
    state_block_size : int
        Tokens per block-table column, at least 1.

    Examples
    --------
    >>> initial_state_col(1025, 1, 3, 512), initial_state_col(0, 9, 1, 512), initial_state_col(1025, 0, 1, 512)
    (3, -1, -1)
    """
    starts_from_a_state = (num_computed_tokens > 0) & (query_len > 0)
    col = accepted_state_col(num_computed_tokens, num_accepted_tokens, state_block_size)
    return col if starts_from_a_state else int64(NO_BLOCK_COL)


@rule
def step_state_col(num_computed_tokens: int, query_len: int, slot: int, is_decode: bool, state_block_size: int) -> int:
    """Return the column that takes a state of a row's query; -1 where the row leaves no such state.

    Parameters
    ----------
    num_computed_tokens, query_len : int
        Tokens before the step, and in it.
    slot : int
        Which state: for a decode the one after token `slot` of the query, for a prefill 0 is its last.
    is_decode : bool
        Whether the row leaves a state after every token.
    state_block_size : int
        Tokens per block-table column, at least 1.

    Examples
    --------
    >>> [int(step_state_col(1022, 2, slot, True, 512)) for slot in range(3)]
    [1, 2, -1]
    >>> [int(step_state_col(0, 1300, slot, False, 512)) for slot in range(3)]
    [2, -1, -1]
    """
    after_token = accepted_state_col(int64(num_computed_tokens) + slot + 1, int64(slot) + 1, state_block_size)
    at_end = running_state_col(int64(num_computed_tokens) + int64(query_len), state_block_size)
    is_left = (slot < query_len) & (bool(is_decode) | (slot == 0))
    return (after_token if is_decode else at_end) if is_left else int64(NO_BLOCK_COL)
