"""Exporters for the layers that hybrid models are made of."""

import numpy as np

from numba_ckpt._array import Array, DeviceBackend
from numba_ckpt._check import refuse
from numba_ckpt._staging import StagingRing
from numba_ckpt.checkpoint.caches import ConvCache, RecurrentCache
from numba_ckpt.checkpoint.exporter import Checkpoint, PrefillCheckpointExporter, targets_of
from numba_ckpt.checkpoint.inputs import ConvInput, RecurrentInput
from numba_ckpt.checkpoint.moves import check_layout
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.planning import ChunkLayout
from numba_ckpt.rules import NO_OFFSET, NULL_BLOCK_ID

__all__ = ["ConvExporter", "ConvRecurrentExporter", "Mamba2Exporter", "RecurrentExporter"]


class ConvRecurrentExporter(PrefillCheckpointExporter):
    """Convolution window and recurrent state (gated delta rule, KDA).

    Parameters
    ----------
    conv_cache : ConvCache
        The layer's convolution windows.
    recurrent_cache : RecurrentCache
        The layer's recurrent states.

    Examples
    --------
    >>> from numba_ckpt import CheckpointTargets
    >>> conv, state = np.full((4, 2, 3), np.nan, np.float32), np.full((4, 1, 2), np.nan, np.float32)
    >>> exporter = ConvRecurrentExporter(ConvCache(conv), RecurrentCache(state))
    >>> tokens = np.arange(16, dtype=np.float32).reshape(8, 2)
    >>> targets = CheckpointTargets(np.array([5], np.int32), np.array([2], np.int32))
    >>> states = RecurrentInput(np.array([[[7.0, 9.0]]], np.float32))
    >>> exporter.export(targets, ConvInput(tokens, np.array([0, 8])), states)
    >>> conv[2].tolist(), state[2].tolist()
    ([[4.0, 6.0, 8.0], [5.0, 7.0, 9.0]], [[7.0, 9.0]])
    """

    def __init__(self, conv_cache: ConvCache, recurrent_cache: RecurrentCache) -> None:
        super().__init__(conv_cache, recurrent_cache)

    def export(self, checkpoint: Checkpoint, conv: ConvInput, recurrent: RecurrentInput) -> None:
        """Write windows and states of all checkpoints.

        Parameters
        ----------
        checkpoint : PrefillCheckpointMetadata or CheckpointTargets
            What to write where.
        conv : ConvInput
            The convolution's input tokens.
        recurrent : RecurrentInput
            The states at the checkpoints.

        Raises
        ------
        ArgumentError, ArgumentTypeError, BackendMixError
            Shapes, dtypes, orientation or devices do not fit; memory overlaps; a row, offset, block, token or source
            is outside its array; two checkpoints write one block; an offset is shorter than the window and no initial
            window is given. Nothing is written then.

        Notes
        -----
        On a device: one launch on the current stream, no synchronisation, and of the values only host mirrors are
        checked.
        """
        self._export(checkpoint, conv, recurrent)


