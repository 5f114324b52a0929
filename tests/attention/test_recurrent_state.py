"""Recurrent layers' metadata, against a list oracle, reported failures by id, and mistakes."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.attention import (
    AttentionCGSupport,
    AttentionGroup,
    CommonAttentionMetadata,
    RecurrentStateBackend,
    RecurrentStateBuilder,
    StepBatch,
    build_attn_metadata,
)
from numba_ckpt.cache import EngineConfig, FullAttentionSpec, StateSpec
from numba_ckpt.errors import ArgumentError

BLOCK, HASH = 8, 4
MAX_REQS, MAX_LEN = 8, 64


class ChunkedBuilder(RecurrentStateBuilder):
    chunk_size = 2 * HASH  # so that every other checkpoint cuts a chunk


def config_of(num_drafts=0, alignment=HASH, mode="align", **limits):
    return EngineConfig.from_dict(
        {
            "limits": {"max_num_requests": MAX_REQS, "max_num_batched_tokens": 256, "max_model_len": MAX_LEN} | limits,
            "cache": {
                "mode": mode,
                "block_size": BLOCK,
                "hash_block_size": HASH,
                "cache_hit_alignment_tokens": alignment,
            },
            "speculation": {"num_draft_tokens": num_drafts},
        }
    )


def spec_of(num_drafts=0, **changes):
    fields = {"num_speculative_blocks": num_drafts, "num_checkpoint_blocks": 1, "checkpoint_alignment": HASH} | changes
    return StateSpec(BLOCK, ((4, 8),), ("float32",), **fields)


def builder_of(num_drafts=0, builder=ChunkedBuilder, mode="align", **changes):
    return builder(spec_of(num_drafts, cache_mode=mode, **changes), ("mixer",), config_of(num_drafts, mode=mode))


def common_of(rows, table=None, flags=None, num_tokens=None, **extra):
    """Rows are (tokens before, tokens of the query)."""
    query_lens = [query for _, query in rows]
    starts = np.concatenate(([0], np.cumsum(query_lens, dtype=np.int64)))
    seq_lens = np.array([computed + query for computed, query in rows], np.int64)
    bounds = int(max(query_lens, default=0)), int(seq_lens.max(initial=0))
    flags = None if flags is None else np.array(flags, np.bool_)
    batch = StepBatch(len(rows), num_tokens or int(starts[-1]), starts, starts, seq_lens, *bounds, is_prefilling=flags)
    table = table_of(len(rows)) if table is None else table
    slots = np.full(batch.num_tokens, -1, np.int64)
    return CommonAttentionMetadata(batch, 0, table, slots, is_prefilling=flags, extra=extra)


def table_of(num_rows, num_cols=MAX_LEN // BLOCK + 4):
    return np.arange(1, num_rows * num_cols + 1, dtype=np.int32).reshape(num_rows, num_cols)


def oracle(rows, table, num_decodes, num_slots, accepted):
    """(initial, written) of every row that an engine may have, told token by token."""
    initial, written = [0] * MAX_REQS, [[0] * num_slots for _ in range(MAX_REQS)]
    for row, (computed, query) in enumerate(rows):
        if query and computed:
            # The last step of a decode left a state after each token, side by side from where the first one lies.
            kept = accepted[row] if row < num_decodes else 1
            first = computed - kept + 1
            initial[row] = int(table[row, (first - 1) // BLOCK + kept - 1])
        for token in range(query if row < num_decodes else 0):
            written[row][token] = int(table[row, computed // BLOCK + token])
        if query and row >= num_decodes:
            written[row][0] = int(table[row, (computed + query - 1) // BLOCK])
    return initial, written


@st.composite
def batches(draw):
    num_drafts = draw(st.integers(0, 3))
    decodes = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1 + num_drafts)), max_size=3))
    prefills = draw(st.lists(st.tuples(st.sampled_from([0, 0, 4, 8, 12, 13]), st.integers(1, 40)), max_size=3))
    padding = [(draw(st.integers(0, 3)), 0) for _ in range(draw(st.integers(0, 2)))]
    accepted = [draw(st.integers(1, min(1 + num_drafts, computed))) for computed, _ in decodes]
    return num_drafts, decodes, prefills, padding, accepted


@settings(deadline=None, max_examples=200)
@given(batches())
def test_every_row_reads_and_writes_what_lists_say(case):
    num_drafts, decodes, prefills, padding, accepted = case
    rows = [*decodes, *prefills, *padding]
    flags = [False] * len(decodes) + [True] * len(prefills) + [True] * len(padding)
    common = common_of(rows, flags=flags)
    metadata = builder_of(num_drafts).build(common, num_accepted_tokens=np.array([*accepted, 1]))
    live = [index for index, (_, query) in enumerate(decodes) if query]
    num_decodes = live[-1] + 1 if live else 0
    assert metadata.num_decodes == num_decodes
    assert metadata.prefill_rows.tolist() == list(range(len(decodes), len(decodes) + len(prefills)))
    assert metadata.num_decode_tokens == sum(query for _, query in decodes)
    assert metadata.num_prefill_tokens == sum(query for _, query in prefills)
    initial, written = oracle(rows, common.block_table, num_decodes, 1 + num_drafts, accepted)
    assert metadata.state_indices.initial.tolist() == initial
    assert metadata.state_indices.written.tolist() == written
    has_initial = [row < len(rows) and bool(rows[row][0] and rows[row][1]) for row in range(MAX_REQS)]
    assert metadata.state_indices.has_initial.tolist() == has_initial
    _check_prefills(metadata, prefills)


def _check_prefills(metadata, prefills):
    """Chunks cover the prefills' tokens, and end on their checkpoints."""
    if not prefills:
        assert metadata.checkpoint is metadata.chunk_layout is None
        return
    ends = metadata.chunk_layout.cu_chunk_seqlens[1:].tolist()
    assert sum(np.diff([0, *ends])) == sum(query for _, query in prefills)
    offsets = [0] * len(prefills) if metadata.checkpoint is None else metadata.checkpoint.offsets_cpu.tolist()
    start = 0
    for offset, (computed, query) in zip(offsets, prefills, strict=True):
        assert not offset or (computed + offset) % HASH == 0
        assert not offset or start + offset in ends
        start += query


