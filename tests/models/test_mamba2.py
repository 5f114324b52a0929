import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError
from numba_ckpt.models import Mamba2Result, Mamba2Tokens, mamba2_recurrence, mamba2_scan
from numba_ckpt.planning import compute_chunk_layout

HEADS, HEAD_DIM, STATE_DIM, GROUPS = 4, 3, 5, 2
STATE = (HEADS, HEAD_DIM, STATE_DIM)
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def starts_of(row_lens):
    return np.concatenate([[0], np.cumsum(row_lens)]).astype(np.int64)


def draw_tokens(num_tokens, seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    dt, a = rng.random((num_tokens, HEADS)).astype(np.float32), -rng.random(HEADS).astype(np.float32)
    b, c = normal(num_tokens, GROUPS, STATE_DIM), normal(num_tokens, GROUPS, STATE_DIM)
    return Mamba2Tokens(normal(num_tokens, HEADS, HEAD_DIM), dt, b, c, a, normal(HEADS))


def draw_states(num_rows):
    return np.random.default_rng(1).standard_normal((num_rows, *STATE)).astype(np.float32)


def cut(tokens, start, end):
    return Mamba2Tokens(*(array[start:end] for array in tokens[:4]), tokens.a, tokens.d)


ROWS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 9)), max_size=4)


@given(ROWS, st.integers(1, 5), st.data())
def test_matches_the_recurrence(rows, chunk_size, data):
    row_lens = [length for length, _ in rows]
    starts = starts_of(row_lens)
    offsets = [data.draw(st.integers(0, length)) for length in row_lens]
    layout = compute_chunk_layout([computed for _, computed in rows], starts, chunk_size, offsets)
    tokens, initial = draw_tokens(starts[-1]), draw_states(len(rows))
    result = mamba2_scan(tokens, layout, initial)
    outputs, states = mamba2_recurrence(tokens, starts, initial)
    np.testing.assert_allclose(result.outputs, outputs, **TOLERANCE)
    for chunk, end in enumerate(layout.cu_chunk_seqlens[1:]):
        row = layout.chunk_rows[chunk]
        expected = states[end - 1] if end > starts[row] else initial[row]
        np.testing.assert_allclose(result.chunk_states[chunk], expected, **TOLERANCE)


@given(st.integers(2, 20), st.integers(1, 6), st.data())
def test_a_row_resumed_from_a_forced_boundary_gives_the_same_bits(num_tokens, chunk_size, data):
    offset = data.draw(st.integers(1, num_tokens - 1))
    tokens = draw_tokens(num_tokens)
    layout = compute_chunk_layout([0], [0, num_tokens], chunk_size, [offset])
    cold = mamba2_scan(tokens, layout)
    checkpoint = cold.chunk_states[layout.checkpoint_chunk_indices]
    rest = compute_chunk_layout([offset], [0, num_tokens - offset], chunk_size)
    resumed = mamba2_scan(cut(tokens, offset, num_tokens), rest, checkpoint)
    assert resumed.outputs.tobytes() == cold.outputs[offset:].tobytes()
    assert resumed.chunk_states[-1].tobytes() == cold.chunk_states[-1].tobytes()


@given(st.integers(2, 20), st.integers(1, 6), st.data())
def test_another_cut_agrees_within_tolerance(num_tokens, chunk_size, data):
    offset = data.draw(st.integers(1, num_tokens - 1))
    tokens = draw_tokens(num_tokens)
    with_cut = mamba2_scan(tokens, compute_chunk_layout([0], [0, num_tokens], chunk_size, [offset]))
    without = mamba2_scan(tokens, compute_chunk_layout([0], [0, num_tokens], chunk_size))
    np.testing.assert_allclose(with_cut.outputs, without.outputs, **TOLERANCE)
    np.testing.assert_allclose(with_cut.chunk_states[-1], without.chunk_states[-1], **TOLERANCE)


def test_rows_do_not_see_each_other():
    tokens = draw_tokens(9)
    both = mamba2_scan(tokens, compute_chunk_layout([0, 0], [0, 4, 9], 3))
    second = mamba2_scan(cut(tokens, 4, 9), compute_chunk_layout([0], [0, 5], 3))
    assert both.outputs[4:].tobytes() == second.outputs.tobytes()


def test_initial_states_stay_and_preallocated_arrays_are_written():
    initial, layout = draw_states(1), compute_chunk_layout([0], [0, 5], 4)
    before = initial.tobytes()
    shapes = ((5, HEADS, HEAD_DIM), (2, *STATE))
    out = Mamba2Result(*(np.full(shape, np.nan, np.float32) for shape in shapes))
    result = mamba2_scan(draw_tokens(5), layout, initial, out=out)
    assert initial.tobytes() == before
    assert result.chunk_states is out.chunk_states
    assert not np.isnan(out.outputs).any()
    assert not np.isnan(out.chunk_states).any()


def test_a_nan_state_reaches_every_output():
    unwritten = np.full((1, *STATE), np.nan, np.float32)
    layout = compute_chunk_layout([0], [0, 5], 2)
    assert np.isnan(mamba2_scan(draw_tokens(5), layout, unwritten).outputs).all()


GOOD = {"tokens": draw_tokens(5), "layout": compute_chunk_layout([0], [0, 5], 2)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": compute_chunk_layout([0], [0, 6], 2)}, "cu_chunk_seqlens: expected N.1 starts from 0 to the 5"),
        ({"layout": [0, 5]}, "layout: expected a ChunkLayout, got list"),
        ({"tokens": GOOD["tokens"]._replace(dt=np.zeros((5, HEADS)))}, "tokens.dt: expected float32"),
        ({"tokens": GOOD["tokens"]._replace(c=np.zeros((5, 1, STATE_DIM), np.float32))}, "tokens.c: expected shape"),
        ({"tokens": GOOD["tokens"]._replace(a=np.zeros(1, np.float32))}, "tokens.a: expected shape"),
        (
            {"tokens": GOOD["tokens"]._replace(b=np.zeros((5, 3, 2), np.float32), c=np.zeros((5, 3, 2), np.float32))},
            "tokens.b: expected groups that divide the 4 heads, got 3",
        ),
        ({"initial_states": draw_states(2)}, "initial_states: expected shape"),
        ({"out": Mamba2Result(np.zeros((5, 1, 1), np.float32), draw_states(3))}, "out.outputs: expected shape"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ArgumentError, match=message):
        mamba2_scan(**(GOOD | change))
