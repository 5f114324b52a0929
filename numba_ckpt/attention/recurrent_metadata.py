"""What recurrent layers read in a step."""

from dataclasses import dataclass

import numpy as np

from numba_ckpt.attention.step_batch import StepBatch
from numba_ckpt.checkpoint import PrefillCheckpointMetadata
from numba_ckpt.kernels.running_state_indices import StateIndices, StateRows
from numba_ckpt.planning import ChunkLayout

__all__ = ["RecurrentStateMetadata"]


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentStateMetadata:
    """What the recurrent layers of one group read in a step.

    Attributes
    ----------
    batch : StepBatch
        Query starts, sequence lengths, their bounds.
    num_decodes, num_decode_tokens : int
        Leading rows, up to the last that verifies drafts or computes one token, and their tokens.
    num_prefills, num_prefill_tokens : int
        Rows after them that compute prompts, and their tokens. Rows without tokens are never prefills.
    prefill_rows : ndarray
        int64 [prefills], on the host: the prefills' rows in the batch.
    state_indices : StateIndices
        Blocks to start from and to write, of all rows that the engine may have: buffers at the same addresses in every
        step, with null blocks beyond the batch.
    rows : StateRows
        What they were computed from.
    checkpoint : PrefillCheckpointMetadata or None
        Checkpoints of the prefills, one entry for each of `prefill_rows`; None where there is none.
    chunk_layout : ChunkLayout or None
        How the prefills' tokens are cut into chunks; None without prefills, or where the layers have no chunks.
    """

    batch: StepBatch
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int
    prefill_rows: np.ndarray
    state_indices: StateIndices
    rows: StateRows
    checkpoint: PrefillCheckpointMetadata | None = None
    chunk_layout: ChunkLayout | None = None
