import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError
from numba_ckpt.models import GatedDeltaResult, GatedDeltaTokens, gated_delta

HEADS, KEY_DIM, VALUE_DIM = 2, 4, 6
STATE = (HEADS, KEY_DIM, VALUE_DIM)


def starts_of(row_lens):
    return np.concatenate([[0], np.cumsum(row_lens)]).astype(np.int64)


def draw_tokens(num_tokens, seed=0, per_channel=False):
    rng = np.random.default_rng(seed)
    query, key = rng.standard_normal((2, num_tokens, HEADS, KEY_DIM)).astype(np.float32)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value = rng.standard_normal((num_tokens, HEADS, VALUE_DIM)).astype(np.float32)
    decay_shape = (num_tokens, HEADS, KEY_DIM) if per_channel else (num_tokens, HEADS)
    decay, beta = rng.random(decay_shape).astype(np.float32), rng.random((num_tokens, HEADS)).astype(np.float32)
    return GatedDeltaTokens(query, key, value, decay, beta)


def draw_states(num_rows, seed=1):
    return np.random.default_rng(seed).standard_normal((num_rows, *STATE)).astype(np.float32)


def cut(tokens, start, end):
    return GatedDeltaTokens(*(array[start:end] for array in tokens))


def oracle(tokens, starts, initial):
    """S <- S A (I - beta k k^T) + beta v k^T as the papers write it, in float64; states after each token."""
    outputs = np.zeros(tokens.value.shape)
    states = np.zeros((len(outputs), *STATE))
    for row in range(len(starts) - 1):
        for head in range(HEADS):
            state = initial[row, head].astype(np.float64).T
            for t in range(starts[row], starts[row + 1]):
                q, k, v = (array[t, head].astype(np.float64) for array in tokens[:3])
                decay, beta = np.float64(tokens.decay[t, head]), np.float64(tokens.beta[t, head])
                forget = np.diag(np.broadcast_to(decay, KEY_DIM)) @ (np.eye(KEY_DIM) - beta * np.outer(k, k))
                state = state @ forget + beta * np.outer(v, k)
                states[t, head] = state.T
                outputs[t, head] = state @ q / np.sqrt(KEY_DIM)
    return outputs, states


@given(st.lists(st.integers(0, 7), max_size=4), st.booleans(), st.booleans())
def test_matches_the_oracle(row_lens, per_channel, with_initial):
    starts = starts_of(row_lens)
    tokens = draw_tokens(starts[-1], per_channel=per_channel)
    initial = draw_states(len(row_lens)) if with_initial else np.zeros((len(row_lens), *STATE), np.float32)
    result = gated_delta(tokens, starts, initial if with_initial else None, checkpoint_offsets=np.diff(starts))
    outputs, states = oracle(tokens, starts, initial)
    np.testing.assert_allclose(result.outputs, outputs, rtol=1e-4, atol=1e-5)
    for row, length in enumerate(row_lens):
        last = states[starts[row + 1] - 1] if length else initial[row]
        np.testing.assert_allclose(result.final_states[row], last, rtol=1e-4, atol=1e-5)
        if length:
            assert result.checkpoint_states[row].tobytes() == result.final_states[row].tobytes()
        else:
            assert np.isnan(result.checkpoint_states[row]).all()


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.data(), st.booleans())
def test_a_checkpoint_has_the_bits_of_a_row_that_ends_there(row_lens, data, per_channel):
    starts = starts_of(row_lens)
    tokens, initial = draw_tokens(starts[-1], per_channel=per_channel), draw_states(len(row_lens))
    rows = data.draw(st.lists(st.integers(0, len(row_lens) - 1), max_size=6))
    offsets = [data.draw(st.integers(0, row_lens[row])) for row in rows]
    result = gated_delta(tokens, starts, initial, checkpoint_offsets=offsets, checkpoint_rows=rows)
    plain = gated_delta(tokens, starts, initial)
    assert result.outputs.tobytes() == plain.outputs.tobytes()
    assert result.final_states.tobytes() == plain.final_states.tobytes()
    for checkpoint, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
        part = cut(tokens, starts[row], starts[row] + offset)
        alone = gated_delta(part, [0, offset], initial[row : row + 1])
        if offset:
            assert result.checkpoint_states[checkpoint].tobytes() == alone.final_states.tobytes()
        else:
            assert np.isnan(result.checkpoint_states[checkpoint]).all()


