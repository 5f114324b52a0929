"""Floor 6: which prompts share a prefix, and which block holds the state at its end. Host only."""

from numba_ckpt.prefix_cache.chunk_split import PrefillProgress, SplitPolicy, split_prefill, split_tokens
from numba_ckpt.prefix_cache.counters import CacheCounters, CacheWarning
from numba_ckpt.prefix_cache.explain import BoundaryVerdict, explain
from numba_ckpt.prefix_cache.groups import CacheConfig, CacheGroup
from numba_ckpt.prefix_cache.ledger import WriteLedger
from numba_ckpt.prefix_cache.manager import HybridPrefixCache
from numba_ckpt.prefix_cache.prefix_hashes import ExtraKey, PrefixHasher, PrefixState
from numba_ckpt.prefix_cache.request import CachedRequest, ChunkReservation, PrefixHit
from numba_ckpt.prefix_cache.retention import DENSE, PROVEN, Retention
from numba_ckpt.prefix_cache.step import CacheStep

__all__ = [
    "DENSE",
    "PROVEN",
    "BoundaryVerdict",
    "CacheConfig",
    "CacheCounters",
    "CacheGroup",
    "CacheStep",
    "CacheWarning",
    "CachedRequest",
    "ChunkReservation",
    "ExtraKey",
    "HybridPrefixCache",
    "PrefillProgress",
    "PrefixHasher",
    "PrefixHit",
    "PrefixState",
    "Retention",
    "SplitPolicy",
    "WriteLedger",
    "explain",
    "split_prefill",
    "split_tokens",
]
