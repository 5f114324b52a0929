"""The residual blocks of a hybrid stack: gated delta rule, Mamba2, attention."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from numba_ckpt._check import check_int
from numba_ckpt.checkpoint import (
    ConvInput,
    ConvRecurrentExporter,
    InitialConvState,
    Mamba2Exporter,
    RecurrentInput,
)
from numba_ckpt.models.dense import draw_weight, linear, rms_norm, sigmoid, softplus
from numba_ckpt.models.gated_delta import ORIENTATION as HKV
from numba_ckpt.models.gated_delta import GatedDeltaTokens, gated_delta
from numba_ckpt.models.layer_states import InitialStates, LayerStates, StateSpec
from numba_ckpt.models.mamba2 import ORIENTATION as HPN
from numba_ckpt.models.mamba2 import Mamba2Tokens, mamba2_scan
from numba_ckpt.models.short_conv import short_conv
from numba_ckpt.models.step import Step

__all__ = ["BlockShape", "GatedDeltaBlock", "Mamba2Block", "RecurrentBlock"]


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes of a recurrent block.

    Parameters
    ----------
    hidden : int
        Channels of the residual stream.
    heads, key_dim, value_dim : int
        Axes of the state; Mamba2 calls the last two state dim and head dim.
    conv_width : int
        Taps of the short convolution, at least 2.
    state_dtype : str
        How states are stored, see `StateSpec`.
    conv_layout : str
        How windows are stored, see `StateSpec`.
    """

    hidden: int
    heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4
    state_dtype: str = "float32"
    conv_layout: str = "len_first"

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "key_dim", "value_dim"):
            check_int(name, getattr(self, name), 1)
        check_int("conv_width", self.conv_width, 2)


