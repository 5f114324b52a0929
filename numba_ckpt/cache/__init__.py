"""Floor 3: memory: configuration, specs, groups, allocation and views, the block pool and its keys."""

from numba_ckpt.cache.allocation import allocate_kv_cache, groups_to_zero
from numba_ckpt.cache.block_pool import BlockPool
from numba_ckpt.cache.block_tables import BlockTables
from numba_ckpt.cache.config import CacheConfig, EngineConfig, LimitsConfig, ParallelConfig, SpeculationConfig
from numba_ckpt.cache.groups import KVCacheConfig, KVCacheGroup, KVCacheTensor
from numba_ckpt.cache.host_tier import HostTier
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.cache.memory_plan import MemoryPlan, plan_memory
from numba_ckpt.cache.merge_specs import UniformTypeSpecs, merge_specs
from numba_ckpt.cache.plan_groups import plan_kv_cache
from numba_ckpt.cache.spec_kinds import spec_from_dict
from numba_ckpt.cache.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from numba_ckpt.cache.state_spec import StateSpec
from numba_ckpt.cache.storage import KVCacheStorage
from numba_ckpt.cache.views import split_kv, view_caches

__all__ = [
    "AttentionSpec",
    "BlockPool",
    "BlockTables",
    "CacheConfig",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "EngineConfig",
    "FullAttentionSpec",
    "HostTier",
    "KVCacheConfig",
    "KVCacheGroup",
    "KVCacheSpec",
    "KVCacheStorage",
    "KVCacheTensor",
    "LimitsConfig",
    "MLAAttentionSpec",
    "MemoryPlan",
    "ParallelConfig",
    "SlidingWindowSpec",
    "SpeculationConfig",
    "StateSpec",
    "UniformTypeSpecs",
    "allocate_kv_cache",
    "groups_to_zero",
    "merge_specs",
    "plan_kv_cache",
    "plan_memory",
    "spec_from_dict",
    "split_kv",
    "view_caches",
]
