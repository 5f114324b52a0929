"""A step's batch and its metadata: what is shared, what differs by group, and mistakes."""

import tracemalloc

import numpy as np
import pytest

from numba_ckpt.attention import (
    AttentionGroup,
    MetadataBuilder,
    MetadataOptions,
    NoOpBackend,
    NoOpBuilder,
    PagedAttentionBackend,
    PagedAttentionBuilder,
    StepBatch,
    build_attn_metadata,
)
from numba_ckpt.cache import FullAttentionSpec, LimitsConfig, SlidingWindowSpec
from numba_ckpt.errors import ArgumentError
from numba_ckpt.kernels import token_to_req_indices as kernel_module
from tests.attention.layers import engine_config

LIMITS = LimitsConfig(max_num_requests=4, max_num_batched_tokens=16, max_model_len=64)
STARTS, LENS = np.array([0, 3, 4, 4]), np.array([3, 9, 0])
SPEC = FullAttentionSpec(8, num_kv_heads=2, head_size=4)


def batch_of(num_reqs=3, num_tokens=6, starts=STARTS, lens=LENS, bounds=(3, 9), **more):
    return StepBatch(num_reqs, num_tokens, starts, starts, lens, *bounds, **more)


def groups_of(*builders):
    """One attention group for each builder, each in a cache group of its own."""
    return [
        [AttentionGroup(NoOpBackend, (f"{index}.a", f"{index}.b"), builder.spec, index, (builder,))]
        for index, builder in enumerate(builders)
    ]


def no_op(count=2):
    return groups_of(*(NoOpBuilder(None, (), None) for _ in range(count)))


def tables_of(count=2, num_reqs=3, num_tokens=6):
    tables = [np.full((num_reqs, 2), 10 + index, np.int32) for index in range(count)]
    return tables, np.zeros((count, num_tokens), np.int64)


def build(groups=None, batch=None, tables=None, slots=None, **options):
    own_tables, own_slots = tables_of(2 if groups is None else len(groups))
    return build_attn_metadata(
        no_op() if groups is None else groups,
        batch_of() if batch is None else batch,
        own_tables if tables is None else tables,
        own_slots if slots is None else slots,
        MetadataOptions(**options),
    )


def test_groups_share_the_batch_and_have_their_own_tables():
    batch = batch_of()
    metadata = build(batch=batch)
    assert metadata["0.a"] is metadata["0.b"]
    assert metadata["0.a"].batch is metadata["1.a"].batch is batch
    assert [int(metadata[name].block_table[0, 0]) for name in ("0.a", "1.a")] == [10, 11]


def test_causal_for_all_by_row_or_by_group():
    by_row = np.array([True, False, True])
    assert build(causal=False)["1.a"].causal is False
    assert build(causal=by_row)["0.a"].causal is by_row
    assert [build(causal={1: False})[name].causal for name in ("0.a", "1.a")] == [True, False]


def test_each_micro_batch_has_its_own_builder():
    builders = NoOpBuilder(None, ("x",), None), NoOpBuilder(None, ("x",), None)
    built = []
    for builder in builders:
        builder.build = lambda common, prefix=0, builder=builder: built.append(builder) or common
    groups = [[AttentionGroup(NoOpBackend, ("x",), None, 0, builders)]]
    for index in (1, 0):
        build(groups, ubatch_idx=index)
    assert built == [builders[1], builders[0]]


def test_the_request_of_each_token_is_computed_once_and_only_if_asked(monkeypatch):
    calls, compute = [], kernel_module._token_to_req_indices_host
    monkeypatch.setattr(kernel_module, "_token_to_req_indices_host", lambda *a: calls.append(1) or compute(*a))
    metadata = build()
    assert calls == []
    first = metadata["0.a"].batch.token_to_req_indices()
    assert metadata["1.a"].batch.token_to_req_indices() is first
    assert calls == [1]
    assert first.tolist() == [0, 0, 0, 1, -1, -1]


def test_the_request_of_each_token_may_go_to_a_buffer():
    buffer = np.full(10, -9, np.int32)
    indices = batch_of(token_to_req_buffer=buffer).token_to_req_indices()
    assert indices.ctypes.data == buffer.ctypes.data
    assert buffer.tolist() == [0, 0, 0, 1, -1, -1] + [-9] * 4


