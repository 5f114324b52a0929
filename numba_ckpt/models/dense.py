"""Batch-invariant pieces between the recurrent layers.

A token's bits must not depend on the tokens beside it, or a resumed request could never equal a cold one: a library
matrix product picks its blocking by the number of rows. Here every sum runs over its terms in order.
"""

import math
from typing import Any

import numpy as np

from numba_ckpt._jit import host_loop
from numba_ckpt.models._varlen import check_floats

__all__ = ["draw_weight", "linear", "rms_norm", "sigmoid", "softplus"]

_EPSILON = np.float32(1e-6)


def draw_weight(rng: np.random.Generator, inputs: int, outputs: int) -> np.ndarray:
    """Return float32 [inputs, outputs] of a scale that keeps activations near 1.

    Examples
    --------
    >>> draw_weight(np.random.default_rng(0), 3, 5).shape
    (3, 5)
    """
    return (rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)  # type: ignore[no-any-return]


@host_loop
def _linear_host(x, weight, outputs):  # type: ignore[no-untyped-def]
    for token in range(x.shape[0]):
        output = outputs[token]
        for j in range(weight.shape[1]):
            output[j] = np.float32(0)
        for i in range(weight.shape[0]):
            for j in range(weight.shape[1]):
                output[j] += x[token, i] * weight[i, j]


def linear(x: Any, weight: Any) -> np.ndarray:
    """Return ``x @ weight``, each token's sums in order of the inputs.

    Parameters
    ----------
    x : ndarray
        float32 [T, inputs].
    weight : ndarray
        float32 [inputs, outputs].

    Returns
    -------
    ndarray
        float32 [T, outputs].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Shapes or dtypes do not fit.

    Examples
    --------
    >>> linear(np.float32([[1, 2]]), np.float32([[1], [10]])).tolist()
    [[21.0]]
    """
    x = check_floats("x", x, (None, None))
    weight = check_floats("weight", weight, (x.shape[1], None))
    outputs = np.empty((x.shape[0], weight.shape[1]), np.float32)
    _linear_host(x, weight, outputs)
    return outputs


@host_loop
def _rms_norm_host(x, outputs):  # type: ignore[no-untyped-def]
    for token in range(x.shape[0]):
        total = np.float32(0)
        for i in range(x.shape[1]):
            total += x[token, i] * x[token, i]
        scale = np.float32(1) / np.sqrt(total / np.float32(x.shape[1]) + _EPSILON)
        for i in range(x.shape[1]):
            outputs[token, i] = x[token, i] * scale


def rms_norm(x: np.ndarray) -> np.ndarray:
    """Scale the last axis to a root mean square of 1; float32 of any shape.

    Examples
    --------
    >>> rms_norm(np.float32([[2, -2]])).round(3).tolist()
    [[1.0, -1.0]]
    """
    return _by_token(_rms_norm_host, x)


@host_loop
def _sigmoid_host(x, outputs):  # type: ignore[no-untyped-def]
    for token in range(x.shape[0]):
        for i in range(x.shape[1]):
            outputs[token, i] = np.float32(1) / (np.float32(1) + math.exp(-x[token, i]))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)); float32 of any shape.

    Examples
    --------
    >>> sigmoid(np.float32([0])).tolist()
    [0.5]
    """
    return _by_token(_sigmoid_host, x)


@host_loop
def _softplus_host(x, outputs):  # type: ignore[no-untyped-def]
    for token in range(x.shape[0]):
        for i in range(x.shape[1]):
            value = x[token, i]
            outputs[token, i] = max(value, np.float32(0)) + math.log1p(math.exp(-abs(value)))


def softplus(x: np.ndarray) -> np.ndarray:
    """Return log(1 + exp(x)) without overflow; float32 of any shape.

    Examples
    --------
    >>> softplus(np.float32([100, 0])).round(3).tolist()
    [100.0, 0.6930000185966492]
    """
    return _by_token(_softplus_host, x)


def _by_token(loop: Any, x: np.ndarray) -> np.ndarray:
    """Run a loop over [rows, last axis], where a channel always meets the same lane of a vector unit."""
    flat = check_floats("x", x.reshape(-1, x.shape[-1] if x.size else 1), (None, None))
    outputs = np.empty_like(flat)
    loop(flat, outputs)
    return outputs.reshape(x.shape)
