from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError, ArgumentTypeError
from numba_ckpt.models import ShortConvResult, short_conv

ROW_LENS = st.lists(st.integers(0, 9), min_size=0, max_size=5)


def starts_of(row_lens):
    return np.concatenate([[0], np.cumsum(row_lens)]).astype(np.int64)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def oracle(tokens, weight, starts, windows, activation):
    """One row at a time: pad with the window, one dot product for each output."""
    outputs, final = np.empty(tokens.shape), np.empty(windows.shape)
    width = len(weight)
    for row, (start, end) in enumerate(pairwise(starts)):
        padded = np.concatenate([windows[row], tokens[start:end]]).astype(np.float64)
        for token in range(end - start):
            outputs[start + token] = (padded[token : token + width] * weight).sum(0)
        final[row] = padded[len(padded) - (width - 1) :]
    return (outputs / (1 + np.exp(-outputs)) if activation == "silu" else outputs), final


@given(ROW_LENS, st.integers(1, 5), st.integers(0, 6), st.sampled_from(["none", "silu"]), st.booleans())
def test_matches_the_oracle(row_lens, width, channels, activation, with_initial):
    starts = starts_of(row_lens)
    tokens, weight = draw(0, starts[-1], channels), draw(1, width, channels)
    windows = draw(3, len(row_lens), width - 1, channels) if with_initial else None
    result = short_conv(tokens, weight, starts, windows, activation=activation)
    zeros = np.zeros((len(row_lens), width - 1, channels))
    outputs, final = oracle(tokens, weight, starts, windows if with_initial else zeros, activation)
    np.testing.assert_allclose(result.outputs, outputs, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result.final_windows, final)


@given(st.integers(1, 12), st.data(), st.integers(1, 5))
def test_a_row_cut_anywhere_gives_the_same_bits(num_tokens, data, width):
    cut = data.draw(st.integers(0, num_tokens))
    tokens, weight = draw(0, num_tokens, 3), draw(1, width, 3)
    whole = short_conv(tokens, weight, [0, num_tokens], activation="silu")
    head = short_conv(tokens[:cut], weight, [0, cut], activation="silu")
    tail = short_conv(tokens[cut:], weight, [0, num_tokens - cut], head.final_windows, activation="silu")
    assert np.concatenate([head.outputs, tail.outputs]).tobytes() == whole.outputs.tobytes()
    assert tail.final_windows.tobytes() == whole.final_windows.tobytes()


def test_reads_a_column_band_and_leaves_its_inputs_alone():
    wide, weight, windows = draw(0, 6, 9), draw(1, 4, 3), draw(2, 1, 3, 3)
    band = wide[:, 4:7]
    before = wide.tobytes(), weight.tobytes(), windows.tobytes()
    result = short_conv(band, weight, [0, 6], windows)
    assert result.outputs.tobytes() == short_conv(band.copy(), weight, [0, 6], windows).outputs.tobytes()
    assert before == (wide.tobytes(), weight.tobytes(), windows.tobytes())


def test_writes_preallocated_arrays():
    tokens, weight = draw(0, 5, 2), draw(1, 3, 2)
    out = ShortConvResult(np.full((5, 2), np.nan, np.float32), np.full((1, 2, 2), np.nan, np.float32))
    result = short_conv(tokens, weight, [0, 5], out=out)
    assert result.outputs is out.outputs
    assert not np.isnan(out.outputs).any()
    assert out.final_windows.tobytes() == tokens[3:].tobytes()


def test_a_nan_window_reaches_the_first_outputs_only():
    windows = np.full((1, 3, 2), np.nan, np.float32)
    outputs = short_conv(draw(0, 5, 2), draw(1, 4, 2), [0, 5], windows).outputs
    np.testing.assert_array_equal(np.isnan(outputs).all(1), [True, True, True, False, False])


GOOD = {"tokens": draw(0, 5, 2), "weight": draw(1, 3, 2), "query_start_loc": [0, 5]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": GOOD["tokens"].astype(np.float64)}, "tokens: expected float32, got float64"),
        ({"tokens": GOOD["tokens"][0]}, "tokens: expected 2 dimension"),
        ({"tokens": [[1.0]]}, "tokens: expected a 2-d array"),
        ({"weight": draw(1, 3, 4)}, r"weight: expected shape \(any, 2\)"),
        ({"weight": draw(1, 0, 2)}, "weight: expected at least one tap"),
        ({"query_start_loc": [0, 4]}, "query_start_loc: expected N.1 starts from 0 to the 5 tokens"),
        ({"query_start_loc": [1, 5]}, "query_start_loc"),
        ({"query_start_loc": []}, "query_start_loc"),
        ({"query_start_loc": [0, 6, 5]}, "starts that never fall"),
        ({"query_start_loc": [0.0, 5.0]}, "query_start_loc: expected an integer dtype"),
        ({"initial_windows": draw(0, 2, 2, 2)}, r"initial_windows: expected shape \(1, 2, 2\)"),
        ({"activation": "gelu"}, "activation: expected one of 'none', 'silu', got 'gelu'"),
        ({"out": ShortConvResult(draw(0, 4, 2), draw(0, 1, 2, 2))}, "out.outputs: expected shape"),
        ({"out": ShortConvResult(draw(0, 2, 5).T, draw(0, 1, 2, 2))}, "out.outputs: expected a C-contiguous"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ArgumentError, match=message):
        short_conv(**(GOOD | change))


def test_wrong_dtypes_are_type_errors():
    with pytest.raises(ArgumentTypeError):
        short_conv(**(GOOD | {"weight": np.zeros((3, 2))}))