def test_buffers_longer_than_the_batch_are_cut_without_a_copy():
    starts, lens = np.array([0, 3, 4, 4, 99, 99]), np.array([3, 9, 0, 77, 77])
    batch = batch_of(starts=starts, lens=lens, positions=np.arange(20))
    assert (batch.seq_lens.shape, batch.query_start_loc.shape, batch.positions.shape) == ((3,), (4,), (6,))
    assert batch.seq_lens.ctypes.data == lens.ctypes.data


def paged(spec=SPEC):
    return PagedAttentionBuilder(spec, ("x",), engine_config(), 8)


def test_groups_of_one_spec_are_planned_once(monkeypatch):
    planned = []
    build_one = PagedAttentionBuilder.build
    monkeypatch.setattr(
        PagedAttentionBuilder, "build", lambda self, *args, **extra: planned.append(self) or build_one(self, *args)
    )
    window = SlidingWindowSpec(8, num_kv_heads=2, head_size=4, sliding_window=20)
    groups = groups_of(paged(), paged(window), paged())
    metadata = build(groups)
    assert planned == [groups[0][0].metadata_builders[0], groups[1][0].metadata_builders[0]]
    assert [int(metadata[f"{index}.a"].block_table[0, 0]) for index in range(3)] == [10, 11, 12]
    assert [metadata[f"{index}.a"].sliding_window for index in range(3)] == [None, 20, None]
    planned.clear()
    build(groups, causal={2: False})
    assert len(planned) == 3


def test_paged_attention_reads_what_its_spec_says():
    metadata = build(groups_of(paged()))["0.a"]
    assert (metadata.block_size, metadata.causal, metadata.common_prefix_len) == (8, True, 0)
    assert PagedAttentionBackend.builder_class() is PagedAttentionBuilder


