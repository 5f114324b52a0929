"""Which block ids stand for a block that may be written."""

from numba_ckpt._jit import rule
from numba_ckpt.rules.checkpoint import NULL_BLOCK_ID
from numba_ckpt.rules.export import is_inside


@rule
def is_pool_block(block: int, num_blocks: int) -> bool:
    """Say whether `block` lies in the pool and is not the null block, which is never written.

    Parameters
    ----------
    block : int
        Any int64.
    num_blocks : int
        Blocks of the pool, the null block among them.

    Examples
    --------
    >>> [bool(is_pool_block(block, 10)) for block in (-1, 0, 1, 9, 10)]
    [False, False, True, True, False]
    """
    return (block != NULL_BLOCK_ID) & is_inside(block, num_blocks)