def test_b09_checkpoints_and_chunks_are_of_prefills_alone():
    rows = [(9, 1), (30, 1), (0, 20), (8, 24)]
    metadata = builder_of().build(common_of(rows, flags=[False, False, True, True]))
    assert metadata.prefill_rows.tolist() == [2, 3]
    assert metadata.checkpoint.offsets_cpu.tolist() == [16, 20]
    assert metadata.checkpoint.query_lens_cpu.tolist() == [20, 24]
    # Blocks of rows 2 and 3, in the column of end - 2 blocks.
    assert metadata.checkpoint.state_indices.tolist() == [26, 39]
    # The second checkpoint, at position 28, cuts a chunk of 8; the first lies between two.
    assert metadata.chunk_layout.cu_chunk_seqlens.tolist() == [0, 8, 16, 20, 28, 36, 40, 44]
    assert metadata.chunk_layout.checkpoint_chunk_indices.tolist() == [1, 5]


def test_b27_padding_is_no_prefill_and_the_buffers_are_refreshed():
    builder = builder_of()
    first = builder.build(common_of([(9, 1), (30, 1), (17, 1)], flags=[False] * 3))
    assert np.count_nonzero(first.state_indices.initial) == 3
    second = builder.build(common_of([(10, 1), (31, 1), (0, 0), (0, 0)], flags=[False, False, True, True]))
    assert (second.num_decodes, second.num_prefills) == (2, 0)
    assert second.state_indices.initial.tolist() == [2, 16, 0, 0, 0, 0, 0, 0]
    third = builder.build(common_of([(0, 5), (0, 0)], flags=[True, True]))  # no decode at all
    assert third.state_indices.initial.tolist() == [0] * MAX_REQS
    assert third.state_indices.written[:, 0].tolist() == [1] + [0] * (MAX_REQS - 1)


