"""Chunk layout: a list algorithm against one compiled pass."""

import numpy as np
import pytest

from bench.planning import lists
from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.planning import compute_chunk_layout
from numba_ckpt.planning.reference import reference_chunk_layout

CHUNK_SIZE, ROWS, QUERY_LEN = 256, 64, 8192


@comparison(
    f"`compute_chunk_layout`, {ROWS} rows of {QUERY_LEN:,} tokens",
    f"int64 arrays, chunks of {CHUNK_SIZE}, a checkpoint in every row, half the rows off the chunk grid",
    goal=50,
)
def chunk_layout_sides():
    rng = np.random.default_rng(20260101)
    computed = np.where(np.arange(ROWS) % 2, rng.integers(0, 50_000, ROWS), 0)
    starts = np.arange(ROWS + 1) * QUERY_LEN
    offsets = rng.integers(1, QUERY_LEN // 16, ROWS) * 16
    as_lists = computed.tolist(), starts.tolist(), CHUNK_SIZE, offsets.tolist()

    def ours():
        return compute_chunk_layout(computed, starts, CHUNK_SIZE, offsets)

    def check():
        wanted = reference_chunk_layout(*as_lists)
        layout = ours()
        for name, by_lists in zip(wanted._fields, lists.chunk_layout(*as_lists), strict=True):
            assert getattr(layout, name).tolist() == by_lists == getattr(wanted, name)

    return Sides(lambda: lists.chunk_layout(*as_lists), ours, check)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_chunk_layout(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
