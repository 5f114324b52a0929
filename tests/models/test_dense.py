import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError
from numba_ckpt.models.dense import linear, rms_norm, sigmoid, softplus


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(st.integers(0, 6), st.integers(0, 9), st.integers(1, 9))
def test_match_numpy(num_tokens, inputs, outputs):
    x, weight = draw(num_tokens, inputs), draw(inputs, outputs, seed=1)
    np.testing.assert_allclose(linear(x, weight), x @ weight, rtol=1e-5, atol=1e-5)
    y = 4 * draw(num_tokens, 2, outputs)
    np.testing.assert_allclose(sigmoid(y), 1 / (1 + np.exp(-y)), rtol=1e-6)
    np.testing.assert_allclose(softplus(y), np.logaddexp(0, y), rtol=1e-5, atol=1e-6)
    expected = y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(rms_norm(y), expected, rtol=1e-5)


@pytest.mark.parametrize("function", [rms_norm, sigmoid, softplus, lambda x: linear(x, draw(37, 41))])
def test_a_token_has_the_same_bits_in_any_batch(function):
    x = draw(33, 37)
    whole = function(x)
    for start, end in ((0, 1), (1, 4), (30, 33)):
        assert function(x[start:end]).tobytes() == whole[start:end].tobytes()


def test_refuse_what_does_not_fit():
    with pytest.raises(ArgumentError, match=r"weight: expected shape \(3, any\)"):
        linear(draw(2, 3), draw(4, 5))
    with pytest.raises(ArgumentError, match="x: expected float32"):
        sigmoid(np.zeros((2, 3)))
