"""Attention over paged keys and values: what a kernel that walks block tables reads."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from numba_ckpt._array import Array
from numba_ckpt._check import check_int, refuse
from numba_ckpt.attention.backend import AttentionBackend, AttentionCGSupport, MetadataBuilder
from numba_ckpt.attention.common_metadata import CommonAttentionMetadata
from numba_ckpt.attention.step_batch import StepBatch
from numba_ckpt.cache import CrossAttentionSpec, EncoderOnlyAttentionSpec, EngineConfig, KVCacheSpec

__all__ = ["PagedAttentionBackend", "PagedAttentionBuilder", "PagedAttentionMetadata"]


class PagedAttentionMetadata(NamedTuple):
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
    """

    batch: StepBatch
    block_table: Array
    slot_mapping: Array
    causal: Any
    block_size: int
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    common_prefix_len: int = 0


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

    def __init__(
        self,
        spec: KVCacheSpec,
        layer_names: Sequence[str],
        config: EngineConfig,
        kernel_block_size: int | None = None,
        num_heads: int = 0,
    ) -> None:
        super().__init__(spec, layer_names, config, kernel_block_size, num_heads)
        self._block_size = kernel_block_size or spec.block_size
        # What the encoder computed has another length than the sequence.
        is_of_sequence = not isinstance(spec, (CrossAttentionSpec, EncoderOnlyAttentionSpec))
        num_ranks = config.parallel.cp_size if spec.is_cp_sharded else 1
        self._tokens_of_col = self._block_size * num_ranks if is_of_sequence else None
        self._sees = getattr(spec, "sliding_window", None), getattr(spec, "attention_chunk_size", None)

    def check(self, common: CommonAttentionMetadata, **extra: Any) -> None:
        """Refuse a block table too narrow for the longest sequence, and extras."""
        if extra:
            refuse("extra", "nothing", ", ".join(extra), "leave it out for PagedAttentionBackend")
        self._check_extent(common.batch, common.block_table)

    def build(
        self, common: CommonAttentionMetadata, common_prefix_len: int = 0, **extra: Any
    ) -> PagedAttentionMetadata:
        """Make the metadata of a step; allocates no arrays.

        Raises
        ------
        ArgumentError
            A block table too narrow for the longest sequence, a common prefix longer than it, or unknown extras.
        """
        batch = common.batch
        check_int("common_prefix_len", common_prefix_len, 0, batch.max_seq_len)
        self.check(common, **extra)
        return PagedAttentionMetadata(
            batch,
            common.block_table,
            common.slot_mapping,
            common.causal,
            self._block_size,
            *self._sees,
            common_prefix_len,
        )

    def update_block_table(
        self, metadata: PagedAttentionMetadata, block_table: Array, slot_mapping: Array
    ) -> PagedAttentionMetadata:
        """Return the metadata with another group's table and slots.

        Raises
        ------
        ArgumentError
            A block table too narrow for the longest sequence.
        """
        self._check_extent(metadata.batch, block_table)
        return metadata._replace(block_table=block_table, slot_mapping=slot_mapping)

    def _check_extent(self, batch: StepBatch, block_table: Array) -> None:
        if self._tokens_of_col is None:
            return
        num_tokens = block_table.shape[1] * self._tokens_of_col
        if num_tokens < batch.max_seq_len and batch.num_reqs:
            expected = f"columns for {batch.max_seq_len} tokens"
            refuse("block_table", expected, f"{block_table.shape[1]} of {self._tokens_of_col}", "gather whole rows")

    def get_cudagraph_support(self) -> AttentionCGSupport:
        """Return ALWAYS: the layers read the engine's buffers, whose addresses stay."""
        return AttentionCGSupport.ALWAYS


class PagedAttentionBackend(AttentionBackend):
    """Attention over paged keys and values, for kernels that take any block size."""

    @classmethod
    def builder_class(cls) -> type[MetadataBuilder]:
        """Return `PagedAttentionBuilder`."""
        return PagedAttentionBuilder
