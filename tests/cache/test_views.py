"""Layouts, allocation and views: addresses, aliasing, split blocks, states, and what is refused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from numba_ckpt.cache import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheStorage,
    KVCacheTensor,
    MLAAttentionSpec,
    StateSpec,
    allocate_kv_cache,
    plan_kv_cache,
    plan_memory,
    split_kv,
    view_caches,
)
from numba_ckpt.checkpoint import ConvCache, RecurrentCache
from numba_ckpt.errors import ArgumentError
from numba_ckpt.testing import poisoned
from tests.cache.models import FULL, HYBRID, LAYOUTS, STATE, arrays_of, block_of, bytes_of, plan, walked_offset

EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


@EVERY_LAYOUT
def test_every_element_lies_where_its_letters_say(layout):
    spec = FullAttentionSpec(2, num_kv_heads=3, head_size=1, dtype="uint8")
    memory = plan_memory(plan({"a": spec, "b": spec}, num_blocks=128), layout)  # 12 bytes: 6 * 256 per tensor
    sizes = {"L": 2, "B": 128, "H": 3, "N": 2, "C": 2}
    for layer, block, head, token, content in itertools.product((0, 1), (0, 1, 127), (0, 2), (0, 1), (0, 1)):
        view = memory.layers["ab"[layer]].views[0]
        place = {"L": layer, "B": block, "H": head, "N": token, "C": content}
        steps = zip((block, head, token, content), view.strides, strict=True)
        assert view.offset + sum(i * step for i, step in steps) == walked_offset(layout, sizes, place)


@EVERY_LAYOUT
def test_layers_of_a_group_share_no_byte_and_cover_the_allocation(layout):
    storage = KVCacheStorage.allocate(plan_memory(plan({"a": FULL, "b": FULL, "c": FULL}), layout))
    seen = np.zeros(storage.memory.size, np.int64)
    for view in storage.views.values():
        seen[bytes_of(view, storage.memory)] += 1
    assert seen.max() == 1
    assert seen.sum() == storage.plan.kv_cache_config.size_bytes


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_overlaying_groups_share_bytes_of_one_block_only(layout):
    config = plan(HYBRID)
    storage = KVCacheStorage.allocate(plan_memory(config, layout))
    owner = np.full(storage.memory.size, -1)
    for block in range(config.num_blocks):
        for view in storage.views.values():
            for part in block_of(view, block, config.num_blocks):
                touched = bytes_of(part, storage.memory)
                assert set(owner[touched]) <= {-1, block}
                owner[touched] = block


@EVERY_LAYOUT
def test_one_layer_alone_ignores_the_place_of_layers(layout):
    padded = replace(FULL, num_kv_heads=1, page_size_padded=512)
    views = allocate_kv_cache(plan({"a": padded}), layout)
    assert views["a"].strides[0] == 512


def test_a_block_of_all_layers_is_one_piece_where_blocks_come_first():
    storage = KVCacheStorage.allocate(plan_memory(plan({"a": FULL, "b": FULL}), "BLNHC"))
    page = FULL.page_size_bytes
    assert storage.views["b"].ctypes.data - storage.views["a"].ctypes.data == page
    assert storage.views["a"].strides[0] == 2 * page


def test_tensors_begin_where_wide_words_do():
    odd = FullAttentionSpec(1, 1, 1, "float16")
    views = plan_memory(plan({"a": odd, "b": odd}, num_blocks=3)).layers
    assert [layer.views[0].offset for layer in views.values()] == [0, 256]


def test_heads_and_kinds_may_differ_where_layers_come_first():
    wide = FullAttentionSpec(8, num_kv_heads=3, head_size=4, dtype="float16")
    for layout in ("LBHNC", "LBNHC", "LHBNC"):
        views = allocate_kv_cache(plan({"a": FULL, "b": wide}), layout)
        assert views["b"].shape == (5, 3, 8, 8)


# B41: keys and values of a token lie side by side.
@EVERY_LAYOUT
def test_keys_and_values_are_read_by_their_strides(layout):
    spec = FullAttentionSpec(4, num_kv_heads=2, head_size=3, dtype="float32", head_size_v=2)
    views = allocate_kv_cache(plan({"a": spec, "b": spec}, num_blocks=3), layout)
    for number, view in enumerate(views.values()):
        keys, values = split_kv(view, spec)
        assert keys.shape == (3, 2, 4, 3)
        assert values.shape == (3, 2, 4, 2)
        assert not keys.flags.c_contiguous
        keys[...], values[...] = 10 + number, 20 + number
    for number, view in enumerate(views.values()):
        assert view[1, 1, 2].tolist() == [10 + number] * 3 + [20 + number] * 2


# B25: a block of 528 tokens that kernels read as 33 blocks of 16.
@EVERY_LAYOUT
def test_a_block_split_in_33(layout):
    spec = FullAttentionSpec(528, num_kv_heads=2, head_size=2, dtype="float16")
    config = plan({"a": spec, "b": spec}, num_blocks=3)
    storage = KVCacheStorage.allocate(plan_memory(config, layout, [16]))
    whole = KVCacheStorage.allocate(plan_memory(config, layout))
    mine, theirs = (
        np.sort(np.concatenate([bytes_of(block_of(view, 2, 3)[0], one.memory) for view in one.views.values()]))
        for one in (storage, whole)
    )
    assert mine.tolist() == theirs.tolist()  # whoever moves a block of the pool need not know what kernels read
    view = storage.views["a"]
    assert view.shape == (99, 2, 16, 4)
    view[2 * 33 + 5] = 7
    storage.zero_blocks([1])
    assert (view[71] == 7).all()
    storage.zero_blocks([2])
    assert not view[71].any()


def test_padding_is_shared_out_among_kernel_blocks():
    spec = FullAttentionSpec(32, 1, 4, "float16", page_size_padded=640)
    view = allocate_kv_cache(plan({"a": spec}), "LBNHC", [16])["a"]
    assert (view.shape, view.strides[0]) == ((10, 1, 16, 8), 320)


def test_states_are_views_that_exporters_take():
    spec = replace(STATE, page_size_padded=512)
    storage = KVCacheStorage.allocate(plan_memory(plan({"m": spec, "n": spec}), "BLHNC"))
    conv, recurrent = storage.views["n"]
    assert (conv.dtype, conv.shape, conv.strides) == (np.float16, (5, 3, 4), (1024, 8, 2))
    assert (recurrent.dtype, recurrent.shape, recurrent.strides) == (np.float32, (5, 2, 4, 5), (1024, 80, 20, 4))
    assert conv.ctypes.data - storage.memory.ctypes.data == 512
    assert recurrent.ctypes.data - conv.ctypes.data == 24
    assert np.shares_memory(ConvCache(conv, "len_first").words, storage.memory)
    assert np.shares_memory(RecurrentCache(recurrent, "HKV").words, storage.memory)


# B38: the shape keeps its order of axes; K and V differ here.
def test_a_state_keeps_its_orientation():
    spec = StateSpec(8, shapes=((2, 3, 5),), dtypes=("float32",))
    (states,) = allocate_kv_cache(plan({"m": spec}))["m"]
    assert (states.shape, states.strides[1:]) == ((5, 2, 3, 5), (60, 20, 4))


# B77: bfloat16 and float8 cross as words.
def test_raw_elements():
    bf16 = StateSpec(8, shapes=((3, 4), (8,)), dtypes=("bfloat16", "fp8"))
    conv, side = allocate_kv_cache(plan({"m": bf16}))["m"]
    assert (conv.dtype, side.dtype) == (np.uint16, np.uint8)
    assert ConvCache(conv, "len_first", dtype="bfloat16").state_len == 3


def test_a_latent_has_no_values():
    latent = MLAAttentionSpec(8, 1, 12, "float16")
    view = allocate_kv_cache(plan({"a": latent}))["a"]
    assert view.shape == (5, 1, 8, 12)
    with pytest.raises(ArgumentError, match="spec: expected keys and values, got MLAAttentionSpec, one latent"):
        split_kv(view, latent)


def test_caches_begin_as_zeros():
    views = allocate_kv_cache(plan(HYBRID))
    assert list(views) == [name for tensor in plan(HYBRID).tensors for name in tensor.layer_names]
    assert not any(array.any() for view in views.values() for array in arrays_of(view))


def test_host_resident_groups_are_left_out():
    groups = KVCacheGroup(("a",), FULL), KVCacheGroup(("b",), FULL, is_host_resident=True)
    size = 5 * FULL.page_size_bytes
    config = KVCacheConfig(5, groups, (KVCacheTensor(size, ("a",)), KVCacheTensor(size, ("b",))))
    memory = plan_memory(config, "BLHNC")
    assert (list(memory.layers), memory.size_bytes) == (["a"], 1280)
    mixed = KVCacheConfig(5, groups, (KVCacheTensor(size, ("a", "b")),))
    with pytest.raises(ArgumentError, match=r"tensors\[0\]: expected layers of one place"):
        plan_memory(mixed)


def test_no_tensor_at_all():
    group = KVCacheGroup(("a",), FULL, is_host_resident=True)
    assert allocate_kv_cache(KVCacheConfig(5, (group,), ()), "BLHNC") == {}


TWO = plan({"a": FULL, "b": FULL})
PADDED = plan({"a": replace(FULL, page_size_padded=512), "b": replace(FULL, page_size_padded=512)})
PAIRS = plan({"m": STATE, "n": STATE, "a": FULL, "b": FULL})
BAD = {
    "layout": (lambda: plan_memory(TWO, "LBHCN"), "layout: expected one of 'LBHNC'"),
    "no layout": (lambda: plan_memory(TWO, None), "layout: expected one of 'LBHNC'"),
    "no config": (lambda: plan_memory({"a": FULL}), "kv_cache_config: expected a KVCacheConfig, got dict"),
    "sizes of other groups": (lambda: plan_memory(TWO, "LBHNC", [8, 8]), "kernel_block_sizes: expected 1 sizes"),
    "no divisor": (lambda: plan_memory(TWO, "LBHNC", [3]), r"kernel_block_sizes\[0\]: expected a divisor"),
    "larger than the block": (lambda: plan_memory(TWO, "LBHNC", [16]), r"kernel_block_sizes\[0\]: expected a divisor"),
    "zero": (lambda: plan_memory(TWO, "LBHNC", [0]), r"kernel_block_sizes\[0\]: expected an integer"),
    "float": (lambda: plan_memory(TWO, "LBHNC", [4.0]), r"kernel_block_sizes\[0\]: expected an integer"),
    "split states": (
        lambda: plan_memory(plan({"m": STATE}), "LBHNC", [4]),
        r"kernel_block_sizes\[0\]: expected the block size 8, got 4",
    ),
    "padding that cannot be split": (
        lambda: plan_memory(plan({"a": replace(FULL, page_size_padded=258)}), "LBHNC", [4]),
        r"kernel_block_sizes\[0\]: expected kernel blocks that 2 of make up a page of 258 bytes",
    ),
    "padding between heads": (lambda: plan_memory(PADDED, "LHBNC"), "layout: expected pages without padding"),
    "padding between heads of layers": (lambda: plan_memory(PADDED, "BHLNC"), "layout: expected pages without padd"),
    "states under scattered heads": (lambda: plan_memory(plan(HYBRID), "LHBNC"), "layout: expected pages of one cut"),
    "states among heads of layers": (lambda: plan_memory(PAIRS, "BHLNC"), "layout: expected pages of one cut"),
    "pages of two sizes between blocks": (
        lambda: plan_memory(plan({"a": FULL, "b": replace(FULL, head_size=8, head_size_v=8)}), "BLHNC"),
        "layout: expected pages of one cut in layout BLHNC, got 256 bytes, .* in 'a', 512 bytes",
    ),
    "heads of two numbers": (
        lambda: plan_memory(plan({"a": FULL, "b": replace(FULL, num_kv_heads=1, head_size=8, head_size_v=8)}), "BHLNC"),
        "layout: .*2 head.* in 'a'.*1 head",
    ),
    "kernel blocks of two sizes between blocks": (
        lambda: plan_memory(PAIRS, "BLHNC", [None, 4]),
        r"layout: .*1 kernel block\(s\) in 'm', .*2 kernel block\(s\) in 'a'",
    ),
    "memory of floats": (
        lambda: view_caches(np.zeros(4096, np.float32), plan_memory(TWO)),
        r"memory: expected bytes \(uint8\)",
    ),
    "memory in rows": (lambda: view_caches(np.zeros((2, 4096), np.uint8), plan_memory(TWO)), "memory: expected 1 dim"),
    "no memory": (lambda: view_caches([0] * 4096, plan_memory(TWO)), "memory: expected a 1-d array"),
    "too little memory": (lambda: view_caches(np.zeros(99, np.uint8), plan_memory(TWO)), "memory: expected at least"),
    "memory with gaps": (
        lambda: view_caches(np.zeros(9999, np.uint8)[::2], plan_memory(TWO)),
        "memory: expected contiguous bytes",
    ),
    "misaligned memory": (
        lambda: view_caches(np.zeros(9999, np.uint8)[1:], plan_memory(TWO)),
        "memory: expected an address that is a multiple of 2",
    ),
    "read-only memory": (
        lambda: view_caches(np.frombuffer(bytes(9999), np.uint8), plan_memory(TWO)),
        "memory: expected a writable array",
    ),
    "keys of states": (lambda: split_kv(np.zeros((5, 1, 1, 1)), STATE), "spec: expected an AttentionSpec"),
    "keys of another cache": (lambda: split_kv(np.zeros((5, 1, 8, 8)), FULL), "cache: expected 2 heads and 8 elements"),
    "keys of rows": (lambda: split_kv(np.zeros((5, 8)), FULL), "cache: expected 4 dimension"),
    "plan without sizes": (
        lambda: plan_kv_cache({"a": FULL}),
        "available_bytes: expected this or num_blocks, got none",
    ),
    "plan with both": (lambda: plan_kv_cache({"a": FULL}, 9999, 9), "available_bytes: .*got both"),
    "plan too small": (lambda: plan_kv_cache({"a": FULL}, 300), "num_blocks: expected at least 2 blocks"),
    "plan of nothing": (lambda: plan_kv_cache({}, 300), "specs: expected a layer with a cache"),
    "plan of no spec": (lambda: plan_kv_cache({"a": 3}, 300), r"specs\['a'\]: expected the spec of one layer"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_refusals(make, message):
    with pytest.raises(ArgumentError, match="^" + message):
        make()


def test_views_over_memory_of_the_caller_touch_nothing():
    memory = poisoned((plan_memory(TWO).size_bytes + 10,), np.uint8)
    view_caches(memory, plan_memory(TWO))
    assert (memory == 255).all()