def test_a_steady_step_allocates_no_arrays():
    groups, batch, (tables, slots) = no_op(4), batch_of(), tables_of(4)
    options = MetadataOptions()
    build_attn_metadata(groups, batch, tables, slots, options)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for _ in range(200):
        build_attn_metadata(groups, batch, tables, slots, options)
    grown = sum(entry.size_diff for entry in tracemalloc.take_snapshot().compare_to(before, "filename"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown <= 10_000
    assert peak <= 40_000  # the metadata of a step, which is let go


class Model:
    def __init__(self, extra):
        self.extra = extra

    def get_extra_common_attn_kwargs(self, kv_cache_group_id, num_reqs):
        return self.extra

    def get_extra_attn_kwargs(self, builder, num_reqs):
        return {}


class Nobody(MetadataBuilder):
    def build(self, common, common_prefix_len=0, **extra):
        raise AssertionError("a refused step reached a builder")


BAD = {
    "fewer starts than rows": (lambda: batch_of(starts=STARTS[:3]), "query_start_loc", "at least 4 entries"),
    "fewer lengths than rows": (lambda: batch_of(lens=LENS[:2]), "seq_lens", "at least 3 entries"),
    "starts in floats": (lambda: batch_of(starts=STARTS * 1.0), "query_start_loc", "float64"),
    "lengths in a list": (lambda: batch_of(lens=[3, 9, 0]), "seq_lens", "list"),
    "starts that fall": (lambda: batch_of(starts=np.array([0, 3, 2, 4])), "query_start_loc_cpu", "never fall"),
    "starts that begin late": (lambda: batch_of(starts=STARTS + 1), "query_start_loc_cpu", "0 first"),
    "more tokens than the batch": (lambda: batch_of(num_tokens=3), "query_start_loc_cpu", "at most 3"),
    "a query beyond its bound": (lambda: batch_of(bounds=(2, 9)), "max_query_len", "3 tokens in row 0"),
    "a length beyond its bound": (lambda: batch_of(bounds=(3, 8)), "seq_lens", "9 in row 1"),
    "a sequence shorter than its query": (lambda: batch_of(lens=np.array([2, 9, 0])), "seq_lens", "2 in row 0"),
    "a negative count": (lambda: batch_of(num_reqs=-1), "num_reqs", "-1"),
    "half a request": (lambda: batch_of(num_reqs=1.5), "num_reqs", "1.5"),
    "too few positions": (lambda: batch_of(positions=np.arange(5)), "positions", "at least 6"),
    "positions beyond the model": (
        lambda: batch_of(positions=np.array([0, 1, 2, 64, 0, 0]), limits=LIMITS),
        "positions",
        "64",
    ),
    "negative positions": (lambda: batch_of(positions=-np.arange(6), limits=LIMITS), "positions", "-5"),
    "more rows than the limit": (
        lambda: StepBatch(5, 5, np.arange(6), np.arange(6), np.ones(5, int), 1, 1, limits=LIMITS),
        "num_reqs",
        "at most 4",
    ),
    "more tokens than the limit": (lambda: batch_of(num_tokens=17, limits=LIMITS), "num_tokens", "at most 16"),
    "a model length beyond the limit": (lambda: batch_of(bounds=(3, 65), limits=LIMITS), "max_seq_len", "at most 64"),
    "flags in ints": (lambda: batch_of(is_prefilling=np.ones(3, int)), "is_prefilling", "bool"),
    "too few flags": (lambda: batch_of(is_prefilling=np.ones(2, bool)), "is_prefilling", "at least 3"),
    "ranges in a list": (lambda: batch_of(mm_req_doc_ranges=[(0, 3)]), "mm_req_doc_ranges", "list"),
    "ranges of no row": (lambda: batch_of(mm_req_doc_ranges={3: []}), "mm_req_doc_ranges", "3"),
    "a buffer too short": (lambda: batch_of(token_to_req_buffer=np.zeros(5, np.int32)), "token_to_req_buffer", "6"),
    "too few tables": (lambda: build(tables=tables_of(1)[0]), "block_tables", "2 entries"),
    "too few slot mappings": (lambda: build(slots=tables_of(1)[1]), "slot_mappings", "2 entries"),
    "a table of too few rows": (lambda: build(tables=tables_of(2, 2)[0]), "block_tables[0]", "at least 3 rows"),
    "too few slots": (lambda: build(slots=tables_of(2, 3, 5)[1]), "slot_mappings[0]", "at least 6"),
    "a table of floats": (lambda: build(tables=[np.zeros((3, 2))] * 2), "block_tables[0]", "float64"),
    "slots in floats": (lambda: build(slots=np.zeros((2, 6))), "slot_mappings[0]", "float64"),
    "causal for no group": (lambda: build(causal={2: False}), "causal", "2"),
    "causal in words": (lambda: build(causal="yes"), "causal", "str"),
    "causal by a number": (lambda: build(causal={0: 1}), "causal[0]", "1"),
    "a micro-batch without builders": (lambda: build(ubatch_idx=1), "ubatch_idx", "1"),
    "a negative micro-batch": (lambda: build(ubatch_idx=-1), "ubatch_idx", "-1"),
    "capture as a number": (lambda: build(for_cudagraph_capture=1), "for_cudagraph_capture", "1"),
    "fast prefill of nobody": (lambda: build(fast_prefill=3), "fast_prefill", "int"),
    "a model without extras": (lambda: build(model_specific=3), "model_specific", "int"),
    "a field that is taken": (lambda: build(model_specific=Model({"causal": 1})), "model_specific", "'causal'"),
    "flags of another length": (
        lambda: build(model_specific=Model({"is_prefilling": np.ones(2, bool)})),
        "is_prefilling of group 0",
        "(3,)",
    ),
    "flags in a list": (
        lambda: build(model_specific=Model({"is_prefilling": [True] * 3})),
        "is_prefilling of group 0",
        "list",
    ),
    "a layer in two groups": (
        lambda: build([no_op(1)[0], [AttentionGroup(NoOpBackend, ("0.a",), None, 1, (NoOpBuilder(None, (), None),))]]),
        "attn_groups",
        "'0.a' in two",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_mistakes_are_refused(case):
    call, *parts = case
    with pytest.raises(ArgumentError, match=r"expected .+, got .+; \w+") as raised:
        call()
    for part in parts:
        assert part in str(raised.value)


def test_a_refused_step_reaches_no_builder_of_a_wrong_table():
    groups = groups_of(Nobody(None, (), None))
    with pytest.raises(ArgumentError):
        build_attn_metadata(groups, batch_of(), *tables_of(1, 2))
