"""Attention plumbing: backends, groups, CUDA-graph support, metadata of each step, fast prefill, multimodal ranges."""

from numba_ckpt.attention.attention_group import AttentionGroup
from numba_ckpt.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionCGSupportInfo,
    AttentionLayer,
    MetadataBuilder,
    MultipleOf,
)
from numba_ckpt.attention.binding import BoundCaches, bind_kv_cache_to_layers, init_kv_cache
from numba_ckpt.attention.build_metadata import build_attn_metadata
from numba_ckpt.attention.cache_placement import CachePlacement
from numba_ckpt.attention.cg_support import get_attn_cg_support, get_query_lens_mismatch_unsupported_backend
from numba_ckpt.attention.common_metadata import CommonAttentionMetadata
from numba_ckpt.attention.fast_prefill import (
    FastPrefillBatchMetadata,
    FastPrefillHelper,
    get_kv_sharing_fast_prefill_eligible_layers,
)
from numba_ckpt.attention.groups import init_attn_backend
from numba_ckpt.attention.kernel_block_sizes import (
    check_peer_kernel_block_sizes,
    prepare_kernel_block_sizes,
    select_kernel_block_size,
    select_peer_kernel_block_size,
)
from numba_ckpt.attention.kv_cache_specs import (
    add_kv_sharing_layers_to_kv_cache_groups,
    get_kv_cache_spec,
    get_shared_kv_cache_layers,
)
from numba_ckpt.attention.mm_ranges import MMFeature, MMPrefixRanges, compute_mm_prefix_ranges
from numba_ckpt.attention.no_op import NoOpBackend, NoOpBuilder
from numba_ckpt.attention.paged_attention import (
    PagedAttentionBackend,
    PagedAttentionBuilder,
    PagedAttentionMetadata,
)
from numba_ckpt.attention.recurrent_metadata import RecurrentStateMetadata
from numba_ckpt.attention.recurrent_state import RecurrentStateBackend, RecurrentStateBuilder
from numba_ckpt.attention.slot_mappings_by_layer import build_slot_mappings_by_layer
from numba_ckpt.attention.step_batch import MetadataOptions, ModelSpecificMetadata, StepBatch

__all__ = [
    "AttentionBackend",
    "AttentionCGSupport",
    "AttentionCGSupportInfo",
    "AttentionGroup",
    "AttentionLayer",
    "BoundCaches",
    "CachePlacement",
    "CommonAttentionMetadata",
    "FastPrefillBatchMetadata",
    "FastPrefillHelper",
    "MMFeature",
    "MMPrefixRanges",
    "MetadataBuilder",
    "MetadataOptions",
    "ModelSpecificMetadata",
    "MultipleOf",
    "NoOpBackend",
    "NoOpBuilder",
    "PagedAttentionBackend",
    "PagedAttentionBuilder",
    "PagedAttentionMetadata",
    "RecurrentStateBackend",
    "RecurrentStateBuilder",
    "RecurrentStateMetadata",
    "StepBatch",
    "add_kv_sharing_layers_to_kv_cache_groups",
    "bind_kv_cache_to_layers",
    "build_attn_metadata",
    "build_slot_mappings_by_layer",
    "check_peer_kernel_block_sizes",
    "compute_mm_prefix_ranges",
    "get_attn_cg_support",
    "get_kv_cache_spec",
    "get_kv_sharing_fast_prefill_eligible_layers",
    "get_query_lens_mismatch_unsupported_backend",
    "get_shared_kv_cache_layers",
    "init_attn_backend",
    "init_kv_cache",
    "prepare_kernel_block_sizes",
    "select_kernel_block_size",
    "select_peer_kernel_block_size",
]
