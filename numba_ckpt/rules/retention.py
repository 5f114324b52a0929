"""Which states of a prompt are worth keeping."""

from numba_ckpt._jit import int64, rule
from numba_ckpt.rules.arithmetic import floor_to, is_multiple


@rule
def is_state_kept(position: int, interval: int, last_boundary: int, junction: int, state_block_size: int) -> bool:
    """Say whether the state after `position` tokens of a prompt is kept for others.

    Parameters
    ----------
    position : int
        Tokens that the state has seen, at least 0.
    interval : int
        States at its multiples are kept; 0 keeps the proven ones alone.
    last_boundary, junction : int
        The proven boundaries: the last one of the prompt that a hit may reach, and where an earlier prompt with the
        same prefix went another way; 0 where there is none.
    state_block_size : int
        Tokens per block-table column of the state group, at least 1. A chunk that cannot stop on a proven boundary
        stops on the block end before it, so that is kept too.

    Examples
    --------
    >>> [bool(is_state_kept(position, 0, 5008, 3000, 2048)) for position in (5008, 4096, 3000, 2048, 1024)]
    [True, True, True, True, False]
    """
    state, last, other = int64(position), int64(last_boundary), int64(junction)
    on_interval = (interval > 0) & is_multiple(state, max(int64(interval), int64(1)))
    on_last = (state == last) | (state == floor_to(last, state_block_size))
    return on_interval | on_last | (state == other) | (state == floor_to(other, state_block_size))
