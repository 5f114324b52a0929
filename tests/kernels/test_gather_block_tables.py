"""Gather and staged writes on the host: the recordings, the known failures, and mistakes."""

import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.kernels.apply_staged_writes import apply_staged_writes
from numba_ckpt.kernels.gather_block_tables import gather_block_tables
from numba_ckpt.planning import TableArrays, TableGroup, TableLayout
from numba_ckpt.rules import num_cols_below_window, token_col
from tests.kernels.tables import check_recorded_gather, recorded_gathers, tables_of


@pytest.mark.parametrize("case", recorded_gathers(), ids=lambda case: f"{len(case['src'])}-{case['num_rows']}")
def test_recorded_gathers(case):
    check_recorded_gather(case)


@pytest.mark.parametrize(("size", "col"), [(2176, 45), (128, 781)])
def test_b12_columns_count_in_their_own_groups_blocks(size, col):
    assert token_col(100096 - 1, size, 1) == col
    assert num_cols_below_window(100096, 1, size, 1) == (100096 // size)


def test_b14_the_window_divides_by_each_groups_own_block():
    groups = [TableGroup(7168, 4, sliding_window=64), TableGroup(64, 4, sliding_window=64)]
    tables = tables_of(groups, [[[1, 2, 3, 4]], [[5, 6, 7, 8]]])
    gathered = np.full(tables.layout.num_entries, 99, np.int32)
    gather_block_tables(tables, np.array([0]), gathered, num_computed_tokens=np.array([200]))
    views = tables.layout.views(gathered)
    assert [view.tolist() for view in views] == [[[1, 2, 3, 4]], [[0, 0, 7, 8]]]
    # Far beyond the row: nulled to its end, and not one entry further.
    gather_block_tables(tables, np.array([0]), gathered, num_computed_tokens=np.array([2**31 - 1]))
    assert [view.tolist() for view in views] == [[[0] * 4], [[0] * 4]]
    assert (gathered[4:64] == 99).all()
    assert (gathered[68:] == 99).all()


def test_b15_a_padded_row_reads_nothing():
    tables = tables_of([TableGroup(4, 2)], [[[7, 8], [5, 6]]])
    gathered = np.full(tables.layout.num_entries, 99, np.int32)
    gather_block_tables(tables, np.array([-1, 1]), gathered)
    assert tables.layout.views(gathered)[0].tolist() == [[0, 0], [5, 6]]


def test_a_sharded_group_counts_the_tokens_of_all_ranks():
    tables = tables_of([TableGroup(4, 4, sliding_window=4, cp_size=2)], [[[1, 2, 3, 4]]])
    gathered = np.zeros(tables.layout.num_entries, np.int32)
    gather_block_tables(tables, np.array([0]), gathered, num_computed_tokens=np.array([16]))
    assert tables.layout.views(gathered)[0].tolist() == [[0, 2, 3, 4]]


def batch(**changes):
    tables = tables_of([TableGroup(4, 2), TableGroup(4, 3)], [[[1, 2], [3, 4]], [[5, 6, 7], [8, 9, 1]]])
    arrays = {
        "tables": tables,
        "request_rows": np.array([1, 0]),
        "gathered": np.full(tables.layout.num_entries, 99, np.int32),
    }
    return arrays | changes


MISTAKES = [
    ("no tables", {"tables": 7}, "tables: expected TableArrays"),
    ("a list of rows", {"request_rows": [0]}, "request_rows"),
    ("bools for rows", {"request_rows": np.array([True])}, "request_rows: expected a signed integer"),
    ("a row beyond the tables", {"request_rows": np.array([0, 2])}, "got 2 at entry 1"),
    ("a row below -1", {"request_rows": np.array([-5])}, "got -5 at entry 0"),
    ("more requests than rows", {"num_rows": 1}, "num_rows: expected at least the 2 requests, got 1"),
    ("more rows than tables have", {"num_rows": 3}, r"num_rows: expected an integer in \[0, 2\]"),
    ("a negative number of rows", {"num_rows": -1}, "num_rows"),
    ("64-bit target", {"gathered": np.full(128, 99)}, "gathered: expected int32"),
    ("a short target", {"gathered": np.full(127, 99, np.int32)}, r"gathered: expected shape \(128,\)"),
    ("a target in two dimensions", {"gathered": np.full((2, 64), 99, np.int32)}, "gathered: expected 1 dim"),
    ("counts of floats", {"num_computed_tokens": np.zeros(2)}, "num_computed_tokens: expected a signed integer"),
    ("too few counts", {"num_computed_tokens": np.zeros(1, int)}, "a count for each of 2 table rows, got 1"),
    ("a negative count", {"num_computed_tokens": np.array([0, -3])}, "got -3 for row 1"),
    ("a list of counts", {"num_computed_tokens": [0, 0]}, "num_computed_tokens"),
]


@pytest.mark.parametrize(("changes", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistakes_write_nothing(changes, message):
    arguments = batch(**changes)
    with pytest.raises(ArgumentError, match=message):
        gather_block_tables(**arguments)
    assert (arguments["gathered"] == 99).all()


def test_a_target_that_is_the_tables():
    tables = batch()["tables"]
    with pytest.raises(ArgumentError, match="gathered: expected memory apart from the tables"):
        gather_block_tables(tables, np.array([0]), tables.entries)


def test_tables_of_wrong_shapes():
    layout = TableLayout([TableGroup(4, 2)], num_rows=2)
    entries, counts = np.zeros(layout.num_entries, np.int32), np.zeros((1, 2), np.int32)
    for arguments, message in [
        ((None, layout.params, entries, counts), "layout: expected a TableLayout"),
        ((layout, layout.params[:, :3], entries, counts), "params: expected shape"),
        ((layout, layout.params, entries[:-1], counts), "entries: expected shape"),
        ((layout, layout.params, entries.astype(np.int64), counts), "entries: expected int32"),
        ((layout, layout.params, entries, counts[:, :1]), "num_blocks: expected shape"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            TableArrays(*arguments)


WRITE = np.array([[0, 1, 1, 1, 0, 2]])
BAD_WRITES = [
    ("another group", {0: 2}),
    ("a negative group", {0: -1}),
    ("another row", {1: 2}),
    ("a column beyond", {2: 3}),
    ("a negative column", {2: -1}),
    ("more blocks than columns", {3: 2}),
    ("a negative size", {3: -1}),
    ("ids that were not staged", {4: 1}),
    ("a negative source", {4: -1}),
    ("a count beyond the row", {5: 3}),
    ("a negative count", {5: -1}),
]


@pytest.mark.parametrize("changes", [m[1] for m in BAD_WRITES], ids=[m[0] for m in BAD_WRITES])
def test_a_write_outside_its_row_changes_nothing(changes):
    tables, bad = batch()["tables"], WRITE.copy()
    before = tables.entries.copy(), tables.num_blocks.copy()
    for field, value in changes.items():
        bad[0, field] = value
    with pytest.raises(ArgumentError, match=r"writes: expected writes inside their row .* at entry 1"):
        apply_staged_writes(tables, np.concatenate([WRITE, bad]), np.array([9]), 1)
    assert (tables.entries == before[0]).all()
    assert (tables.num_blocks == before[1]).all()


@pytest.mark.parametrize("block", [-1, 2**31, 2**31 // 2])
def test_ids_that_do_not_fit(block):
    tables = tables_of([TableGroup(8, 2, kernel_block_size=4)], [[[1, 2, 3, 4]]])
    with pytest.raises(ArgumentError, match="writes"):
        apply_staged_writes(tables, np.array([[0, 0, 0, 1, 0, 2]]), np.array([block]), 2)
    assert tables.layout.views(tables.entries)[0].tolist() == [[1, 2, 3, 4]]
