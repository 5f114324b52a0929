"""Floor 3: memory: the block pool and its keys."""

from numba_ckpt.cache.block_pool import BlockPool

__all__ = ["BlockPool"]
