"""Floor 0: scalars in, scalars out.

Every function here can be called from Python, from an ``@njit`` loop, from a ``@cuda.jit`` kernel and in the CUDA
simulator. None of them raises or touches an array; each states its domain.
"""

from numba_ckpt.rules.alignment import CHUNK_BYTES, aligned_head
from numba_ckpt.rules.arithmetic import ceil_div, ceil_to, floor_div, floor_to, is_multiple
from numba_ckpt.rules.attention_span import local_chunk_start, sliding_window_start
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
from numba_ckpt.rules.chunk import next_chunk_boundary
from numba_ckpt.rules.chunk_split import (
    block_stop,
    boundary_stop,
    chunk_end,
    is_stop_spared,
    junction_stop,
    prefill_end,
    stop_inside,
    whole_blocks_end,
)
from numba_ckpt.rules.export import conv_tap, global_index, is_inside, is_written
from numba_ckpt.rules.pool_block import is_pool_block
from numba_ckpt.rules.retention import is_state_kept
from numba_ckpt.rules.rounding import (
    CAST_BFLOAT16,
    CAST_FLOAT16,
    CAST_NONE,
    bfloat16_bits,
    cast_bits,
    float16_bits,
)
from numba_ckpt.rules.slot import (
    DUMMY_ROW,
    NO_WINDOW,
    PAD_SLOT_ID,
    block_slot,
    entry_index,
    kernel_block_id,
    num_cols_below_window,
    slot_of,
    token_col,
)
from numba_ckpt.rules.table_params import (
    NUM_TABLE_PARAMS,
    TABLE_BLOCK_SIZE,
    TABLE_COLS,
    TABLE_CP_INTERLEAVE,
    TABLE_CP_RANK,
    TABLE_CP_SIZE,
    TABLE_HAS_SLOTS,
    TABLE_PARTS,
    TABLE_START,
    TABLE_WINDOW,
)

__all__ = [
    "CAST_BFLOAT16",
    "CAST_FLOAT16",
    "CAST_NONE",
    "CHUNK_BYTES",
    "DUMMY_ROW",
    "NO_ALIGNMENT",
    "NO_BLOCK_COL",
    "NO_OFFSET",
    "NO_WINDOW",
    "NULL_BLOCK_ID",
    "NUM_TABLE_PARAMS",
    "PAD_SLOT_ID",
    "TABLE_BLOCK_SIZE",
    "TABLE_COLS",
    "TABLE_CP_INTERLEAVE",
    "TABLE_CP_RANK",
    "TABLE_CP_SIZE",
    "TABLE_HAS_SLOTS",
    "TABLE_PARTS",
    "TABLE_START",
    "TABLE_WINDOW",
    "aligned_head",
    "bfloat16_bits",
    "block_slot",
    "block_stop",
    "boundary_stop",
    "cast_bits",
    "ceil_div",
    "ceil_to",
    "checkpoint_col",
    "checkpoint_position",
    "chunk_end",
    "conv_tap",
    "entry_index",
    "float16_bits",
    "floor_div",
    "floor_to",
    "global_index",
    "is_checkpoint_valid",
    "is_inside",
    "is_multiple",
    "is_pool_block",
    "is_state_kept",
    "is_stop_spared",
    "is_written",
    "junction_stop",
    "kernel_block_id",
    "local_chunk_start",
    "next_chunk_boundary",
    "num_cols_below_window",
    "prefill_checkpoint",
    "prefill_end",
    "running_state_col",
    "sliding_window_start",
    "slot_of",
    "stop_inside",
    "token_col",
    "whole_blocks_end",
]
