"""Floor 4, the heart: where the checkpoints of a step go, and the exporters that write them."""

from numba_ckpt.checkpoint.builder import PrefillCheckpointBuilder
from numba_ckpt.checkpoint.caches import ConvCache, RecurrentCache
from numba_ckpt.checkpoint.exporter import PrefillCheckpointExporter
from numba_ckpt.checkpoint.exporters import ConvExporter, ConvRecurrentExporter, Mamba2Exporter, RecurrentExporter
from numba_ckpt.checkpoint.inputs import ConvInput, InitialConvState, RecurrentInput
from numba_ckpt.checkpoint.metadata import PrefillCheckpointMetadata
from numba_ckpt.checkpoint.targets import CheckpointTargets

__all__ = [
    "CheckpointTargets",
    "ConvCache",
    "ConvExporter",
    "ConvInput",
    "ConvRecurrentExporter",
    "InitialConvState",
    "Mamba2Exporter",
    "PrefillCheckpointBuilder",
    "PrefillCheckpointExporter",
    "PrefillCheckpointMetadata",
    "RecurrentCache",
    "RecurrentExporter",
    "RecurrentInput",
]
