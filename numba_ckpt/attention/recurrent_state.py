"""Recurrent layers over paged states: which rows are decodes, and where every row's states are read and written.

::

    rows        │ decodes ...     │ prefills ...        │ padding     │
    tokens      │ 1 + drafts each │ a chunk each        │ none        │
    reads       │ accepted state  │ state at its start  │ null block  │   state_indices.initial
    writes      │ one per token   │ state at its end    │ null block  │   state_indices.written
                │                 │ checkpoint          │             │   checkpoint (and chunk_layout)
"""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from numba_ckpt._array import Array, backend_of
from numba_ckpt._check import refuse
from numba_ckpt._jit import host_loop
from numba_ckpt.attention.backend import AttentionBackend, AttentionCGSupport, MetadataBuilder
from numba_ckpt.attention.checkpoint_geometry import check_state_spec, checkpoint_geometry
from numba_ckpt.attention.common_metadata import CommonAttentionMetadata
from numba_ckpt.attention.recurrent_metadata import RecurrentStateMetadata
from numba_ckpt.attention.step_batch import StepBatch
from numba_ckpt.cache import EngineConfig, StateSpec
from numba_ckpt.checkpoint import PrefillCheckpointBuilder, PrefillCheckpointMetadata
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.running_state_indices import (
    StateIndices,
    StateRows,
    check_running_states,
    running_state_indices,
)
from numba_ckpt.planning import BatchLayout, ChunkLayout, compute_chunk_layout
from numba_ckpt.rules.batch_rows import is_prefill

__all__ = ["RecurrentStateBackend", "RecurrentStateBuilder"]


@host_loop
def _split_rows(starts, is_prefilling, num_draft_tokens, prefill_rows):  # type: ignore[no-untyped-def]
    """Return (decodes, prefills), and the prefills' rows in `prefill_rows`.

    Decodes is -1 - row for a decode after a prefill.
    """
    num_decodes, num_prefills = 0, 0
    for row in range(starts.size - 1):
        query_len = starts[row + 1] - starts[row]
        if is_prefill(query_len, is_prefilling[row], num_draft_tokens):
            prefill_rows[num_prefills] = row
            num_prefills += 1
        elif query_len > 0:
            if num_prefills > 0:
                return -1 - row, num_prefills
            num_decodes = row + 1
    return num_decodes, num_prefills


