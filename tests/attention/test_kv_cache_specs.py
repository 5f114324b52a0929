from dataclasses import replace

import pytest

from numba_ckpt.attention import AttentionBackend
from numba_ckpt.attention.kv_cache_specs import (
    add_kv_sharing_layers_to_kv_cache_groups,
    get_kv_cache_spec,
    get_shared_kv_cache_layers,
)
from numba_ckpt.cache import (
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheTensor,
    UniformTypeSpecs,
)
from numba_ckpt.errors import ArgumentError, ArgumentTypeError
from tests.attention.cached_layers import (
    CONFIG,
    FULL,
    STATE,
    WINDOW,
    AnySize,
    EightOrSixteen,
    Layer,
    MultiplesOf16,
    Sixteen,
)

LAYERS = {
    "layers.0.attn": Layer(FULL),
    "layers.1.mixer": Layer(STATE, num_heads=0),
    "layers.2.attn": Layer(WINDOW),
    "layers.3.attn": Layer(FULL, kv_sharing_target_layer_name="layers.0.attn"),
    "layers.4.mlp": Layer(None),
    "layers.5.encoder": Layer(EncoderOnlyAttentionSpec(8, num_kv_heads=2, head_size=4)),
}


def test_layers_that_share_or_need_nothing_are_left_out():
    specs = get_kv_cache_spec(LAYERS, CONFIG)
    assert specs == {"layers.0.attn": FULL, "layers.1.mixer": STATE, "layers.2.attn": WINDOW}
    assert list(specs) == ["layers.0.attn", "layers.1.mixer", "layers.2.attn"]
    assert get_shared_kv_cache_layers(LAYERS) == {"layers.3.attn": "layers.0.attn"}


def test_a_layer_without_a_name_to_share_has_a_cache_of_its_own():
    layers = {"layers.0.attn": Layer(FULL, kv_sharing_target_layer_name="")}
    assert list(get_kv_cache_spec(layers, CONFIG)) == ["layers.0.attn"]


class _Padding(AttentionBackend):
    @classmethod
    def customize_spec(cls, spec):
        return spec.padded_to(512)


def test_a_backend_changes_the_spec_of_attention_layers_alone():
    layers = {"layers.0.attn": Layer(FULL, backend=_Padding), "layers.1.mixer": Layer(STATE, backend=_Padding)}
    specs = get_kv_cache_spec(layers, CONFIG)
    assert [spec.page_size_bytes for spec in specs.values()] == [512, 256]


def test_no_layers_need_no_caches():
    assert get_kv_cache_spec({}, CONFIG) == {}
    assert get_shared_kv_cache_layers({}) == {}


def _with_blocks(*sizes_and_backends):
    return {
        f"layers.{index}.attn": Layer(replace(FULL, block_size=size), backend=backend)
        for index, (size, backend) in enumerate(sizes_and_backends)
    }


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (_with_blocks((64, AnySize)), 64),
        (_with_blocks((64, AnySize), (64, EightOrSixteen)), 16),
        (_with_blocks((64, AnySize), (24, EightOrSixteen)), 8),
        (_with_blocks((64, MultiplesOf16), (96, MultiplesOf16)), 32),
        (_with_blocks((64, MultiplesOf16), (48, Sixteen), (16, EightOrSixteen)), 16),
    ],
)
def test_host_layers_get_one_block_size_that_no_backend_cuts(layers, expected):
    own = {"layers.9.attn": Layer(replace(FULL, block_size=128))}
    specs = get_kv_cache_spec(layers | own, CONFIG, host_layer_names=set(layers))
    assert {specs[name].block_size for name in layers} == {expected}
    assert specs["layers.9.attn"].block_size == 128


def test_states_keep_their_blocks_on_the_host():
    specs = get_kv_cache_spec(LAYERS, CONFIG, {"layers.1.mixer"})
    assert specs["layers.1.mixer"] == STATE