class RecurrentBlock(ABC):
    """A norm, a short convolution, a recurrence and an output projection, added to the residual stream.

    Parameters
    ----------
    shape : BlockShape
        The sizes.
    rng : numpy.random.Generator
        Source of the weights.
    """

    def __init__(self, shape: BlockShape, rng: np.random.Generator) -> None:
        self.shape = shape
        self.spec = self._spec()
        self._project = draw_weight(rng, shape.hidden, self.spec.channels + sum(self._bands()))
        self._conv = draw_weight(rng, shape.conv_width, self.spec.channels)
        self._combine = draw_weight(rng, shape.heads * shape.value_dim, shape.hidden)

    @abstractmethod
    def _bands(self) -> tuple[int, ...]:
        """Return the widths of the projection's bands that pass by the convolution."""

    @abstractmethod
    def _spec(self) -> StateSpec:
        """Return what a block of the pool holds."""

    @abstractmethod
    def _recur(
        self, mixed: np.ndarray, bands: list[np.ndarray], initial_states: np.ndarray, step: Step
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the recurrence's outputs, [T, heads, value_dim], and the states that `_export` takes."""

    @abstractmethod
    def _export(self, pool: LayerStates, step: Step, conv: ConvInput, states: np.ndarray) -> None:
        """Write the states at the step's targets."""

    def __call__(self, hidden: np.ndarray, step: Step, pool: LayerStates) -> np.ndarray:
        """Return float32 [T, hidden] to add to the residual stream, and write the step's states."""
        projected = linear(rms_norm(hidden), self._project)
        tokens, *bands = np.split(projected, np.cumsum((self.spec.channels, *self._bands()))[:-1], axis=1)
        initial = pool.gather(step.initial_blocks, step.has_initial_state)
        mixed = short_conv(tokens, self._conv, step.query_start_loc, initial.windows, activation="silu").outputs
        outputs, states = self._recur(mixed, bands, initial.states, step)
        conv = ConvInput(tokens, step.query_start_loc, initial=_initial_conv_state(pool, initial, step))
        self._export(pool, step, conv, states)
        return linear(rms_norm(outputs.reshape(hidden.shape[0], -1)), self._combine)


def _initial_conv_state(pool: LayerStates, initial: InitialStates, step: Step) -> InitialConvState:
    # The gathered copies, not the cache: a decode writes its running window over the one that it started from.
    windows = initial.windows if pool.spec.conv_layout == "len_first" else initial.windows.transpose(0, 2, 1)
    return InitialConvState(windows, np.arange(windows.shape[0]), step.has_initial_state)


class GatedDeltaBlock(RecurrentBlock):
    """Gated DeltaNet: queries, keys and values through the convolution; a decay and a write strength per head."""

    def _bands(self) -> tuple[int, ...]:
        return self.shape.heads, self.shape.heads

    def _spec(self) -> StateSpec:
        shape = self.shape
        channels = shape.heads * (2 * shape.key_dim + shape.value_dim)
        state_shape = (shape.heads, shape.key_dim, shape.value_dim)
        return StateSpec(channels, shape.conv_width - 1, state_shape, HKV, shape.state_dtype, shape.conv_layout)

    def _recur(
        self, mixed: np.ndarray, bands: list[np.ndarray], initial_states: np.ndarray, step: Step
    ) -> tuple[np.ndarray, np.ndarray]:
        heads, key_dim = self.shape.heads, self.shape.key_dim
        query, key, value = np.split(mixed, [heads * key_dim, 2 * heads * key_dim], axis=1)
        query, key, value = (part.reshape(len(mixed), heads, -1) for part in (query, key, value))
        gate, beta = bands
        # exp(-softplus(gate)) is sigmoid(-gate): a decay in (0, 1).
        tokens = GatedDeltaTokens(
            rms_norm(query), rms_norm(key) * np.float32(key_dim**-0.5), value, sigmoid(-gate), sigmoid(beta)
        )
        result = gated_delta(
            tokens,
            step.query_start_loc,
            initial_states,
            checkpoint_offsets=step.targets.offsets,
            checkpoint_rows=step.targets.rows,
        )
        return result.outputs, result.checkpoint_states

    def _export(self, pool: LayerStates, step: Step, conv: ConvInput, states: np.ndarray) -> None:
        exporter = ConvRecurrentExporter(pool.conv, pool.recurrent)
        exporter.export(step.targets, conv, RecurrentInput(states, orientation=HKV))


class Mamba2Block(RecurrentBlock):
    """Mamba2: inputs and both state projections through the convolution; a step size per head, an output gate."""

    def __init__(self, shape: BlockShape, rng: np.random.Generator) -> None:
        super().__init__(shape, rng)
        self._a = -rng.uniform(0.2, 1.0, shape.heads).astype(np.float32)
        self._d = rng.standard_normal(shape.heads).astype(np.float32)

    def _bands(self) -> tuple[int, ...]:
        return self.shape.heads, self.shape.heads * self.shape.value_dim

    def _spec(self) -> StateSpec:
        shape = self.shape
        channels = shape.heads * shape.value_dim + 2 * shape.key_dim
        state_shape = (shape.heads, shape.value_dim, shape.key_dim)
        return StateSpec(channels, shape.conv_width - 1, state_shape, HPN, shape.state_dtype, shape.conv_layout)

    def _recur(
        self, mixed: np.ndarray, bands: list[np.ndarray], initial_states: np.ndarray, step: Step
    ) -> tuple[np.ndarray, np.ndarray]:
        width, num_tokens = self.shape.heads * self.shape.value_dim, len(mixed)
        x, b, c = np.split(mixed, [width, width + self.shape.key_dim], axis=1)
        x = x.reshape(num_tokens, self.shape.heads, self.shape.value_dim)
        dt, gate = bands
        tokens = Mamba2Tokens(x, softplus(dt), b[:, None], c[:, None], self._a, self._d)
        result = mamba2_scan(tokens, step.chunks, initial_states)
        return result.outputs * (gate * sigmoid(gate)).reshape(x.shape), result.chunk_states

    def _export(self, pool: LayerStates, step: Step, conv: ConvInput, states: np.ndarray) -> None:
        Mamba2Exporter(pool.conv, pool.recurrent).export(
            step.targets, conv, states, step.chunks, pool.recurrent.orientation
        )
