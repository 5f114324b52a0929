"""From lengths to bytes: a planned checkpoint has room for its window, or it is refused; it is never half written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.checkpoint import (
    ConvCache,
    ConvInput,
    ConvRecurrentExporter,
    InitialConvState,
    PrefillCheckpointBuilder,
    RecurrentCache,
    RecurrentInput,
)
from numba_ckpt.errors import ArgumentError
from numba_ckpt.planning import BatchLayout, CheckpointGeometry
from numba_ckpt.planning.reference import reference_conv_window, reference_plan
from numba_ckpt.testing import poisoned

CHANNELS, COLS = 2, 56


@st.composite
def steps(draw):
    """A geometry whose hash blocks may be shorter than the window, a step's lengths, and the rows exported."""
    hash_block = draw(st.integers(1, 6))
    state_block = draw(st.integers(1, 8))
    geometry = CheckpointGeometry(hash_block, state_block, hash_block, draw(st.sampled_from([1, hash_block])))
    rows = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=1, max_size=6))
    starts = np.array([blocks * hash_block for blocks, _ in rows])
    lens = np.array([length for _, length in rows])
    order = draw(st.permutations(range(len(rows))))
    return geometry, starts + lens, lens, order[: draw(st.integers(1, len(rows)))]


@settings(max_examples=300)
@given(steps(), st.integers(1, 4), st.booleans())
def test_a_valid_checkpoint_has_room_for_its_window_or_is_refused(step, state_len, with_initial):
    geometry, seq_lens, lens, rows = step
    query_start_loc = np.concatenate([[0], np.cumsum(lens)])
    # Every table entry is a block of its own, and none is the null block.
    table = np.arange(1, len(lens) * COLS + 1, dtype=np.int32).reshape(-1, COLS)
    metadata = PrefillCheckpointBuilder(geometry).build(BatchLayout(seq_lens, query_start_loc, table), rows)
    offsets, cols = reference_plan(seq_lens[rows].tolist(), lens[rows].tolist(), geometry)
    if metadata is None:
        assert not any(offsets)
        return
    tokens = np.arange(2 * lens.sum(), dtype=np.float32).reshape(-1, CHANNELS)
    token_indices = np.concatenate([np.arange(query_start_loc[row], query_start_loc[row + 1]) for row in rows])
    before = -1 - np.arange(len(rows) * CHANNELS * state_len, dtype=np.float32).reshape(-1, CHANNELS, state_len)
    initial = InitialConvState(before, np.arange(len(rows))) if with_initial else None
    source = ConvInput(tokens, np.concatenate([[0], np.cumsum(lens[rows])]), token_indices, initial)
    states = np.arange(len(rows), dtype=np.float32).reshape(-1, 1)
    conv, pool = poisoned((table.size + 1, CHANNELS, state_len), np.float32), poisoned((table.size + 1, 1), np.float32)
    exporter = ConvRecurrentExporter(ConvCache(conv), RecurrentCache(pool))
    wanted_conv, wanted_pool = conv.copy(), pool.copy()
    if not with_initial and any(0 < offset < state_len for offset in offsets):
        with pytest.raises(ArgumentError, match="offsets: expected at least"):
            exporter.export(metadata, source, RecurrentInput(states))
    else:
        exporter.export(metadata, source, RecurrentInput(states))
        for k, (row, offset, col) in enumerate(zip(rows, offsets, cols, strict=True)):
            if offset:
                block, taps = table[row, col], before[k].T if with_initial else None
                window = reference_conv_window(tokens, query_start_loc[row], offset, state_len, taps)
                wanted_conv[block], wanted_pool[block] = np.stack(window, axis=1), states[k]
    assert conv.tobytes() == wanted_conv.tobytes()
    assert pool.tobytes() == wanted_pool.tobytes()
