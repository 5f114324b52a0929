"""Planning groups and tensors from what layers cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.cache import (
    EncoderOnlyAttentionSpec,
    EngineConfig,
    FullAttentionSpec,
    LimitsConfig,
    StateSpec,
    UniformTypeSpecs,
    groups_to_zero,
    plan_kv_cache,
    plan_memory,
)
from numba_ckpt.cache.config import LAYOUTS
from numba_ckpt.errors import ArgumentError
from tests.cache.models import FULL, HYBRID, STATE, WINDOW


def names(config):
    return [group.layer_names for group in config.groups], [tensor.layer_names for tensor in config.tensors]


def test_layers_of_one_spec_make_one_group():
    config = plan_kv_cache({"a": FULL, "b": FULL}, available_bytes=10 * FULL.page_size_bytes + 7)
    assert names(config) == ([("a", "b")], [("a",), ("b",)])
    assert config.num_blocks == 5


def test_layers_that_share_a_table_keep_their_own_pages():
    local = FullAttentionSpec(8, num_kv_heads=1, head_size=4, dtype="float16", sliding_window=16)
    config = plan_kv_cache({"a": FULL, "b": local}, num_blocks=3)
    assert isinstance(config.groups[0].spec, UniformTypeSpecs)
    assert [tensor.size_bytes for tensor in config.tensors] == [768, 384]
    assert config.spec_of("b").sliding_window == 16  # B67


# B49: layer i of every group in tensor i, and groups in one order everywhere.
def test_kinds_overlay_each_other_in_one_order():
    config = plan_kv_cache(HYBRID, num_blocks=10)
    groups, tensors = names(config)
    assert groups == [("m0",), ("m1",), ("m2",), ("m3",), ("f0",), ("f1",), ("w0",)]
    assert tensors == [("m0", "m1", "m2", "m3", "f0", "f1", "w0")]
    assert {group.spec.page_size_bytes for group in config.groups} == {256}
    assert config.groups[0].spec.data_size_bytes == 184


def test_kinds_of_nearly_as_many_layers_make_one_group_each():
    specs = {f"f{i}": FULL for i in range(9)} | {f"w{i}": WINDOW for i in range(10)}
    groups, tensors = names(plan_kv_cache(specs, num_blocks=10))
    assert [len(group) for group in groups] == [9, 10]
    assert (len(tensors), tensors[9], tensors[0]) == (10, ("w9",), ("f0", "w0"))


def test_the_largest_page_is_rounded_for_wider_elements():
    odd = FullAttentionSpec(1, 1, 3, "uint8", head_size_v=4)
    config = plan_kv_cache({"a": odd, "b": StateSpec(4, ((1,),), ("float32",))}, num_blocks=3)
    assert {group.spec.page_size_bytes for group in config.groups} == {8}


def test_layers_without_a_cache_are_left_out():
    config = plan_kv_cache({"a": EncoderOnlyAttentionSpec(8, 2, 4), "b": FULL}, num_blocks=3)
    assert names(config) == ([("b",)], [("b",)])
    with pytest.raises(ArgumentError, match="specs: expected a layer with a cache"):
        plan_kv_cache({"a": EncoderOnlyAttentionSpec(8, 2, 4)}, num_blocks=3)


def test_the_longest_request_fits():
    config = EngineConfig(LimitsConfig(4, 64, 80))
    assert plan_kv_cache({"a": FULL}, num_blocks=11, config=config).num_blocks == 11
    with pytest.raises(ArgumentError, match=r"num_blocks: expected at least 11 blocks \(2816 bytes\)"):
        plan_kv_cache({"a": FULL}, num_blocks=10, config=config)


# B43, B44: who must not see what was there before.
def test_what_has_to_be_zeroed():
    assert groups_to_zero(plan_kv_cache({"a": FULL, "b": WINDOW}, num_blocks=3)) == ()
    assert groups_to_zero(plan_kv_cache({"m": STATE}, num_blocks=3)) == (0,)
    assert groups_to_zero(plan_kv_cache({"a": FULL, "m": STATE}, num_blocks=3)) == (0, 1)
    fp8 = FullAttentionSpec(8, 2, 8, "fp8")
    assert groups_to_zero(plan_kv_cache({"a": fp8, "b": WINDOW}, num_blocks=3)) == (0, 1)
    halves = StateSpec(8, ((4,),), ("float16",))
    assert groups_to_zero(plan_kv_cache({"a": FULL, "m": halves}, num_blocks=3)) == (1,)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=4), st.integers(0, 200_000))
def test_the_allocation_fits_into_the_bytes_that_are_there(sizes, available):
    specs = {f"{size}": FullAttentionSpec(1, 1, size, "uint8", head_size_v=1) for size in sizes}
    try:
        plan = plan_kv_cache(specs, available_bytes=available)
    except ArgumentError:
        assert available < 2 * sum(spec.page_size_bytes + 256 for spec in specs.values())
        return
    for layout in LAYOUTS if len(set(sizes)) == 1 else ("LBHNC", "LBNHC"):
        assert plan_memory(plan, layout).size_bytes <= available
    more = [(plan.num_blocks + 1) * spec.page_size_bytes for spec in specs.values()]
    assert sum(-(-size // 256) * 256 for size in more) > available


def test_padded_pages_can_be_split_into_kernel_blocks():
    full = FullAttentionSpec(528, num_kv_heads=1, head_size=64, dtype="bfloat16")
    state = StateSpec(528, shapes=((3, 64), (40, 35, 25)), dtypes=("bfloat16", "float32"))
    assert state.page_size_bytes > full.page_size_bytes
    plan = plan_kv_cache({"m": state, "f": full}, num_blocks=4)
    page = plan.groups[0].spec.page_size_bytes
    assert (page % (528 * 2), page - state.page_size_bytes < 528 * 4) == (0, True)
    for size in (16, 48, 176, 528):
        assert plan_memory(plan, "LBNHC", [None, size]).layers["f"].views[0].shape[0] == 4 * 528 // size
