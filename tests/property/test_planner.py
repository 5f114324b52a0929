"""Random batches through the planner and through the oracle: 20,000 rows and more a run."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.planning import CheckpointGeometry, compute_prefill_checkpoints, plan_into
from numba_ckpt.planning.reference import reference_plan, reference_state_col

NUM_EXAMPLES, ROWS = 300, 100  # 30,000 rows
BLOCKS = st.one_of(
    st.integers(1, 9), st.sampled_from([16, 24, 64, 96, 256, 528, 1048, 1600, 2048, 2096, 8192]), st.integers(1, 8192)
)
EDGES = st.just(0) | st.sampled_from([2**31 - 1, 2**31, 2**32, 2**40, 2**50, 2**53, 2**62, 2**63 - 1])


@st.composite
def geometries(draw):
    hash_block = draw(BLOCKS)
    # Related sizes are the usual ones and the ones with checkpoints; unrelated ones have to decline alike.
    related = st.integers(1, 8).map(lambda factor: factor * hash_block)
    state_block = draw(related | st.integers(1, 8192))
    unit = draw(st.just(hash_block) | related | st.integers(1, 8192))
    alignment = draw(st.sampled_from([1, 1, 1, 2, 16, hash_block, unit, None]) | st.integers(1, 64))
    lookahead = draw(st.just(0) | st.integers(0, 8) | st.integers(0, 8192))
    return CheckpointGeometry(hash_block, state_block, unit, alignment, draw(st.booleans()), lookahead)


def batch_of(geometry, seed, longest, edge):
    """Rows whose starts and ends crowd the grids of `geometry`, in the `longest` tokens above zero or below `edge`."""
    rng = np.random.default_rng(seed)
    sizes = geometry.hash_block_size, geometry.state_block_size, geometry.cache_hit_alignment_tokens
    starts, ends = max(edge - longest, 0) + np.sort(rng.integers(0, longest + 1, (2, ROWS)), axis=0)
    grid = rng.choice(np.array([1, *sizes]), ROWS)
    ends = np.where(rng.random(ROWS) < 0.5, ends, ends // grid * grid + rng.integers(-1, 2, ROWS))
    # Most queries begin on the hash grid, as a resumed prefill does.
    starts = np.where(rng.random(ROWS) < 0.2, starts, starts // sizes[0] * sizes[0])
    ends = np.clip(ends, 0, 2**63 - 1)
    return ends, ends - np.clip(starts, 0, ends)


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(
    geometry=geometries(),
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(2, 9),
    edge=EDGES,
    dtype=st.sampled_from([np.int32, np.int64, np.uint64, None]),
)
def test_the_planner_equals_the_oracle(geometry, seed, blocks, edge, dtype):
    seq_lens, query_lens = batch_of(geometry, seed, blocks * geometry.state_block_size, edge)
    offsets, block_cols = reference_plan(seq_lens.tolist(), query_lens.tolist(), geometry)
    if dtype is None:
        plan = compute_prefill_checkpoints(seq_lens.tolist(), query_lens.tolist(), geometry)
    else:
        dtype = np.int64 if dtype == np.int32 and seq_lens.max() >= 2**31 else dtype
        plan = compute_prefill_checkpoints(seq_lens.astype(dtype), query_lens.astype(dtype), geometry)
    assert plan.offsets.tolist() == offsets
    assert plan.block_cols.tolist() == block_cols
    assert plan.any is any(offsets)
    check_promises(seq_lens, query_lens, geometry, plan)


def check_promises(seq_lens, query_lens, geometry, plan):
    """What callers build on, said without the rule."""
    block = geometry.state_block_size
    for row in np.flatnonzero(plan.offsets):
        seq_len, query_len, offset = int(seq_lens[row]), int(query_lens[row]), int(plan.offsets[row])
        start, col = seq_len - query_len, int(plan.block_cols[row])
        assert 0 < offset < query_len
        assert (start + offset) % geometry.cache_hit_alignment_tokens == 0
        assert offset % geometry.checkpoint_alignment == 0
        assert col not in (reference_state_col(start, block), reference_state_col(seq_len, block))
        assert 0 <= col < reference_state_col(seq_len, block)
    assert ((plan.offsets == 0) == (plan.block_cols == -1)).all()


@settings(max_examples=60, deadline=None)
@given(geometry=geometries(), seed=st.integers(0, 2**32 - 1), cut=st.integers(1, ROWS - 1))
def test_rows_do_not_depend_on_each_other(geometry, seed, cut):
    seq_lens, query_lens = batch_of(geometry, seed, 20_000, 0)
    whole = compute_prefill_checkpoints(seq_lens, query_lens, geometry)
    offsets, block_cols = np.empty(ROWS, np.int32), np.empty(ROWS, np.int64)
    found = [
        plan_into(seq_lens[part], query_lens[part], geometry, offsets[part], block_cols[part])
        for part in (np.s_[:cut], np.s_[cut:])
    ]
    assert offsets.tolist() == whole.offsets.tolist()
    assert block_cols.tolist() == whole.block_cols.tolist()
    assert any(found) is whole.any
