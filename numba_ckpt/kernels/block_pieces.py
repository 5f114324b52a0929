"""Where the bytes of every block lie, as kernels that move whole blocks read it."""

from typing import NamedTuple

import numpy as np

from numba_ckpt._array import Array
from numba_ckpt._check import refuse
from numba_ckpt._jit import host_loop

__all__ = ["BlockPieces", "check_block_ids"]


class BlockPieces(NamedTuple):
    """The pieces of memory that make up a block, in words of 1, 2, 4 or 8 bytes; bytes that layers share count once.

    Attributes
    ----------
    words : Array
        [words], the whole allocation.
    pieces : Array
        int64 [P, 3]: for block 0 where a piece begins, from a block to the next, and its size; all in words.
    num_blocks : int
        Blocks of the pool, the null block among them.
    max_words : int
        Size of the largest piece.
    """

    words: Array
    pieces: Array
    num_blocks: int
    max_words: int


@host_loop
def _first_outside(block_ids, num_blocks):  # type: ignore[no-untyped-def]
    """First entry that is no block of the pool; -1 if there is none."""
    for k in range(block_ids.size):
        if block_ids[k] < 0 or block_ids[k] >= num_blocks:
            return k
    return -1


def check_block_ids(name: str, block_ids: np.ndarray, num_blocks: int) -> None:
    """Refuse ids outside the pool; for arrays on the host, whose values can be read."""
    if (bad := int(_first_outside(np.asarray(block_ids), num_blocks))) >= 0:
        got = f"{block_ids[bad]} at entry {bad}"
        refuse(name, f"block ids in [0, {num_blocks})", got, "pass ids of this pool")
