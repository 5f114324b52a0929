"""The backend of eligible layers: a batch of the logits' tokens, and only in steps on the fast path."""

import numpy as np
import pytest

from numba_ckpt.attention import FastPrefillHelper
from numba_ckpt.attention.build_metadata import build_attn_metadata
from numba_ckpt.attention.common_metadata import CommonAttentionMetadata
from numba_ckpt.attention.fast_prefill_backend import FastPrefillMetadata, logits_batch
from numba_ckpt.attention.groups import init_attn_backend
from numba_ckpt.attention.step_batch import MetadataOptions, StepBatch
from numba_ckpt.errors import ArgumentError
from tests.attention.layers import PAGED, SPEC, Layer, engine_config, kv_cache_config


@pytest.fixture
def groups():
    layers = {"a": Layer(), "b": Layer(), "c": Layer(PAGED, "b")}
    config = kv_cache_config((("a", "b"), SPEC))
    return init_attn_backend(config, layers, engine_config(fast_prefill=True))[0]


def batch_of(query_lens, seq_lens):
    starts = np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32)
    num_tokens = int(starts[-1])
    positions = np.concatenate([np.arange(seq - query, seq) for query, seq in zip(query_lens, seq_lens, strict=True)])
    return StepBatch(
        len(query_lens),
        num_tokens,
        starts,
        starts.copy(),
        np.array(seq_lens, np.int32),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        positions=positions,
    )


def build(groups, batch, step):
    table = np.ones((batch.num_reqs, 3), np.int32)
    slots = np.arange(batch.num_tokens)
    return build_attn_metadata(groups, batch, [table], slots[None], MetadataOptions(fast_prefill=step))


def test_eligible_layers_see_the_tokens_of_the_logits(groups):
    # A decode that verifies drafts, two prefills, and a row of padding.
    batch = batch_of([3, 8, 5, 0], [30, 8, 20, 0])
    helper = FastPrefillHelper(lambda num_tokens, **_: 8, np.zeros(16, np.int32))
    step = helper.prepare(np.array([0, 1, 2, 10, 15]), np.array([0, 3, 4, 5]), has_prefill=True)
    metadata = build(groups, batch, step)
    assert metadata["a"] is metadata["b"]
    assert metadata["a"].batch is batch
    reduced = metadata["c"]
    assert isinstance(reduced, FastPrefillMetadata)
    assert reduced.logits_indices_padded.tolist() == [0, 1, 2, 10, 15, 15, 15, 15]
    assert reduced.num_logits_indices == 5
    inner = reduced.inner.batch
    assert inner.query_start_loc.tolist() == inner.query_start_loc_cpu.tolist() == [0, 3, 4, 5, 5]
    assert (inner.num_reqs, inner.num_tokens, inner.max_query_len, inner.max_seq_len) == (4, 5, 3, 30)
    assert inner.seq_lens.tolist() == [30, 8, 20, 0]
    assert inner.positions is None
    assert inner.token_to_req_indices().tolist() == [0, 0, 0, 1, 2]
    assert batch.query_start_loc.tolist() == [0, 3, 11, 16, 16]


def test_other_steps_are_built_as_ever(groups):
    metadata = build(groups, batch_of([1, 1], [30, 8]), None)
    assert metadata["c"].batch is metadata["a"].batch


def test_metadata_of_all_tokens_is_never_taken_over(groups):
    assert not groups[0][1].metadata_builders[0].supports_update_block_table


def test_a_step_prepared_for_another_batch_is_refused(groups):
    helper = FastPrefillHelper(lambda num_tokens, **_: num_tokens, np.zeros(16, np.int32))
    step = helper.prepare(np.array([0, 1, 2]), np.array([0, 1, 2, 3]), has_prefill=True)
    with pytest.raises(ArgumentError, match=r"fast_prefill: expected logits of at most 2 requests, got 3"):
        build(groups, batch_of([1, 2], [30, 8]), step)
    one_more = helper.prepare(np.array([0, 1]), np.array([0, 1, 2]), has_prefill=True)
    with pytest.raises(ArgumentError, match=r"fast_prefill: expected logits of at most 1 tokens, got 2 of 2 staged"):
        build(groups, batch_of([1, 0], [30, 8]), one_more)
    common = CommonAttentionMetadata(batch_of([1], [3]), 0, np.ones((1, 1), np.int32), np.arange(1))
    with pytest.raises(ArgumentError, match=r"fast_prefill: expected what FastPrefillHelper.prepare returned"):
        logits_batch(common)


@pytest.mark.parametrize(
    ("logits", "cu_num_logits", "got"),
    [
        ([0, 1, 2, 10, 99], [0, 3, 4, 5], "token 15 for logit 4, got 99"),  # beyond the batch
        ([0, 1, 2, 10, 15], [0, 2, 4, 5], "token 1 for logit 0, got 0"),  # another request's
        ([0, 1, 2, 9, 15], [0, 3, 4, 5], "token 10 for logit 3, got 9"),  # not the last one
        ([2, 1, 0, 10, 15], [0, 3, 4, 5], "token 0 for logit 0, got 2"),
    ],
)
def test_other_logits_than_of_last_tokens_are_refused(groups, logits, cu_num_logits, got):
    helper = FastPrefillHelper(lambda num_tokens, **_: num_tokens, np.zeros(16, np.int32))
    step = helper.prepare(np.array(logits), np.array(cu_num_logits), has_prefill=True)
    with pytest.raises(ArgumentError, match=f"fast_prefill: expected each request's last tokens: {got}"):
        build(groups, batch_of([3, 8, 5], [30, 8, 20]), step)
