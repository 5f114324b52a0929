"""Layers, backends and configurations of a few lines, for the tests of this folder."""

from dataclasses import dataclass, field
from typing import Any

from numba_ckpt.attention import AttentionBackend, AttentionCGSupport, MetadataBuilder, MultipleOf
from numba_ckpt.cache import EngineConfig, FullAttentionSpec, KVCacheConfig, KVCacheGroup, KVCacheTensor

ANY_SIZE = (MultipleOf(1),)
SPEC = FullAttentionSpec(16, num_kv_heads=2, head_size=8, dtype="float16")


class CommonBuilder(MetadataBuilder):
    """Returns what it was given; captured always."""

    support = AttentionCGSupport.ALWAYS

    def build(self, common, common_prefix_len=0, **extra):
        return common

    def get_cudagraph_support(self):
        return self.support


def backend(name, sizes=ANY_SIZE, support=AttentionCGSupport.ALWAYS, exact=False, workspace=0):
    """Make a backend class."""
    builder = type(f"{name}Builder", (CommonBuilder,), {"support": support, "num_workspace_bytes": workspace})
    methods = {
        "builder_class": lambda cls: builder,
        "supported_kernel_block_sizes": lambda cls: sizes,
        "supports_device_cpu_query_lens_mismatch": lambda cls: not exact,
    }
    return type(name, (AttentionBackend,), {key: classmethod(method) for key, method in methods.items()})


PAGED = backend("Paged")


@dataclass
class Layer:
    """An attention layer; records what is bound to it."""

    backend: Any = PAGED
    kv_sharing_target_layer_name: str | None = None
    num_heads: Any = 8
    spec: Any = SPEC
    caches: list = field(default_factory=list)

    def get_kv_cache_spec(self, config):
        return self.spec

    def get_attn_backend(self):
        return self.backend

    def bind_kv_cache(self, cache):
        self.caches.append(cache)


def engine_config(num_ubatches=1, fast_prefill=False):
    limits = {"max_num_requests": 8, "max_num_batched_tokens": 256, "max_model_len": 512}
    parallel, cache = {"num_ubatches": num_ubatches}, {"kv_sharing_fast_prefill": fast_prefill}
    return EngineConfig.from_dict({"limits": limits, "parallel": parallel, "cache": cache})


def kv_cache_config(*groups):
    """Make a configuration of (layer names, spec) pairs, every layer in memory of its own."""
    groups = tuple(KVCacheGroup(names, spec) for names, spec in groups)
    tensors = tuple(
        KVCacheTensor(4 * group.spec_of(name).page_size_bytes, (name,))
        for group in groups
        for name in group.layer_names
        if group.spec_of(name).has_layer_views
    )
    return KVCacheConfig(4, groups, tensors)
