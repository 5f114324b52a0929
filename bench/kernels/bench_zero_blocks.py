"""Zeroing and copying blocks: NumPy's fill and copy of the same bytes in one piece, against scattered blocks."""

import numpy as np
import pytest

from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.cache import FullAttentionSpec, KVCacheStorage, StateSpec, plan_kv_cache, plan_memory

NUM_BLOCKS, NUM_NEW = 256, 32


def hybrid_storage():
    full = FullAttentionSpec(64, num_kv_heads=2, head_size=64, dtype="float16")
    state = StateSpec(64, shapes=((3, 64), (4, 16, 32)), dtypes=("float16", "float32"))
    specs = {f"state.{i}": state for i in range(8)} | {f"full.{i}": full for i in range(4)}
    storage = KVCacheStorage.allocate(plan_memory(plan_kv_cache(specs, num_blocks=NUM_BLOCKS)))
    storage.memory[:] = np.random.default_rng(20260101).integers(1, 256, storage.memory.size)
    ids = np.random.default_rng(1).permutation(np.arange(1, NUM_BLOCKS))[: 2 * NUM_NEW]
    return storage, ids[:NUM_NEW], ids[NUM_NEW:]


@comparison(f"`zero_blocks`, {NUM_NEW} new blocks", "4 tensors, pages of 32 KiB; baseline: one fill of as many bytes")
def zero_sides():
    storage, ids, others = hybrid_storage()
    pages = storage.pages()
    whole = np.empty(len(pages) * NUM_NEW * pages[0].shape[1], np.uint8)

    def check():
        assert all(page[others].all() for page in pages)
        storage.zero_blocks(ids)
        assert not any(page[ids].any() for page in pages)

    return Sides(lambda: whole.fill(0), lambda: storage.zero_blocks(ids), check)


@comparison(f"`copy_blocks`, {NUM_NEW} blocks", "4 tensors, pages of 32 KiB; baseline: one copy of as many bytes")
def copy_sides():
    storage, sources, destinations = hybrid_storage()
    pages = storage.pages()
    size = len(pages) * NUM_NEW * pages[0].shape[1]
    source, destination = np.ones(size, np.uint8), np.empty(size, np.uint8)

    def check():
        storage.copy_blocks(sources, destinations)
        assert all((page[sources] == page[destinations]).all() for page in pages)

    return Sides(lambda: np.copyto(destination, source), lambda: storage.copy_blocks(sources, destinations), check)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_zero_blocks(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
