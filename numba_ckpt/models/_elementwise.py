"""The scalar activation that a layer's loop fuses."""

import math
from typing import Any

import numpy as np

from numba_ckpt._jit import rule

__all__ = ["silu"]


@rule
def silu(x: Any) -> Any:
    """Return x / (1 + exp(-x))."""
    return x / (np.float32(1) + math.exp(-x))
