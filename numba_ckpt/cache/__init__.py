"""Floor 3: memory: configuration, specs, groups, the block pool and its keys."""

from numba_ckpt.cache.block_pool import BlockPool
from numba_ckpt.cache.config import CacheConfig, EngineConfig, LimitsConfig, ParallelConfig, SpeculationConfig
from numba_ckpt.cache.groups import KVCacheConfig, KVCacheGroup, KVCacheTensor
from numba_ckpt.cache.merge_specs import UniformTypeSpecs, merge_specs
from numba_ckpt.cache.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from numba_ckpt.cache.state_spec import StateSpec

__all__ = [
    "AttentionSpec",
    "BlockPool",
    "CacheConfig",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "EngineConfig",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheGroup",
    "KVCacheSpec",
    "KVCacheTensor",
    "LimitsConfig",
    "MLAAttentionSpec",
    "ParallelConfig",
    "SlidingWindowSpec",
    "SpeculationConfig",
    "StateSpec",
    "UniformTypeSpecs",
    "merge_specs",
]
