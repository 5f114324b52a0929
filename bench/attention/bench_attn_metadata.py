"""The plumbing of a step's metadata: builders that do nothing, so that only the way to them is timed."""

import timeit

import numpy as np
import pytest

from bench.registry import SIDES, Sides, budget, comparison, of_module
from numba_ckpt.attention import AttentionGroup, NoOpBackend, NoOpBuilder, StepBatch, build_attn_metadata

NUM_GROUPS, NUM_LAYERS = 4, 12


def arguments(num_reqs):
    """Attention groups, a decode batch, its tables and slots."""
    starts = np.arange(num_reqs + 1, dtype=np.int32)
    batch = StepBatch(num_reqs, num_reqs, starts, starts, np.full(num_reqs, 100, np.int32), 1, 100)
    names = [
        tuple(f"layers.{group + NUM_GROUPS * layer}" for layer in range(NUM_LAYERS)) for group in range(NUM_GROUPS)
    ]
    groups = [
        [AttentionGroup(NoOpBackend, layers, None, index, (NoOpBuilder(None, layers, None),))]
        for index, layers in enumerate(names)
    ]
    tables = [np.zeros((num_reqs, 10), np.int32) for _ in names]
    return groups, batch, tables, np.zeros((NUM_GROUPS, num_reqs), np.int64)


def check(num_reqs):
    groups, batch, tables, slots = arguments(num_reqs)
    metadata = build_attn_metadata(groups, batch, tables, slots)
    assert len(metadata) == NUM_GROUPS * NUM_LAYERS
    for name, common in metadata.items():
        group = int(name.removeprefix("layers.")) % NUM_GROUPS
        assert common.kv_cache_group_id == group
        assert common.block_table is tables[group]
        assert common.batch is batch


@budget(
    "`build_attn_metadata`, builders that do nothing",
    f"{NUM_GROUPS} groups of {NUM_LAYERS} layers, 64 requests",
    15e-6,
)
def attn_metadata():
    check(64)
    given = arguments(64)
    return min(timeit.repeat(lambda: build_attn_metadata(*given), number=500, repeat=5)) / 500


@comparison("`build_attn_metadata` is as fast for many requests", "1,024 requests, against 8", 0.8)
def flat():
    few, many = arguments(8), arguments(1024)

    def gate():
        check(8)
        check(1024)

    return Sides(lambda: build_attn_metadata(*few), lambda: build_attn_metadata(*many), gate)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_attn_metadata(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
