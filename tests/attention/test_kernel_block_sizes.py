"""Kernel block sizes: the manager's, a common part of it, or a list of what each backend wants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.attention import (
    AttentionGroup,
    MultipleOf,
    check_peer_kernel_block_sizes,
    init_attn_backend,
    prepare_kernel_block_sizes,
    select_kernel_block_size,
    select_peer_kernel_block_size,
)
from numba_ckpt.cache import StateSpec
from numba_ckpt.errors import ArgumentError
from tests.attention.layers import SPEC, Layer, backend, engine_config, kv_cache_config


@pytest.mark.parametrize(
    ("block_size", "supported", "expected"),
    [
        (256, [(16, 32)], 32),
        (256, [(16, 32), (MultipleOf(16),)], 32),
        (256, [(16, 32), (16,)], 16),
        (256, [(MultipleOf(16),)], 256),
        (256, [(64, 256), (MultipleOf(64),)], 256),
        (528, [(16,)], 16),
        (528, [(16, MultipleOf(176))], 528),
        (128, [(64, 48), (MultipleOf(16),)], 64),
        (24, [], 24),
        (7, [(1,), (MultipleOf(1),)], 1),
    ],
)
def test_selection(block_size, supported, expected):
    backends = [backend(f"B{index}", sizes) for index, sizes in enumerate(supported)]
    assert select_kernel_block_size(block_size, backends) == expected


SIZES = st.lists(st.integers(1, 12) | st.builds(MultipleOf, st.integers(1, 12)), min_size=1, max_size=3).map(tuple)


def allows(sizes, size):
    return any(size % one.base == 0 if isinstance(one, MultipleOf) else size == one for one in sizes)


@given(st.integers(1, 48), st.lists(SIZES, min_size=1, max_size=3))
def test_selection_agrees_with_an_oracle(block_size, supported):
    backends = [backend(f"B{index}", sizes) for index, sizes in enumerate(supported)]
    named = {one for sizes in supported for one in sizes if not isinstance(one, MultipleOf)}
    common = [size for size in named | {block_size} if all(allows(sizes, size) for sizes in supported)]
    fitting = [size for size in common if block_size % size == 0]
    if fitting:
        assert select_kernel_block_size(block_size, backends) == max(fitting)
    else:
        with pytest.raises(ArgumentError, match="block_size: expected a multiple of a size that every backend"):
            select_kernel_block_size(block_size, backends)


def test_b71_peers_with_other_blocks_agree():
    multiples = backend("Multiples", (MultipleOf(16),))
    peers = {"tp1": 4192, "tp2": 4192, "tp4": 2112}
    assert {select_peer_kernel_block_size(peers, [multiples])} == {32}
    assert select_peer_kernel_block_size(dict(reversed(peers.items())), [multiples]) == 32
    # What a fixed grid of powers of two gave each of them.
    with pytest.raises(ArgumentError, match=r"expected the same for all peers, got tp1 \[32\], tp2 \[32\], tp4 \[64\]"):
        check_peer_kernel_block_sizes({"tp1": [32], "tp2": (32,), "tp4": [64]})
    check_peer_kernel_block_sizes({"tp1": [32], "tp2": (32,)})
    check_peer_kernel_block_sizes({})


def test_states_are_never_split():
    state = StateSpec(1024, shapes=((4,),), dtypes=("float32",))
    layers = {"m": Layer(backend("Scan", (16,))), "f": Layer(backend("Paged16", (16,)))}
    layers["m"].num_heads = 0
    groups, _, sizes = init_attn_backend(kv_cache_config((("m",), state), (("f",), SPEC)), layers, engine_config())
    assert sizes == [1024, 16]
    assert groups[0][0].metadata_builders[0].kernel_block_size == 1024


def test_one_size_per_cache_group():
    config = kv_cache_config((("a",), SPEC), (("b",), SPEC), (("c",), SPEC))
    small, any_size = backend("Small", (8,)), backend("Any")
    groups = [
        [AttentionGroup(any_size, ("a",), SPEC, 0)],
        [],
        [AttentionGroup(any_size, ("c",), SPEC, 2), AttentionGroup(small, ("d",), SPEC, 2)],
    ]
    assert prepare_kernel_block_sizes(config, groups) == [16, 16, 8]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultipleOf(0), "MultipleOf.base: expected an integer in"),
        (lambda: MultipleOf(1.5), "MultipleOf.base: expected an integer"),
        (lambda: select_kernel_block_size(0, []), "block_size: expected an integer in"),
        (lambda: select_kernel_block_size(True, []), "block_size: expected an integer"),
        (lambda: select_kernel_block_size(16, [backend("B", (0,))]), r"B.supported_kernel_block_sizes\(\): expected"),
        (
            lambda: select_kernel_block_size(16, [backend("B", ("16",))]),
            r"B.supported_kernel_block_sizes\(\): expected",
        ),
        (lambda: select_kernel_block_size(16, [backend("B", 16)]), r"sizes\(\): expected a tuple, got 16"),
        (
            lambda: select_kernel_block_size(24, [backend("A", (16, 32)), backend("B", (MultipleOf(16),))]),
            r"\(A: 16, 32; B: multiples of 16\), got 24; choose another",
        ),
        (lambda: select_peer_kernel_block_size({}, []), "block_sizes: expected at least one peer"),
        (lambda: select_peer_kernel_block_size({"a": 0}, []), r"block_sizes\['a'\]: expected an integer in"),
        (
            lambda: select_peer_kernel_block_size({"a": 4192, "b": 2112}, [backend("B", (64,))]),
            "got 32; .*the greatest common divisor of a 4192, b 2112",
        ),
        (lambda: check_peer_kernel_block_sizes({"a": [16, 16], "b": [16]}), r"got a \[16, 16\], b \[16\]"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
