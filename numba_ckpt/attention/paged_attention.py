"""Attention over paged keys and values: what a kernel that walks block tables reads."""

from dataclasses import dataclass, replace
from typing import Any

from numba_ckpt._array import Array
from numba_ckpt._check import check_int, refuse
from numba_ckpt.attention.backend import AttentionBackend, AttentionCGSupport, MetadataBuilder
from numba_ckpt.attention.common_metadata import CommonAttentionMetadata
from numba_ckpt.attention.step_batch import StepBatch

__all__ = ["PagedAttentionBackend", "PagedAttentionBuilder", "PagedAttentionMetadata"]


@dataclass(frozen=True, slots=True, eq=False)
class PagedAttentionMetadata:
    """What the layers of one group read to attend to cached keys and values.

    Attributes
    ----------
    batch : StepBatch
        Query starts, sequence lengths, their bounds, positions.
    block_table : ndarray or cupy.ndarray
        int32 or int64 [>= N, C], kernel blocks of each row.
    slot_mapping : ndarray or cupy.ndarray
        int64 [>= T], where each token's key and value are written; `rules.PAD_SLOT_ID` for none.
    causal : bool or ndarray
        Whether a token sees no later ones.
    block_size : int
        Tokens of a column of `block_table`.
    sliding_window, attention_chunk_size : int or None
        Tokens that a token sees, itself among them, or tokens of the chunk that it sees.
    common_prefix_len : int
        Leading tokens that all rows have in common, and in the same blocks.
    logits_indices : ndarray or cupy.ndarray or None
        int32, the tokens that logits are wanted of (padded), where only they need be computed.
    """

    batch: StepBatch
    block_table: Array
    slot_mapping: Array
    causal: Any
    block_size: int
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    common_prefix_len: int = 0
    logits_indices: Array = None


class PagedAttentionBuilder(MetadataBuilder):
    """Adds what the group's spec says to what the step says; launches nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from numba_ckpt.attention import CommonAttentionMetadata, StepBatch
    >>> from numba_ckpt.cache import SlidingWindowSpec
    >>> starts = np.array([0, 2])
    >>> batch = StepBatch(1, 2, starts, starts, np.array([2]), max_query_len=2, max_seq_len=2)
    >>> common = CommonAttentionMetadata(batch, 0, np.array([[7]], np.int32), np.array([112, 113]))
    >>> spec = SlidingWindowSpec(16, num_kv_heads=1, head_size=8, sliding_window=100)
    >>> metadata = PagedAttentionBuilder(spec, ("layer",), None, kernel_block_size=16).build(common)
    >>> metadata.sliding_window, metadata.block_size, metadata.block_table.tolist()
    (100, 16, [[7]])
    """

    supports_update_block_table = True

    def build(
        self, common: CommonAttentionMetadata, common_prefix_len: int = 0, **extra: Any
    ) -> PagedAttentionMetadata:
        """Make the metadata of a step; allocates no arrays.

        Raises
        ------
        ArgumentError
            A block table too narrow for the longest sequence, a common prefix longer than it, or unknown extras.
        """
        if extra:
            refuse("extra", "nothing", ", ".join(extra), "leave it out for PagedAttentionBackend")
        batch, block_size = common.batch, self.kernel_block_size or self.spec.block_size
        check_int("common_prefix_len", common_prefix_len, 0, batch.max_seq_len)
        fast_prefill = common.fast_prefill
        return PagedAttentionMetadata(
            batch,
            common.block_table,
            common.slot_mapping,
            common.causal,
            block_size,
            getattr(self.spec, "sliding_window", None),
            getattr(self.spec, "attention_chunk_size", None),
            common_prefix_len,
            None if fast_prefill is None else fast_prefill.logits_indices_padded,
        )

    def update_block_table(
        self, metadata: PagedAttentionMetadata, block_table: Array, slot_mapping: Array
    ) -> PagedAttentionMetadata:
        """Return the metadata with another group's table and slots."""
        return replace(metadata, block_table=block_table, slot_mapping=slot_mapping)

    def get_cudagraph_support(self) -> AttentionCGSupport:
        """Return ALWAYS: the layers read the engine's buffers, whose addresses stay."""
        return AttentionCGSupport.ALWAYS


class PagedAttentionBackend(AttentionBackend):
    """Attention over paged keys and values, for kernels that take any block size."""

    @classmethod
    def builder_class(cls) -> type[MetadataBuilder]:
        """Return `PagedAttentionBuilder`."""
        return PagedAttentionBuilder
