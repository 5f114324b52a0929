"""Parts of a step, a plan or a model that contradict each other: refused before anything changes, or told right."""

from dataclasses import replace

import numpy as np
import pytest

from numba_ckpt.attention import (
    AttentionGroup,
    FastPrefillHelper,
    MMFeature,
    PagedAttentionBackend,
    PagedAttentionBuilder,
    RecurrentStateBackend,
    RecurrentStateBuilder,
    StepBatch,
    add_kv_sharing_layers_to_kv_cache_groups,
    build_attn_metadata,
    compute_mm_prefix_ranges,
    get_kv_sharing_fast_prefill_eligible_layers,
    init_attn_backend,
    init_kv_cache,
)
from numba_ckpt.cache import (
    EncoderOnlyAttentionSpec,
    EngineConfig,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    LimitsConfig,
    StateSpec,
    UniformTypeSpecs,
    plan_kv_cache,
)
from numba_ckpt.errors import ArgumentError, ArgumentTypeError
from tests.attention.layers import PAGED, Layer, backend, engine_config

CONFIG = EngineConfig(LimitsConfig(4, 64, 256))
STATE, FULL = StateSpec(16, ((4,),), ("float32",)), FullAttentionSpec(16, 2, 8)


def test_a_refused_step_leaves_the_buffers_of_all_groups_as_they_were():
    builders = RecurrentStateBuilder(STATE, ("s",), CONFIG), PagedAttentionBuilder(FULL, ("f",), CONFIG)
    groups = [
        [AttentionGroup(RecurrentStateBackend, ("s",), STATE, 0, builders[:1])],
        [AttentionGroup(PagedAttentionBackend, ("f",), FULL, 1, builders[1:])],
    ]

    def step(first_block, num_cols):
        starts = np.array([0, 1])
        batch = StepBatch(1, 1, starts, starts, np.array([40]), max_query_len=1, max_seq_len=40)
        tables = [np.arange(first_block, first_block + 16, dtype=np.int32)[None], np.ones((1, num_cols), np.int32)]
        return build_attn_metadata(groups, batch, tables, np.zeros((2, 1), np.int64))

    live = step(1, 16)["s"].state_indices
    assert live.initial[0] == 3
    with pytest.raises(ArgumentError, match="block_table: expected columns for 40 tokens"):
        step(101, 1)
    assert live.initial[0] == 3


def batch_of(**changes):
    starts = np.array([0, 100])
    fields = {"seq_lens": np.array([292]), "max_query_len": 100, "max_seq_len": 400} | changes
    return StepBatch(1, 128, starts, starts, **fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_lens_cpu_upper_bound": np.array([164])}, "seq_lens_cpu_upper_bound: .*got 164 for 292 tokens in row 0"),
        ({"seq_lens_cpu_upper_bound": np.array([300]), "seq_lens": np.array([-7])}, "seq_lens: .*got -7 in row 0"),
        (
            {"dcp_local_seq_lens": np.array([-4])},
            "dcp_local_seq_lens: expected tokens of this rank, in .0, 400., got -4",
        ),
        ({"dcp_local_seq_lens_cpu_upper_bound": np.array([401])}, "dcp_local_seq_lens_cpu_upper_bound: .*got 401"),
        ({"limits": CONFIG}, "limits: expected an object of LimitsConfig"),
        ({"mm_req_doc_ranges": {"a": []}}, "mm_req_doc_ranges: expected an integer"),
    ],
)
def test_a_batch_against_itself(changes, message):
    with pytest.raises(ArgumentError, match=message):
        batch_of(**changes)


@pytest.mark.parametrize("token", [2**31, 2**32 + 5, -1])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_logits_are_never_wrapped_into_the_batch(token, dtype):
    buffer = np.full(16, 7, np.int32)
    logits = np.array([token % 2**64], np.uint64).astype(dtype)
    with pytest.raises(ArgumentError, match="logits_indices: expected tokens of the batch"):
        FastPrefillHelper(lambda num_tokens, **_: num_tokens, buffer).prepare(logits, np.array([0, 1]), True)
    assert (buffer == 7).all()


def test_logits_are_an_array():
    helper = FastPrefillHelper(lambda num_tokens, **_: num_tokens, np.zeros(4, np.int32))
    with pytest.raises(ArgumentTypeError, match="logits_indices: expected a 1-d array, got list"):
        helper.prepare([8, 9], np.array([0, 2]), True)


def test_a_feature_that_is_moved_keeps_its_mask():
    mask = np.array([0, 1, 1, 0, 1, 1], bool)
    feature = MMFeature("image", 0, 6, mask)
    mask[:] = False  # what was read is kept
    assert replace(feature, offset=10).ranges.tolist() == [[11, 12], [14, 15]]


