"""Floor 6: which prompts share a prefix, and which block holds the state at its end. Host only."""

from numba_ckpt.prefix_cache.prefix_index import IndexCounters, PrefixIndex
from numba_ckpt.prefix_cache.prefix_keys import PrefixKey, PrefixKeys
from numba_ckpt.prefix_cache.state_pool import StatePool

__all__ = ["IndexCounters", "PrefixIndex", "PrefixKey", "PrefixKeys", "StatePool"]
