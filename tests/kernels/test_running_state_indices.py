"""Blocks of running states on the host: a list oracle, states of drafts, poisoned buffers, and mistakes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError, BackendMixError
from numba_ckpt.kernels.running_state_indices import StateIndices, StateRows, running_state_indices
from numba_ckpt.testing import SimulatedDevice

BLOCK = 4
POISON = -777


def buffers(num_rows, num_slots=1):
    """What a launch that forgets an entry leaves behind."""
    rows, written = np.full(num_rows, POISON, np.int32), np.full((num_rows, num_slots), POISON, np.int32)
    return StateIndices(rows, written, np.ones(num_rows, np.bool_))


def rows_of(lens, num_decodes=0, accepted=None, dtype=np.int64):
    """Rows are (tokens before, tokens of the query)."""
    starts = np.cumsum([0, *(query for _, query in lens)]).astype(dtype)
    seq_lens = np.array([computed + query for computed, query in lens], dtype)
    accepted = None if accepted is None else np.array(accepted, dtype)
    return StateRows(seq_lens, starts, accepted, len(lens), num_decodes, BLOCK, int(seq_lens.max(initial=0)))


def table_of(num_rows, num_cols=16, dtype=np.int32):
    return np.arange(1, num_rows * num_cols + 1, dtype=dtype).reshape(num_rows, num_cols)


def look_up(table, lens, num_decodes, accepted=None, num_slots=1, num_rows=None):
    out = buffers(num_rows or len(lens), num_slots)
    running_state_indices(table, rows_of(lens, num_decodes, accepted), out)
    return [array.tolist() for array in out]


class Sequence:
    """A request whose states are written down one by one: `place[n]` is the column of the state after n tokens."""

    def __init__(self):
        self.place = {}

    def decode(self, computed, query):
        for drafts in range(query):
            self.place[computed + 1 + drafts] = computed // BLOCK + drafts

    def prefill(self, computed, query):
        self.place[computed + query] = (computed + query - 1) // BLOCK


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 4), st.sampled_from([np.int32, np.int64]), st.booleans())
def test_a_step_starts_where_the_last_one_left_the_accepted_state(data, num_slots, dtype, strided):
    sequences, lens, accepted = [], [], []
    for _ in range(data.draw(st.integers(1, 5))):
        sequence, prompt = Sequence(), data.draw(st.integers(1, 20))
        sequence.prefill(0, prompt)
        drafted = data.draw(st.integers(0, num_slots))
        sequence.decode(prompt, drafted)
        kept = data.draw(st.integers(1, drafted)) if drafted else 0
        sequences.append(sequence)
        lens.append((prompt + kept, data.draw(st.integers(0, num_slots))))
        accepted.append(kept or 1)
    table = table_of(len(lens), 24, dtype)
    table = table[:, ::2] if strided else table[:, :12]
    out = buffers(len(lens) + 2, num_slots)
    running_state_indices(table, rows_of(lens, len(lens), accepted, dtype), out)
    for row, (sequence, (computed, query)) in enumerate(zip(sequences, lens, strict=True)):
        assert out.has_initial[row] == (query > 0)
        assert out.initial[row] == (table[row, sequence.place[computed]] if query else 0)
        sequence.decode(computed, query)
        places = [sequence.place[computed + 1 + slot] for slot in range(query)]
        assert out.written[row].tolist() == [*table[row, places].tolist(), *[0] * (num_slots - query)]
    assert not out.initial[len(lens) :].any()
    assert not out.written[len(lens) :].any()
    assert not out.has_initial[len(lens) :].any()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=6))
def test_prefills_leave_one_state_at_their_end(lens):
    table = table_of(len(lens))
    initial, written, has_initial = look_up(table, lens, 0, num_slots=3)
    for row, (computed, query) in enumerate(lens):
        starts, ends = computed > 0 and query > 0, query > 0
        assert has_initial[row] == starts
        assert initial[row] == (table[row, (computed - 1) // BLOCK] if starts else 0)
        assert written[row] == [table[row, (computed + query - 1) // BLOCK] if ends else 0, 0, 0]


def test_b58_the_accepted_state_lies_as_many_columns_on_as_drafts_were_kept():
    table = table_of(1)
    assert [look_up(table, [(8 + kept, 1)], 1, [kept], 3)[0] for kept in (1, 2, 3)] == [[3], [4], [5]]
    assert look_up(table, [(11, 1)], 1, None, 3)[0] == [3]  # nobody counted: the last step kept one token


def test_b27_rows_without_tokens_read_and_leave_nothing():
    table = table_of(4)
    lens = [(9, 1), (17, 0), (0, 0), (5, 0)]
    assert look_up(table, lens, 1) == [[3, 0, 0, 0], [[3], [0], [0], [0]], [True, False, False, False]]


def test_b29_rows_beyond_the_batch_hold_null_blocks_in_every_step():
    out, table = buffers(8, 2), table_of(8)
    for num_reqs in (8, 3, 1, 0, 5):
        running_state_indices(table, rows_of([(9, 2)] * num_reqs, num_reqs), out)
        assert np.count_nonzero(out.initial) == np.count_nonzero(out.has_initial) == num_reqs
        assert np.count_nonzero(out.written) == 2 * num_reqs
        assert not out.initial[num_reqs:].any()


def test_counts_that_nobody_reads_may_hold_anything():
    # A row of padding, a sequence at its first token, and a prefill.
    assert look_up(table_of(3), [(9, 0), (0, 1), (8, 4)], 2, [-5, 0, 99])[0] == [0, 0, 2 * 16 + 2]


def test_the_last_block_of_int32_is_one():
    table = np.array([[1, 2**31 - 1]])
    assert look_up(table, [(4, 1)], 1)[1] == [[2**31 - 1]]


def batch(table=None, out=None, **changes):
    table = table_of(2) if table is None else table
    return table, rows_of([(9, 2), (4, 5)], 1, [2])._replace(**changes), out or buffers(3, 2)


MISTAKES = {
    "a list for a table": (batch([[1, 2]]), "block_table: expected a NumPy or CuPy array"),
    "a flat table": (batch(np.arange(9)), r"block_table: expected 2 dim"),
    "a table of floats": (batch(np.ones((2, 16))), "block_table: expected"),
    "too few rows": (batch(table_of(1)), "block_table: expected at least 2 rows, got 1"),
    "too few columns": (batch(table_of(2, 3)), "at least 4 columns of state blocks, got 3"),
    "blocks beyond int32": (
        batch(table_of(2, dtype=np.int64) + 2**32),
        r"block ids in \[0, 2147483647\], got 42949672",
    ),
    "negative blocks": (batch(-table_of(2)), r"block_table: expected block ids .* got -1 in row 0"),
    "a wide block to start from alone": (
        batch(np.where(table_of(2) == 17, 2**31, table_of(2).astype(np.int64))),
        r"block_table: expected block ids .* got 2147483648 in row 1",
    ),
    "lengths of floats": (batch(seq_lens=np.array([11.0, 9.0])), "seq_lens: expected a signed integer"),
    "too few lengths": (batch(seq_lens=np.array([11])), "seq_lens: expected at least 2 entries, got 1"),
    "too few starts": (batch(query_start_loc=np.array([0, 2])), "query_start_loc: expected at least 3 entries, got 2"),
    "starts that fall": (
        batch(query_start_loc=np.array([0, 2, 1])),
        r"ascending starts.* queries at \[2, 1\], in row 1",
    ),
    "a query longer than its sequence": (batch(seq_lens=np.array([1, 9])), "query <= sequence.* got 1 tokens"),
    "a sequence beyond the bound": (batch(seq_lens=np.array([11, 12])), "sequence <= 11, got 12 tokens.* in row 1"),
    "too few counts": (batch(num_decodes=2), "num_accepted_tokens: expected at least 2 entries, got 1"),
    "counts of floats": (batch(num_accepted_tokens=np.ones(1)), "num_accepted_tokens: expected a signed integer"),
    "nothing kept": (batch(num_accepted_tokens=np.array([0])), r"counts in \[1, 2\], got 0 in row 0"),
    "more kept than drafted": (batch(num_accepted_tokens=np.array([3])), r"counts in \[1, 2\], got 3 in row 0"),
    "more rows than buffers": (batch(out=buffers(1, 2)), r"num_reqs: expected an integer in \[0, 1\], got 2"),
    "more decodes than rows": (batch(num_decodes=3), r"num_decodes: expected an integer in \[0, 2\], got 3"),
    "no block size": (batch(state_block_size=0), "state_block_size: expected an integer"),
    "a bound below 0": (batch(max_seq_len=-1), "max_seq_len: expected an integer"),
    "64-bit buffers": (
        batch(out=buffers(3)._replace(initial=np.full(3, POISON))),
        "initial: expected int32, got int64",
    ),
    "one state per row, flat": (
        batch(out=buffers(3)._replace(written=np.full(3, POISON, np.int32))),
        "written: expected 2 dim",
    ),
    "flags of other rows": (batch(out=buffers(3)._replace(has_initial=np.ones(4, np.bool_))), r"has_initial: .*\(3,\)"),
    "a read-only buffer": (
        batch(out=buffers(3)._replace(initial=np.broadcast_to(np.int32(POISON), 3))),
        "initial: expected a writable",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_write_nothing(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        running_state_indices(*arguments)
    out = arguments[-1]
    assert (out.initial == POISON).all()
    assert (out.written == POISON).all()
    assert out.has_initial.all()


def test_one_kept_where_the_sequence_is_shorter_than_the_drafts():
    with pytest.raises(ArgumentError, match=r"counts in \[1, 1\], got 2 in row 0"):
        look_up(table_of(1), [(1, 1)], 1, [2], 3)


def test_arrays_of_different_devices():
    with SimulatedDevice.attached() as device, pytest.raises(BackendMixError, match="seq_lens on simulated"):
        running_state_indices(*batch(seq_lens=device.put(np.array([11, 9]))))
