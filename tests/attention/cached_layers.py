"""Layers that only remember what was bound to them."""

from dataclasses import dataclass, field
from typing import Any

from numba_ckpt.attention import AttentionBackend, MultipleOf
from numba_ckpt.cache import EngineConfig, FullAttentionSpec, LimitsConfig, SlidingWindowSpec, StateSpec

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
