"""Attention groups: who is together, in which order, with which builders."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.attention import AttentionCGSupport, AttentionGroup, StepBatch, build_attn_metadata
from numba_ckpt.attention.groups import init_attn_backend
from numba_ckpt.cache import EncoderOnlyAttentionSpec, FullAttentionSpec, KVCacheGroup, StateSpec, UniformTypeSpecs
from numba_ckpt.errors import ArgumentError
from tests.attention.layers import PAGED, SPEC, CommonBuilder, Layer, backend, engine_config, kv_cache_config

OTHER = backend("Other")
STATE = StateSpec(64, ((4, 8),), ("float32",))


def names_of(attn_groups):
    return [[group.layer_names for group in groups] for groups in attn_groups]


def test_layers_are_split_by_backend_heads_and_spec_in_order():
    layers = {"a": Layer(), "b": Layer(OTHER), "c": Layer(num_heads=4), "d": Layer(), "e": Layer(OTHER)}
    layers |= {"s": Layer(OTHER, num_heads=0, spec=STATE)}
    config = kv_cache_config((tuple("abcde"), SPEC), (("s",), STATE))
    attn_groups, _, sizes = init_attn_backend(config, layers, engine_config())
    assert names_of(attn_groups) == [[("a", "d"), ("b", "e"), ("c",)], [("s",)]]
    assert [[group.kv_cache_group_id for group in groups] for groups in attn_groups] == [[0, 0, 0], [1]]
    assert [group.backend for group in attn_groups[0]] == [PAGED, OTHER, PAGED]
    assert sizes == [16, 64]


def test_backends_of_one_name_are_told_apart():
    twin = backend("Paged")
    layers = {"a": Layer(), "b": Layer(twin)}
    attn_groups, _, _ = init_attn_backend(kv_cache_config((("a", "b"), SPEC)), layers, engine_config())
    assert names_of(attn_groups) == [[("a",), ("b",)]]


def test_b67_a_window_belongs_to_a_layer():
    windowed = FullAttentionSpec(16, num_kv_heads=2, head_size=8, dtype="float16", sliding_window=32)
    spec = UniformTypeSpecs((("global", SPEC), ("local", windowed), ("local2", windowed)))
    layers = {name: Layer() for name in ("global", "local", "local2")}
    attn_groups, _, _ = init_attn_backend(kv_cache_config((tuple(layers), spec)), layers, engine_config())
    assert names_of(attn_groups) == [[("global",), ("local", "local2")]]
    assert [group.spec.sliding_window for group in attn_groups[0]] == [None, 32]
    assert [group.metadata_builders[0].spec for group in attn_groups[0]] == [SPEC, windowed]


@pytest.mark.parametrize("active", [{"d", "b", "a"}, ["d", "b", "a"], ("a", "b", "d", "a")])
def test_active_layers_keep_the_order_of_their_group(active):
    layers = {name: Layer() for name in "abcde"}
    config = kv_cache_config((("d", "c", "b", "a"), SPEC), (("e",), SPEC))
    attn_groups, _, sizes = init_attn_backend(config, layers, engine_config(), active)
    assert names_of(attn_groups) == [[("d", "b", "a")], []]
    assert sizes == [16, 16]


def test_metadata_is_not_taken_over_from_layers_with_other_heads():
    class Builder(CommonBuilder):
        supports_update_block_table = True
        num_builds = 0

        def build(self, common, common_prefix_len=0, **extra):
            Builder.num_builds += 1
            return self.num_heads

        def update_block_table(self, metadata, block_table, slot_mapping):
            return metadata

    kind = backend("Planned")
    kind.builder_class = classmethod(lambda cls: Builder)
    layers = {"a": Layer(kind, num_heads=8), "b": Layer(kind, num_heads=4), "c": Layer(kind, num_heads=8)}
    config = kv_cache_config((("a",), SPEC), (("b",), SPEC), (("c",), SPEC))
    groups = init_attn_backend(config, layers, engine_config())[0]
    assert [group.num_heads for (group,) in groups] == [8, 4, 8]
    starts = np.array([0, 1])
    batch = StepBatch(1, 1, starts, starts, np.array([1]), max_query_len=1, max_seq_len=1)
    tables, slots = [np.ones((1, 1), np.int32)] * 3, np.zeros((3, 1), np.int64)
    assert build_attn_metadata(groups, batch, tables, slots) == {"a": 8, "b": 4, "c": 8}
    assert Builder.num_builds == 2


def test_groups_without_views_stay_empty_and_keep_their_place():
    spec = EncoderOnlyAttentionSpec(32, num_kv_heads=2, head_size=8)
    layers = {"a": Layer(), "b": Layer()}
    config = kv_cache_config((("encoder",), spec), (("a", "b"), SPEC))
    attn_groups, _, sizes = init_attn_backend(config, layers, engine_config())
    assert names_of(attn_groups) == [[], [("a", "b")]]
    assert attn_groups[1][0].kv_cache_group_id == 1
    assert sizes == [32, 16]


@pytest.mark.parametrize("added_before", [False, True])
def test_sharing_layers_join_the_group_of_their_target(added_before):
    layers = {"a": Layer(), "b": Layer(), "c": Layer(PAGED, "b"), "d": Layer(OTHER, "a")}
    first = ("a", "d") if added_before else ("a",)
    second = ("b", "c") if added_before else ("b",)
    groups = (KVCacheGroup(first, SPEC), KVCacheGroup(second, SPEC))
    config = kv_cache_config((("a",), SPEC), (("b",), SPEC))
    config = type(config)(config.num_blocks, groups, config.tensors)
    attn_groups, _, _ = init_attn_backend(config, layers, engine_config())
    assert names_of(attn_groups) == [[("a",), ("d",)], [("b", "c")]]


def test_layers_eligible_for_fast_prefill_have_groups_of_their_own():
    layers = {"a": Layer(), "b": Layer(), "c": Layer(PAGED, "b"), "d": Layer(PAGED, "b")}
    layers |= {"draft": Layer(PAGED, "a")}
    config = kv_cache_config((("a", "b"), SPEC))
    attn_groups, _, _ = init_attn_backend(config, layers, engine_config(fast_prefill=True), None, {"draft"})
    assert names_of(attn_groups) == [[("a", "b", "draft"), ("c", "d")]]
    assert [group.backend.name for group in attn_groups[0]] == ["Paged", "FastPrefillPaged"]
    assert issubclass(attn_groups[0][1].backend, PAGED)
    again, _, _ = init_attn_backend(config, layers, engine_config(fast_prefill=True), None, {"draft"})
    assert again[0][1].backend is attn_groups[0][1].backend


def test_every_micro_batch_has_builders_of_its_own():
    config = kv_cache_config((("a", "b"), SPEC))
    layers = {"a": Layer(backend("Exact", (8,))), "b": Layer()}
    attn_groups, _, sizes = init_attn_backend(config, layers, engine_config(num_ubatches=3))
    builders = [builder for group in attn_groups[0] for builder in group.metadata_builders]
    assert len(set(map(id, builders))) == 6
    assert sizes == [8]
    assert all(builder.kernel_block_size == 8 and builder.config.parallel.num_ubatches == 3 for builder in builders)
    assert attn_groups[0][0].get_metadata_builder(2) is attn_groups[0][0].metadata_builders[2]
    with pytest.raises(ArgumentError, match="ubatch_idx: expected one of 3 micro-batches, from 0, got -1"):
        attn_groups[0][0].get_metadata_builder(-1)


def test_the_largest_workspace_is_shared_by_those_who_need_one():
    layers = {"a": Layer(backend("Small", workspace=10)), "b": Layer(), "c": Layer(backend("Large", workspace=30))}
    config = kv_cache_config((("a", "b"), SPEC), (("c",), SPEC))
    attn_groups, _, _ = init_attn_backend(config, layers, engine_config(num_ubatches=2))
    buffers = [builder.workspace for groups in attn_groups for group in groups for builder in group.metadata_builders]
    given = [buffer for buffer in buffers if buffer is not None]
    assert len(given) == 4
    assert len(set(map(id, given))) == 1
    assert given[0].nbytes == 30
    assert attn_groups[0][1].metadata_builders[0].workspace is None


def test_support_of_the_whole_model():
    layers = {"a": Layer(), "b": Layer(backend("Uniform", support=AttentionCGSupport.UNIFORM_BATCH))}
    _, info, _ = init_attn_backend(kv_cache_config((("a", "b"), SPEC)), layers, engine_config())
    assert (info.min_cg_support, info.min_cg_attn_backend) == (AttentionCGSupport.UNIFORM_BATCH, "Uniform")


CHOICES = st.tuples(st.sampled_from([PAGED, OTHER]), st.integers(0, 2), st.booleans())


@given(st.lists(CHOICES, min_size=1, max_size=8), st.data())
def test_groups_are_a_partition_in_order(choices, data):
    windowed = FullAttentionSpec(16, num_kv_heads=2, head_size=8, dtype="float16", sliding_window=32)
    names = [f"layer.{index}" for index in range(len(choices))]
    specs = {name: windowed if has_window else SPEC for name, (*_, has_window) in zip(names, choices, strict=True)}
    layers = {name: Layer(kind, None, heads) for name, (kind, heads, _) in zip(names, choices, strict=True)}
    active = data.draw(st.sets(st.sampled_from(names)))
    config = kv_cache_config((names, UniformTypeSpecs(specs.items())))
    (groups,), _, _ = init_attn_backend(config, layers, engine_config(), active)
    wanted = {}
    for name in names:
        if name in active:
            wanted.setdefault((layers[name].backend, specs[name], layers[name].num_heads), []).append(name)
    assert [group.layer_names for group in groups] == [tuple(members) for members in wanted.values()]
    assert [(group.backend, group.spec) for group in groups] == [key[:2] for key in wanted]


class NoBuilder(PAGED):
    @classmethod
    def builder_class(cls):
        return object


def start(layers=None, groups=((("a", "b"), SPEC),), config=None, **names):
    layers = {"a": Layer(), "b": Layer()} if layers is None else layers
    return init_attn_backend(kv_cache_config(*groups), layers, config or engine_config(), **names)


BAD_INPUT = [
    (lambda: start({"a": Layer()}), "layers: expected the layers of all cache groups, got none named 'b'"),
    (lambda: start(active_layer_names={"x"}), "active_layer_names: expected names of layers, got 'x'"),
    (lambda: start(active_layer_names="a"), "active_layer_names: expected a collection of names"),
    (lambda: start(draft_layer_names={"x"}), "draft_layer_names: expected names of layers, got 'x'"),
    (lambda: start(draft_layer_names="b"), "draft_layer_names: expected a collection of names"),
    (lambda: start(groups=((("a", "a"), SPEC),)), "layer_names: expected each layer once"),
    (lambda: start(groups=((("a",), SPEC), (("a", "b"), SPEC))), "groups: expected each layer in one group"),
    (lambda: start(groups=(((), SPEC),)), "layer_names: expected at least one layer"),
    (
        lambda: start({"a": Layer(), "b": Layer(), "c": Layer(PAGED, "x")}),
        "c.kv_sharing_target_layer_name: expected the name of a layer, got 'x'",
    ),
    (
        lambda: start({"a": Layer(), "b": Layer(PAGED, "a"), "c": Layer(PAGED, "b")}),
        "c.kv_sharing_target_layer_name: expected a layer with a cache of its own",
    ),
    (
        lambda: start({"a": Layer(), "b": Layer(), "c": Layer(PAGED, "c")}),
        "c.kv_sharing_target_layer_name: expected a layer with a cache of its own",
    ),
    (
        lambda: start({"c": Layer(PAGED, "a"), "a": Layer(), "b": Layer()}),
        "c.kv_sharing_target_layer_name: expected an earlier layer",
    ),
    (
        lambda: start({"a": Layer(), "b": Layer(), "c": Layer(), "d": Layer(PAGED, "c")}),
        "shared_kv_cache_layers\\['d'\\]: expected a layer of some group, got 'c'",
    ),
    (
        lambda: start({"a": Layer(), "b": Layer(PAGED, "a")}, groups=((("a",), SPEC), (("b",), SPEC))),
        "groups: expected 'b' in the group of 'a', got it in group 1",
    ),
    (
        lambda: start({"a": Layer(PAGED()), "b": Layer()}),
        r"a.get_attn_backend\(\): expected a class of AttentionBackend",
    ),
    (
        lambda: start({"a": Layer(object), "b": Layer()}),
        r"a.get_attn_backend\(\): expected a class of AttentionBackend",
    ),
    (
        lambda: start({"a": Layer(NoBuilder), "b": Layer()}),
        r"NoBuilder.builder_class\(\): expected a class of Metadata",
    ),
    (lambda: start({"a": Layer(num_heads=-1), "b": Layer()}), "a.num_heads: expected an integer in"),
    (lambda: start({"a": Layer(num_heads=2.0), "b": Layer()}), "a.num_heads: expected an integer"),
    (
        lambda: start({"a": Layer(backend("Big", (32, 64))), "b": Layer()}),
        r"groups\[0\].block_size: expected .*Big: 32, 64; Paged: multiples of 1\), got 16",
    ),
    (lambda: start({"a": Layer(backend("None", ())), "b": Layer()}), r"groups\[0\].block_size: expected .*None: none"),
    (lambda: start([Layer(), Layer()]), "layers: expected an object of Mapping, got list"),
    (lambda: start(config=SimpleNamespace()), "config: expected an object of EngineConfig"),
    (
        lambda: init_attn_backend({}, {}, engine_config()),
        "kv_cache_config: expected an object of KVCacheConfig, got dict",
    ),
]


@pytest.mark.parametrize(("make", "message"), BAD_INPUT, ids=[message[:40] for _, message in BAD_INPUT])
def test_bad_input(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_what_is_passed_is_not_changed():
    layers = {"a": Layer(), "b": Layer(PAGED, "a")}
    config = kv_cache_config((("a",), SPEC))
    groups = config.groups
    init_attn_backend(config, layers, engine_config())
    assert config.groups is groups
    assert groups[0].layer_names == ("a",)
    assert layers["b"].caches == []


def test_a_group_by_hand_needs_builders():
    group = AttentionGroup(PAGED, ("a",), SPEC, 0)
    with pytest.raises(ArgumentError, match="expected one of 0 micro-batches"):
        group.get_metadata_builder()
    assert np.size(group.metadata_builders) == 0
