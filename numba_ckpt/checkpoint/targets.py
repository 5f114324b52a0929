"""The flat list of checkpoints that exporters walk."""

from dataclasses import dataclass

import numpy as np

from numba_ckpt._array import Array, backend_of
from numba_ckpt._check import check_array, check_mirror, check_shape

__all__ = ["CheckpointTargets"]


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointTargets:
    """Checkpoints to export, one entry each; several may belong to one row.

    Parameters
    ----------
    offsets : ndarray or cupy.ndarray
        Integer [K], tokens from the row's query start to the checkpoint; 0 for none.
    state_indices : ndarray or cupy.ndarray
        Integer [K], block of the paged caches that takes the state; the null block (0) and padding (-1) are skipped.
    rows : ndarray or cupy.ndarray, optional
        Integer [K], row of each checkpoint in the exported batch; by default entry k belongs to row k.
    offsets_cpu, rows_cpu : ndarray, optional
        Host mirrors. Not needed for host arrays; on a device they are what offsets are checked by.

    Examples
    --------
    >>> targets = CheckpointTargets(np.array([16, 32]), np.array([3, 4]), rows=np.array([0, 0]))
    >>> len(targets)
    2
    """

    offsets: Array
    state_indices: Array
    rows: Array = None
    offsets_cpu: np.ndarray | None = None
    rows_cpu: np.ndarray | None = None

    def __post_init__(self) -> None:
        backend = backend_of(offsets=self.offsets, state_indices=self.state_indices, rows=self.rows)
        for name in ("offsets", "state_indices", "rows"):
            array = getattr(self, name)
            if array is not None or name != "rows":
                check_array(name, array, 1, "i")
                check_shape(name, array, (len(self),), "pass one entry for each checkpoint")
        for name in ("offsets", "rows"):
            mirror = getattr(self, f"{name}_cpu")
            if backend.is_host:
                object.__setattr__(self, f"{name}_cpu", getattr(self, name))
            elif mirror is not None and getattr(self, name) is not None:
                check_mirror(name, mirror, getattr(self, name))

    def __len__(self) -> int:
        return int(self.offsets.shape[0])
