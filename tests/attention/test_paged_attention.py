"""The paged backend: what it takes from the spec, which tables it refuses, and when it reuses a plan."""

import numpy as np
import pytest

from numba_ckpt.attention import (
    AttentionCGSupport,
    CommonAttentionMetadata,
    MetadataOptions,
    PagedAttentionBackend,
    PagedAttentionBuilder,
    StepBatch,
    build_attn_metadata,
    get_attn_cg_support,
    init_attn_backend,
)
from numba_ckpt.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EngineConfig,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from numba_ckpt.errors import ArgumentError
from tests.attention.layers import Layer, engine_config, kv_cache_config

HEADS = {"num_kv_heads": 2, "head_size": 4}
FULL, WINDOW = FullAttentionSpec(16, **HEADS), SlidingWindowSpec(16, **HEADS, sliding_window=20)
STARTS = np.array([0, 3, 4])


def common_of(num_cols=3, max_seq_len=40, num_reqs=2, **more):
    lens = np.array([3, max_seq_len])
    batch = StepBatch(num_reqs, 4, STARTS, STARTS, lens, max_query_len=3, max_seq_len=max_seq_len)
    return CommonAttentionMetadata(batch, 0, np.ones((2, num_cols), np.int32), np.arange(4), **more)


def builder_of(spec=FULL, config=None, kernel_block_size=None):
    return PagedAttentionBuilder(spec, ("a",), config or engine_config(), kernel_block_size)


def with_ranks(cp_size):
    limits = {"max_num_requests": 2, "max_num_batched_tokens": 8, "max_model_len": 512}
    return EngineConfig.from_dict({"limits": limits, "parallel": {"cp_size": cp_size}})


@pytest.mark.parametrize(
    ("spec", "sees"),
    [
        (FULL, (None, None)),
        (FullAttentionSpec(16, **HEADS, sliding_window=30), (30, None)),
        (FullAttentionSpec(16, **HEADS, attention_chunk_size=32), (None, 32)),
        (MLAAttentionSpec(16, num_kv_heads=1, head_size=8), (None, None)),
        (WINDOW, (20, None)),
        (ChunkedLocalAttentionSpec(16, **HEADS, attention_chunk_size=64), (None, 64)),
    ],
)
def test_what_a_token_sees_is_the_specs(spec, sees):
    metadata = builder_of(spec).build(common_of())
    assert (metadata.sliding_window, metadata.attention_chunk_size) == sees


def test_the_step_is_handed_on_without_copies():
    common = common_of(causal=False)
    metadata = builder_of().build(common, 32)
    assert metadata.batch is common.batch
    assert metadata.block_table is common.block_table
    assert metadata.slot_mapping is common.slot_mapping
    assert (metadata.causal, metadata.common_prefix_len) == (False, 32)


@pytest.mark.parametrize(("kernel_block_size", "block_size"), [(None, 16), (4, 4)])
def test_blocks_are_the_kernels(kernel_block_size, block_size):
    builder = builder_of(kernel_block_size=kernel_block_size)
    assert builder.build(common_of(num_cols=10)).block_size == block_size


@pytest.mark.parametrize(
    ("spec", "cp_size", "num_cols"),
    [(FULL, 1, 3), (FULL, 2, 2), (WINDOW, 2, 3), (CrossAttentionSpec(16, **HEADS, max_encoder_len=16), 1, 1)],
    ids=["full", "sharded", "replicated", "of an encoder"],
)
def test_a_table_has_columns_for_the_longest_sequence(spec, cp_size, num_cols):
    builder = builder_of(spec, with_ranks(cp_size))
    metadata = builder.build(common_of(num_cols))
    if isinstance(spec, CrossAttentionSpec):
        return
    with pytest.raises(ArgumentError, match=r"block_table: expected columns for 40 tokens, got .+; gather whole rows"):
        builder.build(common_of(num_cols - 1))
    with pytest.raises(ArgumentError, match=r"block_table: expected columns for 40 tokens"):
        builder.update_block_table(metadata, np.ones((2, num_cols - 1), np.int32), metadata.slot_mapping)


def test_a_batch_without_rows_needs_no_columns():
    assert builder_of().build(common_of(0, num_reqs=0)).block_table.shape == (2, 0)


def test_another_groups_table_replaces_the_first_ones():
    metadata = builder_of().build(common_of())
    table, slots = np.full((2, 3), 9, np.int32), np.arange(4) + 100
    other = builder_of().update_block_table(metadata, table, slots)
    assert (other.block_table, other.slot_mapping) == (table, slots)
    assert other[3:] == metadata[3:]
    assert other.batch is metadata.batch
    assert metadata.block_table is not table


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: builder_of().build(common_of(), 41), ("common_prefix_len", "[0, 40]", "41")),
        (lambda: builder_of().build(common_of(), -1), ("common_prefix_len", "-1")),
        (lambda: builder_of().build(common_of(), 1.5), ("common_prefix_len", "1.5")),
        (lambda: builder_of().build(common_of(), tag=1, other=2), ("extra", "tag, other")),
        (lambda: builder_of(kernel_block_size=8).build(common_of(4)), ("block_table", "4 of 8")),
    ],
    ids=["a prefix beyond all", "a negative prefix", "half a token", "unknown extras", "kernel blocks too few"],
)
def test_mistakes_are_refused(call, parts):
    with pytest.raises(ArgumentError, match=r"expected .+, got .+; \w+") as raised:
        call()
    for part in parts:
        assert part in str(raised.value)


def test_a_model_of_two_specs_is_planned_from_its_layers():
    layers = {name: Layer(PagedAttentionBackend, spec=spec) for name, spec in (("a", FULL), ("b", WINDOW), ("c", FULL))}
    plan = kv_cache_config((("a",), FULL), (("b",), WINDOW), (("c",), FULL))
    groups, support, sizes = init_attn_backend(plan, layers, engine_config())
    assert (support.min_cg_support, sizes) == (AttentionCGSupport.ALWAYS, [16, 16, 16])
    assert get_attn_cg_support(groups) == support
    common = common_of()
    tables = [np.full((2, 3), index + 1, np.int32) for index in range(3)]
    for capture in (False, True):
        metadata = build_attn_metadata(
            groups, common.batch, tables, np.zeros((3, 4), np.int64), MetadataOptions(for_cudagraph_capture=capture)
        )
        assert [metadata[name].sliding_window for name in "abc"] == [None, 20, None]
        assert [metadata[name].block_table is tables[index] for index, name in enumerate("abc")] == [True] * 3
