"""Where the checkpoints of one step go, as the layers of a group read it."""

from dataclasses import dataclass, replace

import numpy as np

from numba_ckpt._array import Array
from numba_ckpt._check import refuse
from numba_ckpt.checkpoint.targets import CheckpointTargets
from numba_ckpt.kernels.gather_state_indices import gather_state_indices

__all__ = ["PrefillCheckpointMetadata"]


@dataclass(frozen=True, slots=True, eq=False)
class PrefillCheckpointMetadata:
    """The checkpoints of a step's rows, one entry per row, on the device of the block table.

    Attributes
    ----------
    checkpoint_offsets : ndarray or cupy.ndarray
        int32 [R], tokens from the row's query start to its checkpoint; 0 for none.
    state_indices : ndarray or cupy.ndarray
        int32 [R], block that takes the state; `NULL_BLOCK_ID` for none.
    offsets_cpu : ndarray or None
        int32 [R], host mirror of `checkpoint_offsets`, for backends that lay out the pass on the host; None where the
        plan was made on the device.
    query_lens_cpu : ndarray or None
        int64 [R], tokens that the step computes of each row; None with `offsets_cpu`.
    request_rows : ndarray or cupy.ndarray, optional
        int64 [R], position of each row in the batch; kept for `regather_state_indices`.
    block_cols : ndarray or cupy.ndarray, optional
        int64 [R], block-table column of each checkpoint, -1 for none; kept for `regather_state_indices`.
    table_extent : tuple of int
        Rows and columns that a block table must have for these rows.

    Examples
    --------
    >>> from numba_ckpt import BatchLayout, CheckpointGeometry, PrefillCheckpointBuilder
    >>> batch = BatchLayout(np.array([200]), np.array([0, 200]), np.array([[3, 5, 7, 4]], np.int32))
    >>> builder = PrefillCheckpointBuilder(CheckpointGeometry(16, 64, 16, checkpoint_alignment=16))
    >>> metadata = builder.build(batch, [0])
    >>> other = metadata.regather_state_indices(np.array([[10, 11, 12, 13]], np.int32))
    >>> metadata.checkpoint_offsets.tolist(), metadata.state_indices.tolist(), other.state_indices.tolist()
    ([192], [7], [12])
    """

    checkpoint_offsets: Array
    state_indices: Array
    offsets_cpu: np.ndarray | None
    query_lens_cpu: np.ndarray | None
    request_rows: Array = None
    block_cols: Array = None
    table_extent: tuple[int, int] = (0, 0)

    @property
    def targets(self) -> CheckpointTargets:
        """The same checkpoints as exporters walk them."""
        return CheckpointTargets(self.checkpoint_offsets, self.state_indices, offsets_cpu=self.offsets_cpu)

    def regather_state_indices(self, block_table: Array) -> "PrefillCheckpointMetadata":
        """Return the metadata of another cache group with the same spec.

        Parameters
        ----------
        block_table : ndarray or cupy.ndarray
            int32 or int64 [rows, C], that group's block table; on the device of this metadata.

        Returns
        -------
        PrefillCheckpointMetadata
            A new object with new `state_indices`; everything else is shared and nothing is changed.

        Raises
        ------
        ArgumentError
            The rows and columns were not kept, or lie outside `block_table`.

        Notes
        -----
        On a device: one launch on the current stream, no synchronisation.
        """
        if self.request_rows is None or self.block_cols is None:
            do = "keep request_rows and block_cols when building metadata for several groups"
            refuse("request_rows", "the kept gather positions", "None", do)
        indices = gather_state_indices(block_table, self.request_rows, self.block_cols, self.table_extent)
        return replace(self, state_indices=indices)
