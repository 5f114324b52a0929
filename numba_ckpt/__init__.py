"""Recurrent-state checkpoints for hybrid language models: plan, gather, export, resume. No PyTorch.

Importing this package imports numpy and numba, and neither CuPy nor a CUDA driver.
"""

from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvExporter,
    ConvInput,
    ConvRecurrentExporter,
    InitialConvState,
    Mamba2Exporter,
    PrefillCheckpointBuilder,
    PrefillCheckpointExporter,
    PrefillCheckpointMetadata,
    RecurrentCache,
    RecurrentExporter,
    RecurrentInput,
)
from numba_ckpt.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendMixError,
    LedgerError,
    MissingDependencyError,
    NumbaCkptError,
    TraceError,
    VerificationError,
)
from numba_ckpt.kernels.gather_state_indices import gather_state_indices
from numba_ckpt.planning import (
    BatchLayout,
    CheckpointGeometry,
    CheckpointPlan,
    ChunkLayout,
    compute_chunk_layout,
    compute_prefill_checkpoints,
    plan_into,
)
from numba_ckpt.rules import (
    NULL_BLOCK_ID,
    checkpoint_col,
    checkpoint_position,
    is_checkpoint_valid,
    prefill_checkpoint,
    running_state_col,
)

__all__ = [
    "NULL_BLOCK_ID",
    "ArgumentError",
    "ArgumentTypeError",
    "BackendMixError",
    "BatchLayout",
    "CheckpointGeometry",
    "CheckpointPlan",
    "CheckpointTargets",
    "ChunkLayout",
    "ConvCache",
    "ConvExporter",
    "ConvInput",
    "ConvRecurrentExporter",
    "InitialConvState",
    "LedgerError",
    "Mamba2Exporter",
    "MissingDependencyError",
    "NumbaCkptError",
    "PrefillCheckpointBuilder",
    "PrefillCheckpointExporter",
    "PrefillCheckpointMetadata",
    "RecurrentCache",
    "RecurrentExporter",
    "RecurrentInput",
    "TraceError",
    "VerificationError",
    "__version__",
    "checkpoint_col",
    "checkpoint_position",
    "compute_chunk_layout",
    "compute_prefill_checkpoints",
    "gather_state_indices",
    "is_checkpoint_valid",
    "plan_into",
    "prefill_checkpoint",
    "running_state_col",
]

__version__ = "0.1.0"