@given(st.integers(1, 12), st.data(), st.booleans())
def test_a_row_resumed_from_a_checkpoint_gives_the_same_bits(num_tokens, data, per_channel):
    offset = data.draw(st.integers(1, num_tokens))
    tokens = draw_tokens(num_tokens, per_channel=per_channel)
    cold = gated_delta(tokens, [0, num_tokens], checkpoint_offsets=[offset])
    resumed = gated_delta(cut(tokens, offset, num_tokens), [0, num_tokens - offset], cold.checkpoint_states)
    assert resumed.outputs.tobytes() == cold.outputs[offset:].tobytes()
    assert resumed.final_states.tobytes() == cold.final_states.tobytes()


def test_one_factor_per_head_is_the_same_factor_for_each_channel():
    tokens = draw_tokens(5)
    spread = tokens._replace(decay=np.repeat(tokens.decay[..., None], KEY_DIM, axis=2))
    assert gated_delta(tokens, [0, 5]).outputs.tobytes() == gated_delta(spread, [0, 5]).outputs.tobytes()


def test_a_full_write_recalls_the_value():
    tokens = draw_tokens(1)._replace(beta=np.ones((1, HEADS), np.float32))
    tokens = tokens._replace(query=tokens.key)
    recalled = gated_delta(tokens, [0, 1], draw_states(1)).outputs * np.sqrt(KEY_DIM)
    np.testing.assert_allclose(recalled, tokens.value, atol=1e-5)


def test_initial_states_stay_and_preallocated_arrays_are_written():
    initial = draw_states(1)
    before = initial.tobytes()
    out = GatedDeltaResult(*(np.full(s, np.nan, np.float32) for s in ((3, *STATE[::2]), (1, *STATE), (0, *STATE))))
    result = gated_delta(draw_tokens(3), [0, 3], initial, out=out)
    assert initial.tobytes() == before
    assert result.final_states is out.final_states
    assert not np.isnan(out.outputs).any()


def test_a_nan_state_reaches_every_output():
    unwritten = np.full((1, *STATE), np.nan, np.float32)
    assert np.isnan(gated_delta(draw_tokens(4), [0, 4], unwritten).outputs).all()


GOOD = {"tokens": draw_tokens(5), "query_start_loc": [0, 2, 5]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": GOOD["tokens"]._replace(key=GOOD["tokens"].value)}, "tokens.key: expected shape"),
        ({"tokens": GOOD["tokens"]._replace(beta=GOOD["tokens"].beta.astype(np.float16))}, "tokens.beta: .*float32"),
        ({"tokens": GOOD["tokens"]._replace(decay=GOOD["tokens"].decay[:, 0])}, "tokens.decay: expected 3 dim"),
        ({"tokens": GOOD["tokens"]._replace(value=GOOD["tokens"].value[1:])}, "tokens.value: expected shape"),
        ({"query_start_loc": [0, 2, 6]}, "query_start_loc"),
        ({"initial_states": draw_states(3)}, "initial_states: expected shape"),
        ({"checkpoint_offsets": [1]}, "checkpoint_offsets: expected 2 offsets"),
        ({"checkpoint_offsets": [3, 0]}, "checkpoint_offsets: expected offsets inside their rows"),
        ({"checkpoint_offsets": [-1, 0]}, "checkpoint_offsets: expected offsets inside their rows"),
        ({"checkpoint_offsets": [1], "checkpoint_rows": [2]}, "checkpoint_rows: expected rows of the batch"),
        ({"checkpoint_rows": [0]}, "checkpoint_offsets: expected 1 offsets"),
        ({"checkpoint_offsets": [1.0, 0.0]}, "checkpoint_offsets: expected an integer dtype"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ArgumentError, match=message):
        gated_delta(**(GOOD | change))
