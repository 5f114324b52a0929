"""Floor 0: scalars in, scalars out.

Every function here can be called from Python, from an ``@njit`` loop, from a ``@cuda.jit`` kernel and in the CUDA
simulator. None of them raises or touches an array; each states its domain.
"""

from numba_ckpt.rules.arithmetic import ceil_div, floor_div, floor_to, is_multiple
from numba_ckpt.rules.checkpoint import (
    NO_ALIGNMENT,
    NO_BLOCK_COL,
    NO_OFFSET,
    NULL_BLOCK_ID,
    checkpoint_col,
    checkpoint_position,
    is_checkpoint_valid,
    prefill_checkpoint,
    running_state_col,
)

__all__ = [
    "NO_ALIGNMENT",
    "NO_BLOCK_COL",
    "NO_OFFSET",
    "NULL_BLOCK_ID",
    "ceil_div",
    "checkpoint_col",
    "checkpoint_position",
    "floor_div",
    "floor_to",
    "is_checkpoint_valid",
    "is_multiple",
    "prefill_checkpoint",
    "running_state_col",
]