class RecurrentStateBuilder(MetadataBuilder):
    """Plans a step of recurrent layers; subclass it to give a kernel's chunk size.

    Parameters
    ----------
    spec : StateSpec
        The group's spec.
    layer_names : sequence of str
        The group's layers.
    config : EngineConfig
        Limits size the buffers; hash block, hit alignment, drafts and EAGLE drop place checkpoints.
    kernel_block_size, num_heads : int, optional
        Not used: states are never cut, and have no query heads.

    Attributes
    ----------
    chunk_size : int or None
        Tokens of a chunk of the layers' scan; None for layers without chunks (short convolutions).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The spec is no `StateSpec`, is of another cache mode than the engine's, or has no block for each draft's state.

    Examples
    --------
    >>> from numba_ckpt.attention import CommonAttentionMetadata, StepBatch
    >>> limits = {"max_num_requests": 4, "max_num_batched_tokens": 512, "max_model_len": 512}
    >>> cache = {"block_size": 64, "hash_block_size": 16, "cache_hit_alignment_tokens": 16}
    >>> config = EngineConfig.from_dict({"limits": limits, "cache": cache})
    >>> spec = StateSpec(64, ((4, 8),), ("float32",), num_checkpoint_blocks=1, checkpoint_alignment=16)
    >>> starts = np.array([0, 1, 201, 201])  # a decode, a prefill, a row of padding
    >>> batch = StepBatch(3, 256, starts, starts, np.array([70, 200, 0]), max_query_len=200, max_seq_len=200)
    >>> table = np.array([[0, 5, 0, 0], [0, 0, 6, 7], [0, 0, 0, 0]], np.int32)
    >>> builder = RecurrentStateBuilder(spec, ("mixer",), config)
    >>> metadata = builder.build(CommonAttentionMetadata(batch, 0, table, np.full(256, -1)))
    >>> metadata.num_decodes, metadata.num_prefills, metadata.state_indices.initial.tolist()
    (1, 1, [5, 0, 0, 0])
    >>> metadata.state_indices.written[:, 0].tolist(), metadata.checkpoint.state_indices.tolist()
    ([5, 7, 0, 0], [6])
    """

    supports_update_block_table = True
    chunk_size: ClassVar[int | None] = None

    def __init__(
        self,
        spec: StateSpec,
        layer_names: Any,
        config: EngineConfig,
        kernel_block_size: int | None = None,
        num_heads: int = 0,
    ) -> None:
        if not isinstance(spec, StateSpec):
            refuse("spec", "a StateSpec", type(spec).__name__, "take a backend for attention", ArgumentTypeError)
        check_state_spec(spec, config)
        super().__init__(spec, layer_names, config, kernel_block_size, num_heads)
        self._num_rows = config.limits.max_num_requests
        # Without caching a request has one state, in its first column, whatever its length.
        self._column_tokens = config.limits.max_model_len if spec.cache_mode == "none" else spec.block_size
        self._num_slots = 1 + spec.num_speculative_blocks
        self._checkpoints = PrefillCheckpointBuilder(
            checkpoint_geometry(spec, config), spec.cache_mode, spec.num_checkpoint_blocks
        )
        self._prefill_rows = np.empty(self._num_rows, np.int64)
        self._nobody = np.zeros(self._num_rows, np.bool_)
        self._buffers: StateIndices | None = None

    def check(self, common: CommonAttentionMetadata, **extra: Any) -> None:
        """Refuse what `build` would, and leave the buffers as they are."""
        rows, _ = self._rows(common, extra)
        check_running_states(common.block_table, rows, self._kept_buffers(common.block_table))

    def build(
        self, common: CommonAttentionMetadata, common_prefix_len: int = 0, **extra: Any
    ) -> RecurrentStateMetadata:
        """Make the metadata of a step.

        Parameters
        ----------
        common : CommonAttentionMetadata
            Decodes come before prefills, rows without tokens anywhere. Without `is_prefilling` a row is a prefill if
            its query is longer than one token and the drafts.
        common_prefix_len : int
            Not used.
        **extra
            ``num_accepted_tokens``, integer [>= decodes] on the batch's device: tokens that each decode's last step
            computed and kept. By default, or from the model's extras of the group, one each.

        Raises
        ------
        ArgumentError, ArgumentTypeError, BackendMixError
            A batch beyond the limits, a decode after a prefill, more tokens of a decode than blocks for its states, a
            block table too narrow, or unknown extras; the buffers are as they were then.

        Notes
        -----
        On a device: one launch for running states, and where there are checkpoints a copy and a launch; no
        synchronisation.
        """
        batch, starts = common.batch, common.batch.query_start_loc_cpu
        rows, prefill_rows = self._rows(common, extra)
        num_decodes = rows.num_decodes
        num_decode_tokens = int(starts[num_decodes])
        checkpoint = chunk_layout = None
        if prefill_rows.size:
            layout = BatchLayout(batch.seq_lens_cpu, starts, common.block_table)
            checkpoint = self._checkpoints.build(layout, prefill_rows)
            chunk_layout = self._cut(batch, prefill_rows, checkpoint)
        return RecurrentStateMetadata(
            batch,
            num_decodes,
            num_decode_tokens,
            int(prefill_rows.size),
            int(starts[batch.num_reqs]) - num_decode_tokens,
            prefill_rows,
            self._index(common.block_table, rows),
            rows,
            checkpoint,
            chunk_layout,
        )

    def build_for_cudagraph_capture(self, common: CommonAttentionMetadata) -> RecurrentStateMetadata:
        """Make the metadata of a dummy step of decodes; prefills cannot be captured."""
        if num_prefills := self._split(common)[1].size:
            do = "capture batches whose queries are one token and the drafts"
            refuse("batch", "decodes alone", f"{num_prefills} prefill(s)", do)
        return self.build(common)

    def update_block_table(
        self, metadata: RecurrentStateMetadata, block_table: Array, slot_mapping: Array
    ) -> RecurrentStateMetadata:
        """Return the metadata of the same batch for this builder's group: the same rows, looked up in its own table."""
        checkpoint = metadata.checkpoint
        if checkpoint is not None:
            checkpoint = checkpoint.regather_state_indices(block_table)
        return replace(metadata, state_indices=self._index(block_table, metadata.rows), checkpoint=checkpoint)

    def get_cudagraph_support(self) -> AttentionCGSupport:
        """Return UNIFORM_BATCH: the checkpoints of prefills are planned on the host."""
        return AttentionCGSupport.UNIFORM_BATCH

    def _rows(self, common: CommonAttentionMetadata, extra: dict[str, Any]) -> tuple[StateRows, np.ndarray]:
        """Return the step's rows, and which of them are prefills."""
        batch = common.batch
        accepted = extra.pop("num_accepted_tokens", common.extra.get("num_accepted_tokens"))
        if extra:
            refuse("extra", "num_accepted_tokens alone", ", ".join(extra), "leave it out for recurrent layers")
        num_decodes, prefill_rows = self._split(common)
        sizes = batch.num_reqs, num_decodes, self._column_tokens, batch.max_seq_len
        return StateRows(batch.seq_lens, batch.query_start_loc, accepted, *sizes), prefill_rows

    def _split(self, common: CommonAttentionMetadata) -> tuple[int, np.ndarray]:
        """Return how many rows are decodes, and which are prefills."""
        batch, num_drafts = common.batch, self.config.speculation.num_draft_tokens
        if batch.num_reqs > self._num_rows:
            do = "raise limits.max_num_requests, which the buffers are sized for"
            refuse("num_reqs", f"at most {self._num_rows}", batch.num_reqs, do)
        max_model_len = self.config.limits.max_model_len
        if batch.max_seq_len > max_model_len:
            do = "raise limits.max_model_len, which block tables are sized for"
            refuse("max_seq_len", f"at most {max_model_len}", batch.max_seq_len, do)
        starts, flags = batch.query_start_loc_cpu, common.is_prefilling
        flags = self._nobody[: batch.num_reqs] if flags is None else flags
        num_decodes, num_prefills = _split_rows(starts, flags, num_drafts, self._prefill_rows)
        if num_decodes < 0:
            row = -1 - int(num_decodes)
            refuse("query_start_loc", "decodes before prefills", f"a decode in row {row}", "sort the batch's rows")
        return int(num_decodes), self._prefill_rows[:num_prefills].copy()

    def _index(self, block_table: Array, rows: StateRows) -> StateIndices:
        """Refresh the buffers."""
        buffers = self._kept_buffers(block_table)
        running_state_indices(block_table, rows, buffers)
        return buffers

    def _kept_buffers(self, block_table: Array) -> StateIndices:
        if self._buffers is None:
            self._buffers = _new_buffers(block_table, self._num_rows, self._num_slots)
        return self._buffers

    def _cut(
        self, batch: StepBatch, prefill_rows: np.ndarray, checkpoint: PrefillCheckpointMetadata | None
    ) -> ChunkLayout | None:
        """Cut the prefills' tokens into chunks that end on checkpoints."""
        if self.chunk_size is None:
            return None
        starts = batch.query_start_loc_cpu
        # Rows in between have no tokens, so the prefills' tokens follow each other.
        own_starts = np.append(starts[prefill_rows], starts[prefill_rows[-1] + 1])
        computed = batch.seq_lens_cpu[prefill_rows] - np.diff(own_starts)
        offsets = None if checkpoint is None else checkpoint.offsets_cpu
        return compute_chunk_layout(computed, own_starts, self.chunk_size, offsets)


def _new_buffers(like: Array, num_rows: int, num_slots: int) -> StateIndices:
    backend = backend_of(block_table=like)
    return StateIndices(
        backend.empty((num_rows,), np.int32),
        backend.empty((num_rows, num_slots), np.int32),
        backend.empty((num_rows,), np.bool_),
    )


class RecurrentStateBackend(AttentionBackend):
    """Recurrent layers (Mamba, Mamba2, GDN, KDA, short convolution) over paged states.

    Examples
    --------
    >>> class Mamba2Builder(RecurrentStateBuilder):
    ...     chunk_size = 256
    >>> class Mamba2Backend(RecurrentStateBackend):
    ...     @classmethod
    ...     def builder_class(cls):
    ...         return Mamba2Builder
    """

    @classmethod
    def builder_class(cls) -> type[MetadataBuilder]:
        """Return `RecurrentStateBuilder`."""
        return RecurrentStateBuilder
