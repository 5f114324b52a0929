"""What all exporters share: after a layer ran, write its checkpoints into the layer's paged caches."""

from abc import ABC, abstractmethod
from typing import Any

from numba_ckpt._array import backend_of
from numba_ckpt._check import refuse
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
from numba_ckpt.checkpoint.overlap import check_sources_apart
from numba_ckpt.checkpoint.targets import CheckpointTargets
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.checkpoint_export import export_checkpoints, no_conv, no_recurrent

__all__ = ["Checkpoint", "PrefillCheckpointExporter", "targets_of"]

Checkpoint = PrefillCheckpointMetadata | CheckpointTargets


def targets_of(checkpoint: Checkpoint) -> CheckpointTargets:
    """Return the flat list of checkpoints, refusing anything that is none."""
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
        The caches differ in blocks or device, or share bytes.

    Examples
    --------
    A layer with a state of its own kind walks the same list:

    >>> import numpy as np
    >>> class Counter(PrefillCheckpointExporter):
    ...     def export(self, checkpoint, counts):
    ...         self._export(checkpoint, None, RecurrentInput(counts))
    >>> states = np.zeros((4, 1), np.int64)
    >>> Counter(recurrent_cache=RecurrentCache(states)).export(
    ...     CheckpointTargets(np.array([4]), np.array([2])), np.array([[7]])
    ... )
    >>> states[:, 0].tolist()
    [0, 0, 7, 0]
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
        targets = targets_of(checkpoint)
        self._check_given(conv, recurrent)
        self._check_place(targets, conv, recurrent)
        conv_side, recurrent_side = self._no_conv, self._no_recurrent
        if conv is not None and self.conv_cache is not None:
            conv_side = conv_move(self.backend, self.conv_cache, conv)
        if recurrent is not None and self.recurrent_cache is not None:
            recurrent_side = recurrent_move(self.backend, self.recurrent_cache, recurrent, len(targets))
        num_blocks = max(conv_side.cache.shape[0], recurrent_side.cache.shape[0])
        arrays = target_arrays(self.backend, targets)
        check_values(self.backend, targets, arrays, (conv_side, recurrent_side), num_blocks)
        if conv is not None:
            check_conv_move(self.backend, targets, arrays, conv, conv_side)
        check_sources_apart(self.backend, arrays, conv_side, recurrent_side)
        export_checkpoints(self.backend, arrays, conv_side, recurrent_side)

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
