"""Layers that only remember what was bound to them."""

from dataclasses import dataclass, field
from typing import Any

from numba_ckpt.attention import AttentionBackend, MultipleOf, get_kv_cache_spec
from numba_ckpt.cache import (
    EngineConfig,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheTensor,
    LimitsConfig,
    SlidingWindowSpec,
    StateSpec,
    plan_kv_cache,
)

NUM_BLOCKS = 12
CONFIG = EngineConfig(LimitsConfig(max_num_requests=4, max_num_batched_tokens=64, max_model_len=256))
FULL = FullAttentionSpec(8, num_kv_heads=2, head_size=4, dtype="float16")
WINDOW = SlidingWindowSpec(8, num_kv_heads=2, head_size=4, dtype="float16", sliding_window=20)
STATE = StateSpec(8, shapes=((3, 8), (4, 8)), dtypes=("float16", "float32"), page_size_padded=256)


class AnySize(AttentionBackend):
    """Reads blocks of any size."""


class Sixteen(AttentionBackend):
    @classmethod
    def supported_kernel_block_sizes(cls):
        return (16,)


class EightOrSixteen(AttentionBackend):
    @classmethod
    def supported_kernel_block_sizes(cls):
        return (8, 16)


class MultiplesOf16(AttentionBackend):
    @classmethod
    def supported_kernel_block_sizes(cls):
        return (MultipleOf(16),)


@dataclass
class Layer:
    spec: Any = None
    kv_sharing_target_layer_name: str | None = None
    backend: Any = AnySize
    num_heads: int = 4
    bound: list = field(default_factory=list)

    def get_kv_cache_spec(self, config):
        return self.spec

    def get_attn_backend(self):
        return self.backend

    def bind_kv_cache(self, cache):
        self.bound.append(cache)


def hybrid():
    """Two recurrent layers, two of attention, one that reads the second one's cache, and one without."""
    return {
        "layers.0.mixer": Layer(STATE, num_heads=0),
        "layers.1.attn": Layer(FULL),
        "layers.2.mixer": Layer(STATE, num_heads=0),
        "layers.3.attn": Layer(FULL),
        "layers.4.attn": Layer(kv_sharing_target_layer_name="layers.3.attn"),
        "layers.5.encoder": Layer(),
    }


def planned(layers, num_blocks=NUM_BLOCKS):
    return plan_kv_cache(get_kv_cache_spec(layers, CONFIG), num_blocks=num_blocks)


def hosted(layers):
    """All of the attention layers in a group on the host."""
    config = planned(layers)
    specs = {name: config.spec_of(name) for name in ("layers.1.attn", "layers.3.attn")}
    groups = [group for group in config.groups if "layers.1.attn" not in group.layer_names]
    groups.append(KVCacheGroup(tuple(specs), FULL.padded_to(256), is_host_resident=True))
    page = groups[0].spec.page_size_bytes
    tensors = [KVCacheTensor(NUM_BLOCKS * page, (name,)) for group in groups for name in group.layer_names]
    return KVCacheConfig(NUM_BLOCKS, tuple(groups), tuple(tensors))
