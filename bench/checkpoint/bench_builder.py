"""Metadata: list planning, conversions and a NumPy gather against one `build`."""

import numpy as np
import pytest

from bench.planning import lists
from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.checkpoint import PrefillCheckpointBuilder
from numba_ckpt.planning import BatchLayout, CheckpointGeometry

GEOMETRY = CheckpointGeometry(16, 2048, 16, checkpoint_alignment=64)
ROWS = 256


def build_lists(seq_lens_cpu, query_start_loc_cpu, block_table, request_rows):
    """Offsets, state indices, rows and columns the way a list-based engine makes them."""
    all_query_lens, seq_lens = np.diff(query_start_loc_cpu).tolist(), seq_lens_cpu.tolist()
    query_lens = [all_query_lens[row] for row in request_rows]
    offsets, cols = lists.plan([seq_lens[row] for row in request_rows], query_lens, GEOMETRY)
    if not any(offsets):
        return None
    offsets = np.array(offsets, np.int32)
    rows, cols = np.array(request_rows, np.int64), np.array(cols, np.int64)
    return offsets, np.where(cols >= 0, block_table[rows, cols], 0), rows, cols


@comparison(
    f"`PrefillCheckpointBuilder.build`, {ROWS} rows",
    "all rows of a mixed batch on the host, block table of 32 int32 columns, row numbers as an array",
    goal=10,
)
def build_sides():
    rng = np.random.default_rng(20260101)
    query_lens = np.where(rng.random(ROWS) < 0.2, 1, rng.integers(1, 16_385, ROWS))
    seq_lens = query_lens + 16 * rng.integers(0, 2048, ROWS)
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    table = rng.integers(1, 10_000, (ROWS, 32), dtype=np.int32)
    batch, builder = BatchLayout(seq_lens, starts, table), PrefillCheckpointBuilder(GEOMETRY)
    rows = np.arange(ROWS)
    row_list = rows.tolist()

    def ours():
        return builder.build(batch, rows)

    def baseline():
        return build_lists(seq_lens, starts, table, row_list)

    def check():
        metadata, wanted = ours(), baseline()
        names = "checkpoint_offsets", "state_indices", "request_rows", "block_cols"
        for name, array in zip(names, wanted, strict=True):
            assert getattr(metadata, name).tolist() == array.tolist()
        assert wanted[1].any()

    return Sides(baseline, ours, check)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_builder(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
