"""Planning: the row-by-row list algorithm against one compiled pass over the rows."""

import numpy as np
import pytest

from bench.planning import lists
from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.planning import CheckpointGeometry, CheckpointPlan, compute_prefill_checkpoints, plan_into
from numba_ckpt.planning.reference import reference_plan

GEOMETRY = CheckpointGeometry(16, 2048, 16, checkpoint_alignment=64)
INPUTS = "int64 arrays, queries of 1 to 16,384 tokens, a fifth of them decodes"


def batch(num_rows):
    """Sequence and query lengths of a mixed step."""
    rng = np.random.default_rng(20260101)
    query_lens = np.where(rng.random(num_rows) < 0.2, 1, rng.integers(1, 16_385, num_rows))
    if num_rows == 1:
        query_lens[:] = 8193
    return query_lens + 16 * rng.integers(0, 2048, num_rows), query_lens


def rows_of(num_rows):
    return "1 row" if num_rows == 1 else f"{num_rows:,} rows"


def gate(seq_lens, query_lens, offsets, block_cols):
    wanted = reference_plan(seq_lens.tolist(), query_lens.tolist(), GEOMETRY)
    assert wanted == lists.plan(seq_lens.tolist(), query_lens.tolist(), GEOMETRY)
    assert (offsets.tolist(), block_cols.tolist()) == wanted
    assert any(wanted[0])


def plan_into_sides(num_rows):
    seq_lens, query_lens = batch(num_rows)
    seq_list, query_list = seq_lens.tolist(), query_lens.tolist()
    offsets, block_cols = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int64)

    def ours():
        plan_into(seq_lens, query_lens, GEOMETRY, offsets, block_cols)

    def check():
        offsets[:] = block_cols[:] = -7
        ours()
        gate(seq_lens, query_lens, offsets, block_cols)

    return Sides(lambda: lists.plan(seq_list, query_list, GEOMETRY), ours, check)


def public_call_sides(num_rows, as_lists=False):
    seq_lens, query_lens = batch(num_rows)
    seq_list, query_list = seq_lens.tolist(), query_lens.tolist()
    lengths = (seq_list, query_list) if as_lists else (seq_lens, query_lens)

    def ours() -> CheckpointPlan:
        return compute_prefill_checkpoints(*lengths, GEOMETRY)

    def check():
        plan = ours()
        gate(seq_lens, query_lens, plan.offsets, plan.block_cols)

    return Sides(lambda: lists.plan(seq_list, query_list, GEOMETRY), ours, check)


for num_rows, goal in ((1, 0), (64, 0), (1024, 250), (4096, 330)):
    comparison(f"`plan_into`, {rows_of(num_rows)}", INPUTS, goal)(lambda num_rows=num_rows: plan_into_sides(num_rows))

# At one row, half the list version's speed is the promise.
for num_rows, goal in ((1, 0.5), (64, 12), (1024, 130), (4096, 0)):
    comparison(f"`compute_prefill_checkpoints`, {rows_of(num_rows)}", INPUTS, goal)(
        lambda num_rows=num_rows: public_call_sides(num_rows)
    )

comparison("`compute_prefill_checkpoints` of lists, 1,024 rows", INPUTS.replace("int64 arrays", "lists"))(
    lambda: public_call_sides(1024, as_lists=True)
)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_prefill_checkpoints(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
