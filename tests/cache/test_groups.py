"""Groups and tensors: what may share bytes, and what may not."""

import pytest

from numba_ckpt.cache import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheTensor,
    SlidingWindowSpec,
    UniformTypeSpecs,
)
from numba_ckpt.errors import ArgumentError

FULL = FullAttentionSpec(16, 2, 64)
WINDOW = SlidingWindowSpec(16, 2, 64, sliding_window=32)
SMALL = SlidingWindowSpec(16, 1, 64, sliding_window=32)
PAGE = FULL.page_size_bytes
A, B = KVCacheGroup(("a0", "a1"), FULL), KVCacheGroup(("b0", "b1"), WINDOW)


def tensors(*names, size=10 * PAGE):
    return tuple(KVCacheTensor(size, layers) for layers in names)


def test_groups_overlay_each_other():
    config = KVCacheConfig(10, (A, B), tensors(("a0", "b0"), ("a1", "b1")))
    assert config.size_bytes == 20 * PAGE
    assert config.group_of("b1") is B
    assert config.spec_of("a0") is FULL
    assert hash(config) == hash(KVCacheConfig(10, [A, B], list(tensors(["a0", "b0"], ["a1", "b1"]))))


def test_layers_of_a_group_may_differ():
    narrow = FullAttentionSpec(16, 1, 64, sliding_window=8)
    group = KVCacheGroup(("wide", "narrow"), UniformTypeSpecs((("wide", FULL), ("narrow", narrow))))
    pair = KVCacheTensor(10 * PAGE, ("wide",)), KVCacheTensor(5 * PAGE, ("narrow",))
    assert KVCacheConfig(10, (group,), pair).spec_of("narrow").sliding_window == 8


BAD = {
    "group without layers": (lambda: KVCacheGroup((), FULL), "layer_names: expected at least one layer"),
    "a layer twice in a group": (lambda: KVCacheGroup(("a", "b", "a"), FULL), "layer_names: .*got a twice"),
    "one string": (lambda: KVCacheGroup("ab", FULL), "layer_names: expected a tuple of layer names"),
    "numbers": (lambda: KVCacheGroup((1, 2), FULL), "layer_names: expected a tuple of layer names"),
    "no spec": (lambda: KVCacheGroup(("a",), None), "spec: expected a KVCacheSpec, got NoneType"),
    "residency": (lambda: KVCacheGroup(("a",), FULL, "host"), "is_host_resident: expected True or False"),
    "layer without spec": (
        lambda: KVCacheGroup(("a", "b"), UniformTypeSpecs((("a", FULL),))),
        "layer_name: expected one of a, got 'b'",
    ),
    "tensor without layers": (lambda: KVCacheTensor(64, ()), "layer_names: expected at least one layer"),
    "tensor without bytes": (lambda: KVCacheTensor(0, ("a",)), "size_bytes: expected an integer"),
    "no blocks": (lambda: KVCacheConfig(0, (A,), ()), "num_blocks: expected an integer"),
    "one group": (lambda: KVCacheConfig(10, A, ()), "groups: expected a tuple of KVCacheGroup"),
    "tensors of sizes": (lambda: KVCacheConfig(10, (A,), (64,)), "tensors: expected a tuple of KVCacheTensor"),
    "a layer in two groups": (
        lambda: KVCacheConfig(10, (A, KVCacheGroup(("a1",), WINDOW)), ()),
        "groups: .*'a1' in groups 0 and 1",
    ),
    "a layer in two tensors": (
        lambda: KVCacheConfig(10, (A, B), tensors(("a0", "b0"), ("a0",))),
        "tensors: .*'a0' in tensors 0 and 1",
    ),
    "unknown layer": (lambda: KVCacheConfig(10, (A,), tensors(("c0",))), r"tensors\[0\]: .*got 'c0'"),
    "layers of one group overlay": (
        lambda: KVCacheConfig(10, (A, B), tensors(("a0", "a1"))),
        r"tensors\[0\]: expected layers of different groups, got a0, a1",
    ),
    "another order (B49)": (
        lambda: KVCacheConfig(10, (A, B), tensors(("a0", "b0"), ("b1", "a1"))),
        r"tensors\[1\]: expected layers in the order of the groups",
    ),
    "pages of two sizes": (
        lambda: KVCacheConfig(10, (A, KVCacheGroup(("s",), SMALL)), tensors(("a0", "s"))),
        r"tensors\[0\]: .*8192 of a0, 4096 of s",
    ),
    "too few bytes": (
        lambda: KVCacheConfig(10, (A,), tensors(("a0",), size=9 * PAGE)),
        r"tensors\[0\]: expected 81920 bytes: 10 blocks of 8192, got 73728",
    ),
    "group of an unknown layer": (lambda: KVCacheConfig(10, (A,), ()).group_of("b0"), "layer_name: expected a layer"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_refusals(make, message):
    with pytest.raises(ArgumentError, match="^" + message):
        make()
