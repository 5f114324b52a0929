"""A serving step plans without allocating, once its arrays exist."""

import gc
import tracemalloc

import numpy as np
import pytest

from numba_ckpt.planning import CheckpointGeometry, plan_into

GEOMETRY = CheckpointGeometry(16, 2048, 16, checkpoint_alignment=64)


def traced_bytes(call, rounds=100):
    """Bytes that `rounds` calls leave behind, and the most that they hold at a time."""
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(rounds):
            call()
        tracemalloc.clear_traces()
        tracemalloc.reset_peak()
        for _ in range(rounds):
            call()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("num_rows", [1, 1024])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_steady_plan_into_allocates_nothing(dtype, num_rows):
    lengths = np.full(num_rows, 8065, dtype), np.full(num_rows, 8065, dtype)
    offsets, block_cols = np.empty(num_rows, np.int32), np.empty(num_rows, np.int64)
    assert plan_into(*lengths, GEOMETRY, offsets, block_cols)
    left, peak = traced_bytes(lambda: plan_into(*lengths, GEOMETRY, offsets, block_cols))
    left_by_nothing, peak_of_nothing = traced_bytes(lambda: None)
    assert left == left_by_nothing
    # The interpreter's own frames and argument tuples come and go; a buffer of the batch would stand out.
    assert peak - peak_of_nothing <= 512
