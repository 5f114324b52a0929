"""CUDA-graph support: the recordings, the weakest builder and its name."""

import pytest

from numba_ckpt.attention import (
    AttentionCGSupport,
    AttentionCGSupportInfo,
    AttentionGroup,
    get_attn_cg_support,
    get_query_lens_mismatch_unsupported_backend,
)
from numba_ckpt.attention.groups import init_attn_backend
from numba_ckpt.errors import ArgumentTypeError
from tests.attention.layers import SPEC, CommonBuilder, Layer, backend, engine_config, kv_cache_config
from tests.golden.pack import read_records


def test_recorded_narrowings():
    cases = read_records("g3_cg_support_narrow")
    assert len(cases) == 48
    for case in cases:
        old, new, result = (AttentionCGSupport[case[key]] for key in ("support", "new_support", "result_support"))
        assert (old.value, new.value) == (case["support_value"], case["new_support_value"])
        info = AttentionCGSupportInfo(old, case["backend"])
        assert info.narrow(new, case["new_backend"]) == AttentionCGSupportInfo(result, case["result_backend"])
        assert info == AttentionCGSupportInfo(old, case["backend"])


def group(name, support=AttentionCGSupport.ALWAYS, layer=None, exact=False):
    made = backend(name, support=support, exact=exact)
    builder = made.builder_class()(SPEC, (layer or name,), None)
    return AttentionGroup(made, (layer or name,), SPEC, 0, (builder,))


GROUPS = [
    [group("a"), group("b", AttentionCGSupport.UNIFORM_BATCH)],
    [],
    [group("c", AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE, exact=True), group("d", exact=True)],
    [group("e", AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE)],
]


@pytest.mark.parametrize(
    ("checked", "support", "name"),
    [
        (None, AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE, "c"),
        ({"a"}, AttentionCGSupport.ALWAYS, None),
        ({"a", "b"}, AttentionCGSupport.UNIFORM_BATCH, "b"),
        (["e", "d"], AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE, "e"),
        (set(), AttentionCGSupport.ALWAYS, None),
    ],
)
def test_the_weakest_and_its_name(checked, support, name):
    assert get_attn_cg_support(GROUPS, checked) == AttentionCGSupportInfo(support, name)


@pytest.mark.parametrize(("checked", "name"), [(None, "c"), ({"d", "e"}, "d"), ({"a", "e"}, None), (set(), None)])
def test_the_first_that_needs_exact_query_lens(checked, name):
    assert get_query_lens_mismatch_unsupported_backend(GROUPS, checked) == name


def test_b70_a_builder_on_its_fallback_path_is_never_captured():
    class Fallback(CommonBuilder):
        def get_cudagraph_support(self):
            uses_fallback = self.kernel_block_size % 32 != 0  # which waits for the device
            return AttentionCGSupport.NEVER if uses_fallback else AttentionCGSupport.UNIFORM_BATCH

    made = backend("Fallback")
    made.builder_class = classmethod(lambda cls: Fallback)
    layers = {"a": Layer(backend("Uniform", support=AttentionCGSupport.UNIFORM_BATCH)), "b": Layer(made)}
    _, info, _ = init_attn_backend(kv_cache_config((("a", "b"), SPEC)), layers, engine_config())
    assert info == AttentionCGSupportInfo(AttentionCGSupport.NEVER, "Fallback")


def test_a_builder_is_captured_only_if_it_says_so():
    class Silent(CommonBuilder):
        get_cudagraph_support = CommonBuilder.__mro__[1].get_cudagraph_support

    assert Silent(SPEC, ("a",), None).get_cudagraph_support() is AttentionCGSupport.NEVER


@pytest.mark.parametrize("function", [get_attn_cg_support, get_query_lens_mismatch_unsupported_backend])
def test_a_name_is_no_collection_of_names(function):
    with pytest.raises(ArgumentTypeError, match="checked_layer_names: expected a collection of names, got 'ab'"):
        function(GROUPS, "ab")
