"""Random models in every layout: views share bytes only where they are told to, and cover the allocation."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from numba_ckpt.cache import FullAttentionSpec, KVCacheStorage, StateSpec, plan_kv_cache, plan_memory
from numba_ckpt.cache.config import LAYOUTS
from numba_ckpt.errors import ArgumentError
from tests.cache.models import arrays_of, block_of, bytes_of

DTYPES = st.sampled_from(["float32", "bfloat16", "fp8"])


@st.composite
def attention(draw):
    spec = FullAttentionSpec(
        draw(st.sampled_from([1, 2, 6])),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(DTYPES),
        head_size_v=draw(st.integers(1, 3)),
    )
    return spec.padded_to(spec.page_size_bytes + draw(st.sampled_from([0, 0, 8])))


@st.composite
def states(draw):
    shapes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3))
    dtypes = sorted((draw(DTYPES) for _ in shapes), key=["float32", "bfloat16", "float8_e4m3fn", "fp8"].index)
    return StateSpec(draw(st.sampled_from([2, 6])), tuple(shapes), tuple(dtypes), page_size_padded=128)


@st.composite
def storages(draw):
    kinds = draw(st.lists(st.one_of(attention(), states()), min_size=1, max_size=3))
    specs = {f"{kind}.{i}": spec for kind, spec in enumerate(kinds) for i in range(draw(st.integers(1, 3)))}
    config = plan_kv_cache(specs, num_blocks=draw(st.integers(2, 4)))
    sizes = [None] * len(config.groups)
    if draw(st.booleans()):
        sizes = [1 if isinstance(group.spec, FullAttentionSpec) else None for group in config.groups]
    try:
        plan = plan_memory(config, draw(st.sampled_from(LAYOUTS)), sizes)
    except ArgumentError:
        assume(False)
    return KVCacheStorage.allocate(plan)


@settings(max_examples=150)
@given(storages())
def test_views_overlay_only_the_same_block_of_other_groups(storage):
    config = storage.plan.kv_cache_config
    group_of = {name: index for index, group in enumerate(config.groups) for name in group.layer_names}
    owners = {}
    for name, cache in storage.views.items():
        for block in range(config.num_blocks):
            for part in block_of(cache, block, config.num_blocks):
                touched = bytes_of(part, storage.memory)
                assert len(np.unique(touched)) == touched.size
                assert touched[0] >= 0
                assert touched[-1] < storage.plan.size_bytes
                for byte in touched.tolist():
                    others = owners.setdefault(byte, set())
                    assert all(b == block and group_of[other] != group_of[name] for other, b in others)
                for byte in touched.tolist():
                    owners[byte].add((name, block))


@settings(max_examples=150)
@given(storages())
def test_blocks_cover_the_allocation_and_nothing_twice(storage):
    config = storage.plan.kv_cache_config
    count = np.zeros(storage.memory.size, np.int64)
    for pages in storage.pages():
        for page in pages:
            count[bytes_of(page, storage.memory)] += 1
    assert count.max() == 1
    assert count.sum() == config.size_bytes
    seen = np.zeros(storage.memory.size, bool)
    for cache in storage.views.values():
        for array in arrays_of(cache):
            seen[bytes_of(array, storage.memory)] = True
    assert (count[seen] == 1).all()
    specs = (config.spec_of(name) for name in storage.views)
    if len(config.groups) == 1 and all(spec.page_size_bytes == spec.data_size_bytes for spec in specs):
        assert seen.sum() == config.size_bytes


@settings(max_examples=100)
@given(storages(), st.data())
def test_zeroing_and_copying_agree_with_the_views(storage, data):
    num_blocks = storage.plan.kv_cache_config.num_blocks
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    storage.memory[:] = rng.integers(1, 256, storage.memory.size)
    before = storage.memory.copy()
    expected = before.copy()
    order = rng.permutation(np.arange(1, num_blocks))
    source, destination = order[0], order[-1]
    if data.draw(st.booleans()) or source == destination:
        storage.zero_blocks([destination])
        for cache in storage.views.values():
            for part in block_of(cache, destination, num_blocks):
                expected[bytes_of(part, storage.memory)] = 0
    else:
        storage.copy_blocks([source], [destination])
        for pages in storage.pages():
            expected[bytes_of(pages[destination], storage.memory)] = before[bytes_of(pages[source], storage.memory)]
    held = np.zeros(storage.memory.size, bool)
    for cache in storage.views.values():
        for array in arrays_of(cache):
            held[bytes_of(array, storage.memory)] = True
    assert (storage.memory == expected)[held].all()
