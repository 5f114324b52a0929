import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.replay.plan_table import explain_batch, print_plan, reasons_against

GEOMETRY = CheckpointGeometry(8, 64, 8, checkpoint_alignment=8)
SIZES = st.sampled_from([1, 2, 3, 4, 8])


@settings(max_examples=500)
@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.builds(
        CheckpointGeometry,
        SIZES,
        st.integers(1, 20),
        SIZES,
        checkpoint_alignment=st.none() | SIZES,
        drop_eagle_block=st.booleans(),
        num_hash_lookahead_tokens=st.integers(0, 3),
    ),
)
def test_there_is_a_reason_exactly_where_there_is_no_checkpoint(start, query, geometry):
    """What keeps the words true: they come from the single rules, the plan from the rule as a whole."""
    [row] = explain_batch([start + query], [query], geometry)
    assert (row.offset == 0) == bool(list(reasons_against(start, start + query, geometry))) == bool(row.reasons)


@pytest.mark.parametrize(
    ("seq_len", "query_len", "geometry", "reasons"),
    [
        (200, 200, CheckpointGeometry(8, 64, 8, None), ["the backend exports no states (no alignment)"]),
        (200, 196, CheckpointGeometry(8, 64, 8, 4), ["start 4 is not on the hash grid (8)"]),
        (60, 60, GEOMETRY, ["column -1 is not beyond the initial state (column -1)"]),
        (136, 8, GEOMETRY, ["column 1 is not beyond the initial state (column 1)",
                            "boundary 128 is less than a hash block (8) past the start 128"]),
        (200, 200, CheckpointGeometry(8, 64, 8, 64), []),
        (200, 200, CheckpointGeometry(8, 64, 8, 5), ["offset 192 is no multiple of the alignment 5"]),
        (0, 0, GEOMETRY, ["column -2 is not beyond the initial state (column -1)",
                          "boundary 0 is less than a hash block (8) past the start 0",
                          "boundary 0 is not before the query's end 0"]),
        (200, 200, GEOMETRY, []),
    ],
)  # fmt: skip
def test_reasons_are_those_of_the_rules(seq_len, query_len, geometry, reasons):
    [row] = explain_batch([seq_len], [query_len], geometry)
    assert list(row.reasons) == reasons


def test_rows_keep_their_order():
    rows = explain_batch([5000, 7], [4992, 7], CheckpointGeometry(8, 2048, 8, 8))
    assert [(row.query_start, row.seq_len, row.offset, row.block_col) for row in rows] == [
        (8, 5000, 4984, 1),
        (0, 7, 0, -1),
    ]


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match="query_lens: expected at most the row's seq_lens"):
        explain_batch([5], [6], GEOMETRY)
    with pytest.raises(ArgumentError, match="query_lens: expected shape"):
        explain_batch([5, 6], [6], GEOMETRY)


def test_the_table_names_places_and_reasons(capsys):
    print_plan([5000, 7], [4992, 7], CheckpointGeometry(8, 2048, 8, 8))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "1 of 2 rows have a checkpoint"
    assert any(line.split() == ["0", "8", "5000", "4984", "4992", "1"] for line in lines)
    assert any("column -1 is not beyond the initial state (column -1)" in line for line in lines)
