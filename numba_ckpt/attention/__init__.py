"""Attention plumbing: backends, groups, CUDA-graph support, metadata of each step, fast prefill, multimodal ranges."""

from numba_ckpt.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionCGSupportInfo,
    AttentionLayer,
    MetadataBuilder,
    MultipleOf,
)

__all__ = [
    "AttentionBackend",
    "AttentionCGSupport",
    "AttentionCGSupportInfo",
    "AttentionLayer",
    "MetadataBuilder",
    "MultipleOf",
]
