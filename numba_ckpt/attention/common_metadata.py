"""What all builders of one cache group read of a step."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._array import Array
from numba_ckpt.attention.fast_prefill import FastPrefillBatchMetadata
from numba_ckpt.attention.step_batch import StepBatch

__all__ = ["CommonAttentionMetadata"]

NO_EXTRA: Mapping[str, Any] = MappingProxyType({})


class CommonAttentionMetadata(NamedTuple):
    """The part of a step's metadata that differs between cache groups, and the batch that does not.

    Attributes
    ----------
    batch : StepBatch
        Shared by all groups: lengths, positions, bounds, and the request of each token once somebody asks.
    kv_cache_group_id : int
        The cache group.
    block_table : ndarray or cupy.ndarray
        int32 or int64 [>= N, C], block ids.
    slot_mapping : ndarray or cupy.ndarray
        int64 [>= T], slot that each token is written to.
    causal : bool or ndarray
        Whether a token sees no later ones; an array says it by row.
    is_prefilling : ndarray or None
        bool [N], on the host; the batch's, unless the model has its own for this group.
    fast_prefill : FastPrefillBatchMetadata or None
        The tokens that logits are wanted of, where the fast path applies.
    extra : mapping
        What the model adds for this group.

    Examples
    --------
    >>> starts = np.array([0, 2])
    >>> batch = StepBatch(1, 2, starts, starts, np.array([2]), max_query_len=2, max_seq_len=2)
    >>> common = CommonAttentionMetadata(batch, 0, np.array([[7]], np.int32), np.array([112, 113]))
    >>> common.batch.max_seq_len, common.causal
    (2, True)
    """

    batch: StepBatch
    kv_cache_group_id: int
    block_table: Array
    slot_mapping: Array
    causal: Any = True
    is_prefilling: np.ndarray | None = None
    fast_prefill: FastPrefillBatchMetadata | None = None
    extra: Mapping[str, Any] = NO_EXTRA
