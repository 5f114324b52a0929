"""Which tokens before a boundary an attention group must still hold."""

from numba_ckpt._jit import int64, rule
from numba_ckpt.rules.arithmetic import floor_to


@rule
def sliding_window_start(position: int, window: int) -> int:
    """Return the first token that the token at `position` sees, in tokens from the sequence start.

    Parameters
    ----------
    position : int
        Token position, at least 0.
    window : int
        Tokens that a token sees, itself included; at least 1.

    Examples
    --------
    >>> sliding_window_start(100, 32), sliding_window_start(10, 32)
    (69, 0)
    """
    return max(int64(position) - int64(window) + 1, int64(0))


@rule
def local_chunk_start(position: int, chunk: int) -> int:
    """Return the first token that the token at `position` sees where attention stays inside chunks.

    Parameters
    ----------
    position : int
        Token position, at least 0.
    chunk : int
        Tokens per attention chunk, at least 1.

    Examples
    --------
    >>> local_chunk_start(100, 32), local_chunk_start(96, 32), local_chunk_start(95, 32)
    (96, 96, 64)
    """
    return floor_to(position, chunk)