def test_b28_b29_every_step_fills_the_same_arrays_from_the_front():
    builder = builder_of(num_drafts=2)
    seen = set()
    for rows in ([(9, 3)] * 3, [(9, 1)], [(20, 2)] * MAX_REQS, []):
        indices = builder.build(common_of(rows, flags=[False] * len(rows))).state_indices
        seen.add(tuple(array.ctypes.data for array in indices))
        assert np.count_nonzero(indices.initial) == len(rows)
        assert not indices.written[len(rows) :].any()
    assert len(seen) == 1


def test_b30_speculation_does_not_switch_checkpoints_off():
    rows, flags = [(9, 3), (0, 20)], [False, True]
    metadata = builder_of(num_drafts=2).build(common_of(rows, flags=flags), num_accepted_tokens=np.array([3, 1]))
    assert metadata.checkpoint.offsets_cpu.tolist() == [16]


def test_b58_a_step_without_drafts_reads_the_accepted_state():
    # 20 tokens: the last step verified two drafts from token 17 on, and kept all three tokens.
    builder, table = builder_of(num_drafts=2), table_of(1)
    metadata = builder.build(common_of([(20, 1)], table, [False]), num_accepted_tokens=np.array([3]))
    assert metadata.state_indices.initial[0] == table[0, 17 // BLOCK + 2]
    rejected = builder.build(common_of([(18, 1)], table, [False], num_accepted_tokens=np.array([1])))
    assert rejected.state_indices.initial[0] == table[0, 17 // BLOCK]


def test_an_identical_group_is_looked_up_again_and_keeps_its_own_buffers():
    groups = [
        [AttentionGroup(RecurrentStateBackend, (name,), spec_of(), index, (builder_of(),))]
        for index, name in enumerate(("a", "b"))
    ]
    common = common_of([(9, 1), (0, 20)], flags=[False, True])
    tables = [common.block_table, common.block_table + 500]
    metadata = build_attn_metadata(groups, common.batch, tables, [common.slot_mapping] * 2)
    first, second = metadata["a"], metadata["b"]
    assert first.chunk_layout is second.chunk_layout
    assert first.state_indices.initial is not second.state_indices.initial
    for name in ("initial", "written"):
        ours, theirs = getattr(first.state_indices, name), getattr(second.state_indices, name)
        assert np.array_equal(np.where(ours, ours + 500, 0), theirs)
    assert (second.checkpoint.state_indices == first.checkpoint.state_indices + 500).all()


def test_states_that_are_not_cached_stay_in_the_first_column():
    builder = builder_of(mode="none", num_checkpoint_blocks=0)
    metadata = builder.build(common_of([(60, 1), (0, 30)], table_of(2, 1), [False, True]))
    assert metadata.state_indices.initial.tolist()[:2] == [1, 0]
    assert metadata.state_indices.written[:2, 0].tolist() == [1, 2]
    assert metadata.checkpoint is None


def test_a_request_as_long_as_the_model_allows_stays_in_the_first_column():
    builder = builder_of(2, mode="none", num_checkpoint_blocks=0)
    common = common_of([(MAX_LEN - 1, 1), (MAX_LEN - 3, 3)], table_of(2, 3), [False, False])
    indices = builder.build(common, num_accepted_tokens=np.array([3, 1])).state_indices
    assert indices.initial[:2].tolist() == [3, 4]
    assert indices.written[:2].tolist() == [[1, 0, 0], [4, 5, 6]]


def test_captures_take_decodes_alone():
    builder = builder_of()
    assert builder.get_cudagraph_support() is AttentionCGSupport.UNIFORM_BATCH
    assert builder.build_for_cudagraph_capture(common_of([(9, 1)] * 4)).num_decodes == 4
    with pytest.raises(ArgumentError, match=r"batch: expected decodes alone, got 1 prefill\(s\); capture"):
        builder.build_for_cudagraph_capture(common_of([(0, 9)], flags=[True]))


def test_a_refused_capture_leaves_the_buffers_as_they_were():
    builder = builder_of()
    indices = builder.build(common_of([(9, 1)] * 2)).state_indices
    held = [array.copy() for array in indices]
    with pytest.raises(ArgumentError, match=r"batch: expected decodes alone"):
        builder.build_for_cudagraph_capture(common_of([(4, 1), (0, 9)], flags=[False, True]))
    for array, before in zip(indices, held, strict=True):
        np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache_mode": "none"}, "spec.cache_mode: expected 'align', the engine's cache.mode, got 'none'"),
        ({"num_speculative_blocks": 1}, "spec.num_speculative_blocks: expected at least 2"),
    ],
)
def test_specs_that_contradict_the_engine_are_refused(changes, message):
    with pytest.raises(ArgumentError, match=message):
        ChunkedBuilder(spec_of(2, **changes), ("mixer",), config_of(2))


