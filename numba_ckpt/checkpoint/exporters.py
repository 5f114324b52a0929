"""Exporters: after a layer ran, write its checkpoints into the layer's paged caches."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import refuse
from numba_ckpt._staging import StagingRing
from numba_ckpt.checkpoint.caches import ConvCache, RecurrentCache
from numba_ckpt.checkpoint.inputs import ConvInput, RecurrentInput
from numba_ckpt.checkpoint.metadata import PrefillCheckpointMetadata
from numba_ckpt.checkpoint.moves import (
    backend_of_caches,
    check_conv_move,
    check_values,
    conv_move,
    recurrent_move,
    target_arrays,
)
from numba_ckpt.checkpoint.targets import CheckpointTargets
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.checkpoint_export import export_checkpoints, no_conv, no_recurrent
from numba_ckpt.planning import ChunkLayout

__all__ = ["ConvExporter", "ConvRecurrentExporter", "Mamba2Exporter", "PrefillCheckpointExporter", "RecurrentExporter"]

Checkpoint = PrefillCheckpointMetadata | CheckpointTargets


def _targets_of(checkpoint: Checkpoint) -> CheckpointTargets:
    if isinstance(checkpoint, PrefillCheckpointMetadata):
        return checkpoint.targets
    if not isinstance(checkpoint, CheckpointTargets):
        expected, do = "PrefillCheckpointMetadata or CheckpointTargets", "build one, or skip a step without checkpoints"
        refuse("checkpoint", expected, type(checkpoint).__name__, do, ArgumentTypeError)
    return checkpoint


class PrefillCheckpointExporter(ABC):
    """Writes the checkpoints of one layer into its paged caches.

    One exporter per layer, made when the caches are bound; `export` runs once per step, after the layer. It walks a
    flat list of checkpoints, so a row may have any number of them. Checkpoints with offset 0, the null block (0) or a
    padding block (-1) write nothing, and nothing but the addressed states is changed.

    Parameters
    ----------
    conv_cache : ConvCache, optional
        The layer's convolution windows.
    recurrent_cache : RecurrentCache, optional
        The layer's recurrent states; as many blocks as `conv_cache`.

    Raises
    ------
    ArgumentError, BackendMixError
        The caches differ in blocks or device.
    """

    def __init__(self, conv_cache: ConvCache | None = None, recurrent_cache: RecurrentCache | None = None) -> None:
        self.backend = backend_of_caches(conv_cache, recurrent_cache)
        self.conv_cache = conv_cache
        self.recurrent_cache = recurrent_cache
        self._no_conv, self._no_recurrent = no_conv(self.backend), no_recurrent(self.backend)

    @abstractmethod
    def export(self, checkpoint: Checkpoint, *sources: Any) -> None:
        """Write checkpoint states into the paged caches."""

    def _export(self, checkpoint: Checkpoint, conv: ConvInput | None, recurrent: RecurrentInput | None) -> None:
        """Check everything, then write; one launch on a device, no synchronisation."""
        targets = _targets_of(checkpoint)
        self._check_given(conv, recurrent)
        self._check_place(targets, conv, recurrent)
        conv_side, recurrent_side = self._no_conv, self._no_recurrent
        if conv is not None and self.conv_cache is not None:
            conv_side = conv_move(self.backend, self.conv_cache, conv)
        if recurrent is not None and self.recurrent_cache is not None:
            recurrent_side = recurrent_move(self.backend, self.recurrent_cache, recurrent, len(targets))
        num_blocks = max(conv_side.cache.shape[0], recurrent_side.cache.shape[0])
        check_values(self.backend, targets, (conv_side, recurrent_side), num_blocks)
        if conv is not None:
            check_conv_move(self.backend, targets, conv, conv_side)
        export_checkpoints(self.backend, target_arrays(self.backend, targets), conv_side, recurrent_side)

    def _check_given(self, conv: ConvInput | None, recurrent: RecurrentInput | None) -> None:
        """Refuse a cache without its source: the checkpoint would be half written and served as a whole one."""
        conv_side, recurrent_side = (
            (self.conv_cache, conv, ConvInput),
            (self.recurrent_cache, recurrent, RecurrentInput),
        )
        for name, (cache, source, kind) in {"conv": conv_side, "recurrent": recurrent_side}.items():
            if cache is not None and not isinstance(source, kind):
                do = "every cache of an exporter needs what it stores"
                refuse(name, f"a {kind.__name__}", type(source).__name__, do, ArgumentTypeError)

    def _check_place(
        self, targets: CheckpointTargets, conv: ConvInput | None, recurrent: RecurrentInput | None
    ) -> None:
        """Refuse arrays that live elsewhere than the caches, and a list that names no rows but is not one per row."""
        cache = self.conv_cache or self.recurrent_cache
        assert cache is not None
        sources = {"tokens": conv and conv.tokens, "recurrent.states": recurrent and recurrent.states}
        sources["initial.states"] = conv and conv.initial and conv.initial.states
        backend_of(caches=cache.states, offsets=targets.offsets, **sources)
        if conv is not None and targets.rows is None and len(targets) != conv.num_rows:
            got = f"{len(targets)} checkpoints for {conv.num_rows} rows"
            refuse(
                "checkpoint", "one checkpoint per row of query_start_loc", got, "name rows in CheckpointTargets.rows"
            )


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
    """

    def __init__(self, conv_cache: ConvCache, recurrent_cache: RecurrentCache) -> None:
        super().__init__(conv_cache, recurrent_cache)
        self._ring = StagingRing(self.backend) if isinstance(self.backend, DeviceBackend) else None

    def export(self, checkpoint: Checkpoint, conv: ConvInput, chunk_states: Array, chunks: ChunkLayout | Array) -> None:
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

        Raises
        ------
        ArgumentError, ArgumentTypeError, BackendMixError
            As `ConvRecurrentExporter.export`, or no chunk of the layout ends on a checkpoint.

        Notes
        -----
        On a device with a `ChunkLayout`, the chunk indices are sent from a pinned buffer; no synchronisation.
        """
        if isinstance(chunks, ChunkLayout):
            chunks = self._chunks_of(checkpoint, chunks)
        orientation = self.recurrent_cache.orientation if self.recurrent_cache else ""
        self._export(checkpoint, conv, RecurrentInput(chunk_states, chunks, orientation))

    def _chunks_of(self, checkpoint: Checkpoint, layout: ChunkLayout) -> Array:
        targets = _targets_of(checkpoint)
        rows = np.arange(len(targets)) if targets.rows is None else targets.rows_cpu
        if targets.offsets_cpu is None or rows is None:
            do = "pass them, or the chunk index of each checkpoint"
            refuse("checkpoint", "host mirrors of offsets and rows", "None", do, ArgumentTypeError)
        chunks = layout.chunks_ending_at(rows, targets.offsets_cpu)
        return chunks if self._ring is None else self._ring.send(chunks)[0]


class ConvExporter(PrefillCheckpointExporter):
    """Convolution window alone (short-convolution layers).

    Parameters
    ----------
    conv_cache : ConvCache
        The layer's convolution windows.
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
    """

    def __init__(self, recurrent_cache: RecurrentCache) -> None:
        super().__init__(recurrent_cache=recurrent_cache)

    def export(self, checkpoint: Checkpoint, recurrent: RecurrentInput) -> None:
        """Write the states of all checkpoints; as `ConvRecurrentExporter.export`."""
        self._export(checkpoint, None, recurrent)
