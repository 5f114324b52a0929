"""Gather: NumPy's look-up of every row and a mask afterwards, against one masked pass that also checks bounds."""

import numpy as np
import pytest

from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.kernels.gather_state_indices import gather_state_indices

ROWS, COLS = 256, 64


@comparison(
    f"`gather_state_indices`, {ROWS} rows", f"int32 table of {COLS} columns, a third of the rows without a checkpoint"
)
def gather_sides():
    rng = np.random.default_rng(20260101)
    table = rng.integers(1, 10_000, (ROWS, COLS), dtype=np.int32)
    rows, cols = rng.permutation(ROWS), rng.integers(0, COLS, ROWS)
    cols[::3] = -1

    def ours():
        return gather_state_indices(table, rows, cols)

    def baseline():
        return np.where(cols >= 0, table[rows, cols], 0)

    def check():
        assert ours().tolist() == baseline().tolist()

    return Sides(baseline, ours, check)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_gather_state_indices(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
