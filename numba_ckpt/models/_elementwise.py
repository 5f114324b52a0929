"""Scalar activations, shared by the layers' loops."""

import math
from typing import Any

import numpy as np

from numba_ckpt._jit import rule

__all__ = ["sigmoid", "silu", "softplus"]

_ONE = np.float32(1)


@rule
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return _ONE / (_ONE + math.exp(-x))


@rule
def silu(x: Any) -> Any:
    """Return x * sigmoid(x)."""
    return x / (_ONE + math.exp(-x))


@rule
def softplus(x: Any) -> Any:
    """Return log(1 + exp(x)), without overflow."""
    return max(x, np.float32(0)) + math.log1p(math.exp(-abs(x)))
