"""Floor 1: rows of a batch in, a plan out; on the host."""

from numba_ckpt.planning.batch import BatchLayout, DeviceBatchLayout
from numba_ckpt.planning.chunk_layout import ChunkLayout, compute_chunk_layout
from numba_ckpt.planning.geometry import CheckpointGeometry
from numba_ckpt.planning.prefill_checkpoints import CheckpointPlan, compute_prefill_checkpoints, plan_into
from numba_ckpt.planning.table_layout import TableArrays, TableGroup, TableLayout

__all__ = [
    "BatchLayout",
    "CheckpointGeometry",
    "CheckpointPlan",
    "ChunkLayout",
    "DeviceBatchLayout",
    "TableArrays",
    "TableGroup",
    "TableLayout",
    "compute_chunk_layout",
    "compute_prefill_checkpoints",
    "plan_into",
]
