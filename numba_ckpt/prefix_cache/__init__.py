"""Floor 6: which prompts share a prefix, and which block holds the state at its end. Host only."""

from numba_ckpt.prefix_cache.chunk_split import PrefillProgress, SplitPolicy, split_prefill, split_tokens
from numba_ckpt.prefix_cache.prefix_hashes import ExtraKey, PrefixHasher, PrefixState
from numba_ckpt.prefix_cache.prefix_index import IndexCounters, PrefixIndex
from numba_ckpt.prefix_cache.prefix_keys import PrefixKey, PrefixKeys
from numba_ckpt.prefix_cache.state_pool import StatePool

__all__ = [
    "ExtraKey",
    "IndexCounters",
    "PrefillProgress",
    "PrefixHasher",
    "PrefixIndex",
    "PrefixKey",
    "PrefixKeys",
    "PrefixState",
    "SplitPolicy",
    "StatePool",
    "split_prefill",
    "split_tokens",
]
