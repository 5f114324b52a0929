"""Floor 1: rows of a batch in, a plan out; on the host."""

from numba_ckpt.planning.geometry import CheckpointGeometry
from numba_ckpt.planning.prefill_checkpoints import CheckpointPlan, compute_prefill_checkpoints, plan_into

__all__ = ["CheckpointGeometry", "CheckpointPlan", "compute_prefill_checkpoints", "plan_into"]