SIXTEEN_IN_24 = {"layers.0.attn": Layer(replace(FULL, block_size=24), backend=Sixteen)}
NO_SPEC, NO_CUSTOM_SPEC = Layer("a spec"), Layer(FULL, backend=type("Forgets", (AnySize,), {"customize_spec": print}))
BAD_LAYERS = [
    (["layers.0.attn"], (), ArgumentTypeError, "layers: expected a mapping from names to layers, got list"),
    ({"layers.0.attn": None}, (), ArgumentTypeError, r"layers\['layers.0.attn'\]: expected an AttentionLayer by name"),
    ({0: Layer(FULL)}, (), ArgumentTypeError, r"layers\[0\]: expected an AttentionLayer by name"),
    ({"a.0": NO_SPEC}, (), ArgumentTypeError, r"a.0.get_kv_cache_spec\(\): expected a KVCacheSpec or None, got str"),
    ({"a.0": NO_CUSTOM_SPEC}, (), ArgumentTypeError, r"Forgets.customize_spec\(\): expected a KVCacheSpec, got None"),
    ({"a.0": Layer(FULL, "b.0")}, (), ArgumentError, "a.0.kv_sharing_target_layer_name: expected the name of a layer"),
    ({"a.0": Layer(FULL, "a.0")}, (), ArgumentError, "expected a layer with a cache of its own, got 'a.0', which"),
    (
        {"a.0": Layer(FULL), "a.1": Layer(FULL, "a.0"), "a.2": Layer(FULL, "a.1")},
        (),
        ArgumentError,
        "a.2.kv_sharing_target_layer_name: expected a layer with a cache of its own, got 'a.1', which shares 'a.0'",
    ),
    ({"a.1": Layer(FULL, "a.0"), "a.0": Layer(FULL)}, (), ArgumentError, "expected an earlier layer, got 'a.0'"),
    (LAYERS, {"layers.7"}, ArgumentError, "host_layer_names: expected layers with a cache of their own, got 'layers.7"),
    (LAYERS, {"layers.3.attn"}, ArgumentError, "host_layer_names: expected layers with a cache of their own"),
    (LAYERS, {"layers.4.mlp"}, ArgumentError, "host_layer_names: expected layers with a cache of their own"),
    (LAYERS, "layers.0.attn", ArgumentTypeError, "host_layer_names: expected a collection of names"),
    (SIXTEEN_IN_24, {"layers.0.attn"}, ArgumentError, r"that every backend supports \(Sixteen: 16\), got 24"),
    (
        _with_blocks((64, Sixteen), (24, EightOrSixteen)),
        {"layers.0.attn", "layers.1.attn"},
        ArgumentError,
        r"Sixteen: 16; EightOrSixteen: 8, 16\), got 8; .*layers.0.attn 64, layers.1.attn 24",
    ),
]


@pytest.mark.parametrize(("layers", "host", "error", "message"), BAD_LAYERS)
def test_bad_layers_are_refused(layers, host, error, message):
    with pytest.raises(error, match=message):
        get_kv_cache_spec(layers, CONFIG, host)


def _config(*groups):
    names = [name for group in groups for name in group.layer_names]
    pages = {name: group.spec_of(name).page_size_bytes for group in groups for name in group.layer_names}
    return KVCacheConfig(5, groups, tuple(KVCacheTensor(5 * pages[name], (name,)) for name in names))


OWN = _config(KVCacheGroup(("a.0", "a.1"), FULL), KVCacheGroup(("b.0",), WINDOW))


def test_sharing_layers_join_the_groups_of_their_targets():
    shared = {"a.7": "a.1", "b.5": "b.0", "a.6": "a.0"}
    with_readers = add_kv_sharing_layers_to_kv_cache_groups(OWN, shared)
    assert [group.layer_names for group in with_readers.groups] == [("a.0", "a.1", "a.7", "a.6"), ("b.0", "b.5")]
    assert with_readers.tensors == OWN.tensors
    assert [group.layer_names for group in OWN.groups] == [("a.0", "a.1"), ("b.0",)]
    assert add_kv_sharing_layers_to_kv_cache_groups(OWN, {}) == OWN


def test_a_sharing_layer_has_its_targets_spec_among_several():
    wide = FullAttentionSpec(8, num_kv_heads=2, head_size=8, dtype="float16")
    group = KVCacheGroup(("a.0", "a.1"), UniformTypeSpecs((("a.0", FULL), ("a.1", wide))), is_host_resident=True)
    joined = add_kv_sharing_layers_to_kv_cache_groups(_config(group), {"a.2": "a.1"}).groups[0]
    assert joined.spec_of("a.2") == wide
    assert joined.is_host_resident


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ({"a.2": "a.9"}, r"shared_kv_cache_layers\['a.2'\]: expected a layer of some group, got 'a.9'"),
        ({"a.2": "a.0", "a.3": "a.2"}, r"shared_kv_cache_layers\['a.3'\]: expected a layer of some group, got 'a.2'"),
        ({"a.1": "a.0"}, "shared_kv_cache_layers: expected layers of no group, got 'a.1'"),
        ({"a.0": "a.0"}, "shared_kv_cache_layers: expected layers of no group, got 'a.0'"),
    ],
)
def test_bad_sharing_is_refused_and_changes_nothing(shared, message):
    before = repr(OWN)
    with pytest.raises(ArgumentError, match=message):
        add_kv_sharing_layers_to_kv_cache_groups(OWN, shared)
    assert repr(OWN) == before