def test_layers_without_chunks_have_no_layout():
    builder = builder_of(builder=RecurrentStateBuilder)
    assert builder.build(common_of([(0, 20)], flags=[True])).chunk_layout is None


def test_steps_of_decodes_allocate_next_to_nothing():
    builder = builder_of()
    common = common_of([(9, 1)] * MAX_REQS, flags=[False] * MAX_REQS)
    builder.build(common)
    other = builder_of()
    other.update_block_table(builder.build(common), common.block_table, common.slot_mapping)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for _ in range(50):
        other.update_block_table(builder.build(common), common.block_table, common.slot_mapping)
    grown = sum(entry.size_diff for entry in tracemalloc.take_snapshot().compare_to(before, "filename"))
    tracemalloc.stop()
    assert grown <= 10_000


def build(rows, flags=None, num_drafts=0, table=None, **extra):
    return lambda builder: builder_of(num_drafts).build(common_of(rows, table, flags), **extra)


BAD = {
    "a decode after a prefill": (build([(0, 9), (9, 1)], [True, False]), "query_start_loc", "decode in row 1"),
    "more rows than the limit": (build([(9, 1)] * (MAX_REQS + 1)), "num_reqs", str(MAX_REQS + 1)),
    "a table too narrow": (build([(30, 1)], table=table_of(1, 2)), "block_table", "columns"),
    "a table of too few rows": (build([(9, 1)] * 2, table=table_of(1)), "block_table", "2 rows"),
    "unknown extras": (build([(9, 1)], width=3), "extra", "width"),
    "counts in floats": (build([(9, 1)], num_accepted_tokens=np.ones(1)), "num_accepted_tokens", "float64"),
    "fewer counts than decodes": (
        build([(9, 1)] * 3, num_accepted_tokens=np.ones(2, np.int64)),
        "num_accepted_tokens",
        "3 entries",
    ),
    "counts in a list": (build([(9, 1)], num_accepted_tokens=[1]), "accepted", "list"),
    "counts of nothing": (
        build([(9, 1)], num_accepted_tokens=np.zeros(1, np.int64)),
        "num_accepted_tokens",
        "0 in row 0",
    ),
    "more kept than there are blocks": (
        build([(9, 1)], num_drafts=1, num_accepted_tokens=np.array([3])),
        "num_accepted_tokens",
        "[1, 2]",
    ),
    "longer than the model's length": (build([(MAX_LEN, 1)]), "max_seq_len", f"at most {MAX_LEN}, got {MAX_LEN + 1}"),
    "blocks beyond int32": (build([(9, 1)], table=np.full((1, 16), 2**40)), "block_table", str(2**40)),
    "a spec of attention": (
        lambda builder: RecurrentStateBuilder(FullAttentionSpec(8, 1, 8), ("a",), config_of()),
        "spec",
        "FullAttentionSpec",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_mistakes_are_refused(case):
    call, *parts = case
    with pytest.raises(ArgumentError, match=r"expected .+, got .+; \w+") as raised:
        call(None)
    for part in parts:
        assert part in str(raised.value)


def test_a_refused_step_leaves_the_buffers_as_they_were():
    builder = builder_of()
    kept = builder.build(common_of([(9, 1)] * 3)).state_indices
    before = [array.copy() for array in kept]
    for rows, flags, table in (
        ([(0, 9), (9, 1)], [True, False], None),
        ([(30, 1)], [False], table_of(1, 2)),
        ([(9, 1), (0, 20)], [False, True], -table_of(2)),
    ):
        with pytest.raises(ArgumentError):
            builder.build(common_of(rows, table, flags))
        assert all(np.array_equal(a, b) for a, b in zip(kept, before, strict=True))