def test_ranges_are_of_rows_of_the_batch():
    ranges = compute_mm_prefix_ranges(["a"], {"a": [MMFeature("image", 4, 2)]})
    assert ("x" in ranges, 0.5 in ranges, ranges.get("x"), 0 in ranges) == (False, False, None, True)
    for row in (-1, 1, "x"):
        with pytest.raises(ArgumentError, match="row: expected an integer"):
            ranges.of(row)
    for features, message in (
        ([], "mm_features: expected an object of Mapping"),
        ({"a": None}, "mm_features: expected a list of features by request, got NoneType"),
        ({"a": MMFeature("image", 4, 2)}, "mm_features: expected a list of features by request, got MMFeature"),
    ):
        with pytest.raises(ArgumentError, match=message):
            compute_mm_prefix_ranges(["a"], features)


def test_a_reader_adds_no_memory():
    wide = FullAttentionSpec(16, 4, 8)
    plan = plan_kv_cache({"a": FULL, "b": wide}, num_blocks=5)
    spec, shared = plan.groups[0].spec, add_kv_sharing_layers_to_kv_cache_groups(plan, {"c": "b"}).groups[0].spec
    assert shared.page_size_bytes == spec.page_size_bytes == FULL.page_size_bytes + wide.page_size_bytes
    assert shared.of("c") is wide
    with pytest.raises(ArgumentError, match="readers: expected targets with a cache of their own"):
        UniformTypeSpecs(spec.specs, (("c", "z"),))
    with pytest.raises(ArgumentError, match="readers: expected layers without a cache of their own, got a"):
        UniformTypeSpecs(spec.specs, (("a", "b"),))


def test_specs_that_share_a_table_say_what_their_layers_say():
    states = UniformTypeSpecs((("a", STATE), ("b", replace(STATE, shapes=((8,),)))))
    assert (states.has_slots, states.can_split_blocks, states.is_cp_sharded) == (False, False, False)
    full = UniformTypeSpecs((("a", FULL), ("b", FullAttentionSpec(16, 4, 8))))
    assert (full.has_slots, full.can_split_blocks, full.is_cp_sharded) == (True, True, True)
    assert replace(full, specs=full.specs[:1]).page_size_bytes == FULL.page_size_bytes
    assert UniformTypeSpecs.from_dict({"specs": [["a", FULL]]}).block_size == 16
    encoders = UniformTypeSpecs((("a", EncoderOnlyAttentionSpec(16, 1, 8)), ("b", EncoderOnlyAttentionSpec(16, 2, 8))))
    config = KVCacheConfig(4, (KVCacheGroup(("a", "b"), encoders),), ())
    assert init_attn_backend(config, {"a": Layer(), "b": Layer()}, engine_config())[0] == [[]]


def test_a_plan_of_other_specs_than_the_layers_want_is_refused():
    layers = {"a": Layer(spec=FULL), "b": Layer(spec=FULL)}
    plan = plan_kv_cache({"a": FULL, "b": FULL}, num_blocks=9)
    assert init_kv_cache(layers, plan, config=CONFIG).by_layer["a"].shape[1] == 2
    layers["a"].spec = FullAttentionSpec(16, 4, 8)
    layers["a"].caches.clear()
    with pytest.raises(ArgumentError, match="specs that the layers want, got num_kv_heads 2 and 4 for 'a'"):
        init_kv_cache(layers, plan, config=CONFIG)
    assert layers["a"].caches == []


def test_one_name_is_no_collection_of_names():
    layers = {"layers.0": Layer(), "layers.1": Layer(PAGED, "layers.0")}
    with pytest.raises(ArgumentTypeError, match="draft_layer_names: expected a collection of names"):
        get_kv_sharing_fast_prefill_eligible_layers(layers, engine_config(fast_prefill=True), "draft.layers.1")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"a": None}, "layers.'a'.: expected an AttentionLayer by name, got NoneType"),
        ({"a": Layer(backend("W", workspace=-5))}, "WBuilder.num_workspace_bytes: expected an integer"),
        (
            {"a": Layer(backend("C", support=None))},
            "C's get_cudagraph_support.*: expected an object of AttentionCGSupport",
        ),
    ],
)
def test_models_that_break_the_protocol(layers, message):
    plan = plan_kv_cache({"a": FULL}, num_blocks=3)
    with pytest.raises(ArgumentError, match=message):
        init_attn_backend(plan, layers, engine_config())
