"""The gather on the host: masked columns are never read, and entries outside the table are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError
from numba_ckpt.kernels._registry import OPS
from numba_ckpt.kernels.gather_state_indices import gather_state_indices


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6), st.integers(0, 9), st.booleans())
def test_agrees_with_a_plain_look_up(seed, num_rows, num_cols, size, strided):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 1000, (num_rows, num_cols * 2)).astype(np.int32)
    table = table[:, ::2] if strided else table[:, :num_cols]
    rows, cols = rng.integers(0, num_rows, size), rng.integers(-1, num_cols, size)
    answer = [int(table[row, col]) if col >= 0 else 0 for row, col in zip(rows, cols, strict=True)]
    indices = gather_state_indices(table, rows, cols)
    assert indices.dtype == np.int32
    assert indices.tolist() == answer


def test_a_masked_column_of_a_table_without_columns():
    assert gather_state_indices(np.empty((3, 0), np.int32), np.array([2]), np.array([-1])).tolist() == [0]


def test_a_column_in_attention_blocks_is_outside_the_state_table():
    # 100,096 tokens are 781 blocks of 128, but 46 blocks of 2,176: the wrong unit must not wrap into another row.
    table = np.ones((2, 46), np.int32)
    assert gather_state_indices(table, np.array([0]), np.array([45])).tolist() == [1]
    with pytest.raises(ArgumentError, match="at least 782 columns of state blocks, got 46"):
        gather_state_indices(table, np.array([0]), np.array([781]))


def test_the_registry_names_every_launcher_after_its_file():
    assert list(OPS) == sorted(OPS)
    for name, op in OPS.items():
        assert op.launcher.__module__ == f"numba_ckpt.kernels.{name}"
        assert all(loop.__name__.endswith("_host") for loop in op.host_loops)
