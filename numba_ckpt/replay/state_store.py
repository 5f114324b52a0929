"""The paged states of the replayed layer, on the chosen device."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_ckpt._array import Array
from numba_ckpt._check import refuse
from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvInput,
    ConvRecurrentExporter,
    PrefillCheckpointMetadata,
    RecurrentCache,
    RecurrentInput,
)
from numba_ckpt.replay._extras import require
from numba_ckpt.replay.model import CHANNELS, STATE_LEN, STATE_SHAPE

__all__ = ["StateStore", "array_module"]


def array_module(device: str) -> Any:
    """Return NumPy for "cpu"; CuPy for "cuda", or an error that says what is missing."""
    if device == "cpu":
        return np
    cupy = require("cupy", "--device cuda")
    if not cupy.cuda.is_available():
        refuse("device", "a CUDA device", "none that CuPy can use", "use the cpu, or see: numba-ckpt doctor")
    return cupy


class StateStore:
    """Convolution windows and recurrent states of a fixed number of blocks, poisoned until written.

    Parameters
    ----------
    num_blocks : int
        Blocks, the null block 0 included.
    xp : module
        NumPy or CuPy.
    """

    def __init__(self, num_blocks: int, xp: Any) -> None:
        self.xp = xp
        self.windows = xp.full((num_blocks, STATE_LEN, CHANNELS), np.nan, np.float32)
        self.states = xp.full((num_blocks, *STATE_SHAPE), np.nan, np.float32)
        self._exporter = ConvRecurrentExporter(ConvCache(self.windows, "len_first"), RecurrentCache(self.states))

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block: its window and its state."""
        return int(self.windows.nbytes + self.states.nbytes) // int(self.windows.shape[0])

    def poison(self, blocks: Sequence[int] | np.ndarray) -> None:
        """Fill blocks with NaN, so that a state which nobody writes cannot pass for one."""
        where = self.to_device(np.asarray(blocks))
        self.windows[where] = np.nan
        self.states[where] = np.nan

    def copy(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Copy whole blocks, none of them both source and destination."""
        where, to = self.to_device(sources), self.to_device(destinations)
        self.windows[to] = self.windows[where]
        self.states[to] = self.states[where]

    def read(self, blocks: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the windows and states of these blocks, copied to the host."""
        where = self.to_device(np.asarray(blocks))
        return self.to_host(self.windows[where]), self.to_host(self.states[where])

    def export(
        self, checkpoint: PrefillCheckpointMetadata | CheckpointTargets, conv_input: ConvInput, states: Array
    ) -> None:
        """Write checkpoints of a batch into their blocks; `states` [checkpoints, *STATE_SHAPE] is on the device."""
        self._exporter.export(checkpoint, conv_input, RecurrentInput(states))

    def to_device(self, array: np.ndarray) -> Array:
        """Return a host array where the caches are."""
        return self.xp.asarray(array)

    def to_host(self, array: Array) -> np.ndarray:
        """Return an array of the device on the host."""
        return np.asarray(array) if self.xp is np else self.xp.asnumpy(array)
