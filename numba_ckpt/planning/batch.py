"""What one step of an engine computes, as the planner and the builder read it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BatchLayout", "DeviceBatchLayout"]


@dataclass(frozen=True, slots=True, eq=False)
class BatchLayout:
    """The rows of one step: their lengths on the host, and the block table of one state group.

    A plain record: whoever reads a field checks it.

    Parameters
    ----------
    seq_lens_cpu : ndarray
        Integer [N], tokens of each sequence after the step (an upper bound where drafts may be rejected).
    query_start_loc_cpu : ndarray
        Integer [N+1], cumulative tokens of the step; row i computes tokens [query_start_loc[i], query_start_loc[i+1])
        of the packed batch (FlashAttention: cu_seqlens).
    block_table : ndarray or cupy.ndarray
        int32 or int64 [>= N, C], block ids of the state group, one column per `state_block_size` tokens. Its device
        decides where metadata is made.

    Examples
    --------
    >>> batch = BatchLayout(np.array([5000, 7]), np.array([0, 4992, 4999]), np.zeros((2, 3), np.int32))
    >>> batch.block_table.shape
    (2, 3)
    """

    seq_lens_cpu: np.ndarray
    query_start_loc_cpu: np.ndarray
    block_table: Any


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBatchLayout:
    """The rows of one step whose lengths are on the device of the block table, where the host need not know them.

    A plain record: whoever reads a field checks it.

    Parameters
    ----------
    seq_lens : ndarray or cupy.ndarray
        int32 or int64 [>= N], tokens of each sequence after the step.
    query_start_loc : ndarray or cupy.ndarray
        int32 or int64 [N+1], cumulative tokens of the step.
    block_table : ndarray or cupy.ndarray
        int32 or int64 [>= N, C], block ids of the state group.

    Examples
    --------
    >>> DeviceBatchLayout(np.array([5000]), np.array([0, 4992]), np.zeros((1, 3), np.int32)).seq_lens.tolist()
    [5000]
    """

    seq_lens: Any
    query_start_loc: Any
    block_table: Any
