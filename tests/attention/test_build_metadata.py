"""A step's batch and its metadata: what is shared, and what differs by group."""

import tracemalloc

import numpy as np

from numba_ckpt.attention import (
    AttentionGroup,
    FastPrefillHelper,
    MetadataOptions,
    NoOpBackend,
    NoOpBuilder,
    PagedAttentionBackend,
    PagedAttentionBuilder,
    StepBatch,
    build_attn_metadata,
)
from numba_ckpt.cache import FullAttentionSpec, SlidingWindowSpec
from numba_ckpt.kernels import token_to_req_indices as kernel_module
from tests.attention.layers import engine_config

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


class Model:
    """A model with extras for every group, and what it was asked."""

    def __init__(self, extra, for_builders=None):
        self.extra, self.for_builders, self.asked = extra, for_builders or {}, []

    def get_extra_common_attn_kwargs(self, kv_cache_group_id, num_reqs):
        self.asked.append((kv_cache_group_id, num_reqs))
        return self.extra

    def get_extra_attn_kwargs(self, builder, num_reqs):
        self.asked.append((builder, num_reqs))
        return self.for_builders


class Recorder(NoOpBuilder):
    """Keeps what it was handed."""

    def build(self, common, common_prefix_len=0, **extra):
        self.extra = extra
        return common

    def build_for_cudagraph_capture(self, common):
        self.extra = "captured"
        return common


def test_a_model_adds_to_groups_and_to_builders():
    flags, own = np.array([True, False, False]), np.array([False, True, False])
    batch, groups = batch_of(is_prefilling=own), groups_of(Recorder(None, (), None))
    builder = groups[0][0].metadata_builders[0]
    model = Model({"is_prefilling": flags, "tag": 7}, {"drafts": 2})
    metadata = build(groups, batch, model_specific=model)["0.a"]
    assert metadata.is_prefilling is flags
    assert batch.is_prefilling is own
    assert dict(metadata.extra) == {"tag": 7}
    assert builder.extra == {"drafts": 2}
    assert model.asked == [(0, 3), (builder, 3)]
    assert model.extra == {"is_prefilling": flags, "tag": 7}  # the model's own mapping is left alone
    assert build(groups, batch)["0.a"].is_prefilling is own


def test_captures_take_the_group_extras_but_none_for_builders():
    groups, model = groups_of(Recorder(None, (), None)), Model({"tag": 7}, {"drafts": 2})
    metadata = build(groups, for_cudagraph_capture=True, model_specific=model)["0.a"]
    assert (groups[0][0].metadata_builders[0].extra, metadata.extra["tag"]) == ("captured", 7)
    assert model.asked == [(0, 3)]


def test_all_groups_hear_of_a_fast_prefill():
    helper = FastPrefillHelper(lambda num_tokens, **_: 4, np.zeros(8, np.int32))
    step = helper.prepare(np.array([2, 3]), np.array([0, 1, 2, 2]), has_prefill=True)
    metadata = build(fast_prefill=step)
    assert metadata["0.a"].fast_prefill is metadata["1.a"].fast_prefill is step
    assert build()["0.a"].fast_prefill is None


def test_groups_that_the_model_treats_differently_are_planned_apart(monkeypatch):
    planned, build_one, tag = [], PagedAttentionBuilder.build, object()
    monkeypatch.setattr(
        PagedAttentionBuilder, "build", lambda self, *args: planned.append(self) or build_one(self, *args)
    )
    groups, flags = groups_of(paged(), paged()), np.zeros(3, bool)
    for extras, num_planned in (
        ([{"tag": tag}, {"tag": tag}], 1),
        ([{"tag": tag}, {"tag": object()}], 2),
        ([{"tag": tag}, {}], 2),
        ([{"is_prefilling": flags}, {"is_prefilling": flags.copy()}], 2),
        ([{"is_prefilling": flags}, {"is_prefilling": flags}], 1),
    ):
        model = Model({})
        monkeypatch.setattr(model, "get_extra_common_attn_kwargs", lambda group_id, _, extras=extras: extras[group_id])
        planned.clear()
        build(groups, model_specific=model)
        assert len(planned) == num_planned


def test_cache_groups_without_attention_groups_are_passed_over():
    metadata = build([[], no_op(2)[1]])
    assert sorted(metadata) == ["1.a", "1.b"]
    assert int(metadata["1.a"].block_table[0, 0]) == 11
    assert build([], tables=[], slots=np.zeros((0, 6), np.int64)) == {}


def test_a_steady_step_allocates_no_arrays():
    names = [tuple(f"{group}.{layer}" for layer in range(12)) for group in range(4)]
    groups = [
        [AttentionGroup(NoOpBackend, layers, None, index, (NoOpBuilder(None, layers, None),))]
        for index, layers in enumerate(names)
    ]
    given = groups, batch_of(), *tables_of(4), MetadataOptions()
    build_attn_metadata(*given)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(50):
        build_attn_metadata(*given)
    kept, peak = (size - before for size in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    assert max(kept, peak) <= 10_000  # the metadata of one step, which is let go
