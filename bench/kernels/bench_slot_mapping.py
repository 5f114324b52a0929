"""Slot mapping: one copy of as many bytes, against division, look-up and bounds of every token in every group."""

import numpy as np
import pytest

from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.kernels.slot_mapping import slot_mapping
from numba_ckpt.planning import TableArrays, TableGroup, TableLayout

NUM_TOKENS, NUM_COLS = 8192, 512
BLOCK_SIZES = (16, 16, 32, 128)


def slot_mapping_sides(num_requests, cp_size):
    rng = np.random.default_rng(20260101)
    layout = TableLayout([TableGroup(size, NUM_COLS, cp_size=cp_size) for size in BLOCK_SIZES], num_requests)
    entries = rng.integers(1, 10**6, layout.num_entries).astype(np.int32)
    counts = np.full((len(BLOCK_SIZES), num_requests), NUM_COLS, np.int32)
    tables = TableArrays(layout, layout.params, entries, counts)
    length = NUM_TOKENS // num_requests
    firsts = rng.integers(0, NUM_COLS * min(BLOCK_SIZES) - length, num_requests)
    rows, starts = rng.permutation(num_requests), np.arange(num_requests + 1) * length
    positions = (firsts[:, None] + np.arange(length)).ravel()
    slots = np.empty((len(BLOCK_SIZES), NUM_TOKENS), np.int64)
    source, copied = np.ones_like(slots), np.empty_like(slots)

    def expected():
        for view, size in zip(layout.views(entries), BLOCK_SIZES, strict=True):
            col, offset = np.divmod(positions, size * cp_size)
            blocks = view[np.repeat(rows, length), col].astype(np.int64)
            yield np.where(offset % cp_size == 0, blocks * size + offset // cp_size, -1)

    def ours():
        slot_mapping(tables, rows, starts, positions, slots)

    def check():
        ours()
        assert (slots == np.stack(list(expected()))).all()

    return Sides(lambda: np.copyto(copied, source), ours, check)


INPUTS = f"{len(BLOCK_SIZES)} groups, blocks of 16 to 128; baseline: one copy of as many bytes"
for requests, ranks, goal in ((16, 1, 0.17), (256, 1, 0.17), (1024, 1, 0.0), (256, 2, 0.0)):
    name = f"`slot_mapping`, {NUM_TOKENS:,} tokens of {requests:,} requests" + (", sharded" if ranks > 1 else "")
    comparison(name, INPUTS, goal)(lambda requests=requests, ranks=ranks: slot_mapping_sides(requests, ranks))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_slot_mapping(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
