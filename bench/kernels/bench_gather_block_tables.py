"""Gather of a batch's rows: one copy of as many bytes, against rows in another order, bounds, and a sliding window."""

import numpy as np
import pytest

from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.cache import BlockTables
from numba_ckpt.planning import TableGroup

NUM_ROWS, NUM_COLS, NUM_GROUPS = 256, 512, 4


def gather_sides(window):
    rng = np.random.default_rng(20260101)
    groups = [TableGroup(16, NUM_COLS, sliding_window=window) for _ in range(NUM_GROUPS)]
    tables = BlockTables(groups, NUM_ROWS, max_num_tokens=1)
    for row in range(NUM_ROWS):
        tables.append_block_ids(row, [rng.integers(1, 10**6, NUM_COLS) for _ in groups])
    tables.apply_staged_writes()
    rows, computed = rng.permutation(NUM_ROWS), rng.integers(0, 16 * NUM_COLS, NUM_ROWS)
    source, copied = (np.ones((NUM_GROUPS, NUM_ROWS, NUM_COLS), np.int32) for _ in range(2))

    def ours():
        return tables.gather_block_tables(rows, NUM_ROWS, computed if window else None)

    def check():
        first = np.maximum(computed - window + 1, 0)[rows] // 16 if window else np.zeros(NUM_ROWS, int)
        for table, gathered in zip(tables.tables, ours(), strict=True):
            assert (gathered == np.where(np.arange(NUM_COLS) < first[:, None], 0, table[rows])).all()

    return Sides(lambda: np.copyto(copied, source), ours, check)


INPUTS = f"{NUM_GROUPS} groups of {NUM_COLS} columns; baseline: one copy of as many bytes"
for tokens in (None, 1024):
    name = f"`gather_block_tables`, {NUM_ROWS} rows" + (f", windows of {tokens:,}" if tokens else "")
    comparison(name, INPUTS, 0.4)(lambda tokens=tokens: gather_sides(tokens))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_gather_block_tables(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