class Mamba2Exporter(PrefillCheckpointExporter):
    """Convolution window, and recurrent state taken from the scan's array of chunk states (Mamba2's SSD).

    Parameters
    ----------
    conv_cache : ConvCache
        The layer's convolution windows.
    recurrent_cache : RecurrentCache
        The layer's recurrent states.

    Examples
    --------
    >>> from numba_ckpt import compute_chunk_layout
    >>> layout = compute_chunk_layout([0], [0, 300], 128, [200])  # chunks end at 128, 200, 256 and 300
    >>> chunk_states = np.arange(4, dtype=np.float32)[:, None]
    >>> windows, states = np.zeros((4, 1, 3), np.float32), np.zeros((4, 1), np.float32)
    >>> exporter = Mamba2Exporter(ConvCache(windows), RecurrentCache(states))
    >>> source = ConvInput(np.arange(300, dtype=np.float32)[:, None], np.array([0, 300]))
    >>> exporter.export(CheckpointTargets(np.array([200]), np.array([2])), source, chunk_states, layout)
    >>> windows[2].tolist(), states[2].tolist()
    ([[197.0, 198.0, 199.0]], [1.0])
    """

    def __init__(self, conv_cache: ConvCache, recurrent_cache: RecurrentCache) -> None:
        super().__init__(conv_cache, recurrent_cache)
        self._ring = StagingRing(self.backend) if isinstance(self.backend, DeviceBackend) else None

    def export(
        self,
        checkpoint: Checkpoint,
        conv: ConvInput,
        chunk_states: Array,
        chunks: ChunkLayout | Array,
        orientation: str = "",
    ) -> None:
        r"""Write windows and states of all checkpoints.

        Parameters
        ----------
        checkpoint : PrefillCheckpointMetadata or CheckpointTargets
            What to write where.
        conv : ConvInput
            The convolution's input tokens.
        chunk_states : ndarray or cupy.ndarray
            [chunks, \*state_shape], the state at the end of each chunk.
        chunks : ChunkLayout, ndarray or cupy.ndarray
            The layout that the scan used, or integer [K]: the chunk that ends on each checkpoint.
        orientation : str
            Label of the chunk states' axes; must equal the cache's.

        Raises
        ------
        ArgumentError, ArgumentTypeError, BackendMixError
            As `ConvRecurrentExporter.export`, or no chunk of the layout ends on a checkpoint.

        Notes
        -----
        On a device with a `ChunkLayout`, the chunk indices are sent from a pinned buffer; no synchronisation.
        """
        if isinstance(chunks, ChunkLayout):
            check_layout(chunks, conv, chunk_states)
            chunks = self._chunks_of(checkpoint, chunks)
        self._export(checkpoint, conv, RecurrentInput(chunk_states, chunks, orientation))

    def _chunks_of(self, checkpoint: Checkpoint, layout: ChunkLayout) -> Array:
        targets = targets_of(checkpoint)
        rows = np.arange(len(targets)) if targets.rows is None else targets.rows_cpu
        if targets.offsets_cpu is None or rows is None:
            do = "pass them, or the chunk index of each checkpoint"
            refuse("checkpoint", "host mirrors of offsets and rows", "None", do, ArgumentTypeError)
        offsets = targets.offsets_cpu
        if self._ring is None:
            # Skipped checkpoints may be stale; on a device their blocks are not known here.
            offsets = np.where(targets.state_indices > NULL_BLOCK_ID, offsets, NO_OFFSET)
        chunks = layout.chunks_ending_at(rows, offsets)
        return chunks if self._ring is None else self._ring.send(chunks)[0]


class ConvExporter(PrefillCheckpointExporter):
    """Convolution window alone (short-convolution layers).

    Parameters
    ----------
    conv_cache : ConvCache
        The layer's convolution windows.

    Examples
    --------
    >>> windows = np.zeros((4, 1, 3), np.float32)
    >>> tokens = np.arange(8, dtype=np.float32)[:, None]
    >>> targets = CheckpointTargets(np.array([4]), np.array([2]))
    >>> ConvExporter(ConvCache(windows)).export(targets, ConvInput(tokens, np.array([0, 8])))
    >>> windows[2].tolist()
    [[1.0, 2.0, 3.0]]
    """

    def __init__(self, conv_cache: ConvCache) -> None:
        super().__init__(conv_cache=conv_cache)

    def export(self, checkpoint: Checkpoint, conv: ConvInput) -> None:
        """Write the windows of all checkpoints; as `ConvRecurrentExporter.export`."""
        self._export(checkpoint, conv, None)


class RecurrentExporter(PrefillCheckpointExporter):
    """Recurrent state alone.

    Parameters
    ----------
    recurrent_cache : RecurrentCache
        The layer's recurrent states.

    Examples
    --------
    >>> states = np.zeros((4, 2), np.float16)
    >>> handed_out = np.array([[0.5, 1e-9]], np.float32)  # rounded to nearest even as it is stored
    >>> targets = CheckpointTargets(np.array([4]), np.array([2]))
    >>> RecurrentExporter(RecurrentCache(states)).export(targets, RecurrentInput(handed_out))
    >>> states[2].tolist()
    [0.5, 0.0]
    """

    def __init__(self, recurrent_cache: RecurrentCache) -> None:
        super().__init__(recurrent_cache=recurrent_cache)

    def export(self, checkpoint: Checkpoint, recurrent: RecurrentInput) -> None:
        """Write the states of all checkpoints; as `ConvRecurrentExporter.export`."""
        self._export(checkpoint, None, recurrent)
