"""Chunks of a scan that exposes its state only at chunk ends (Mamba2's SSD)."""

from numba_ckpt._jit import int64, rule
from numba_ckpt.rules.arithmetic import floor_to


@rule
def next_chunk_boundary(position: int, chunk_size: int) -> int:
    """Return where the chunk that starts at `position` ends unless its row or a checkpoint ends it sooner.

    The grid counts from the sequence start, not from the query's.

    Parameters
    ----------
    position : int
        Token position in the sequence, at least 0.
    chunk_size : int
        Tokens per chunk, at least 1.

    Returns
    -------
    int
        int64, the least multiple of `chunk_size` above `position`.

    Examples
    --------
    >>> next_chunk_boundary(0, 128), next_chunk_boundary(100, 128), next_chunk_boundary(128, 128)
    (128, 128, 256)
    """
    return floor_to(position, chunk_size) + int64(chunk_size)
