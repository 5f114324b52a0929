"""The paged states of one recurrent layer, and how a step reads them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._check import check_choice, check_int, refuse
from numba_ckpt.checkpoint import ConvCache, RecurrentCache

__all__ = ["InitialStates", "LayerStates", "StateSpec"]

# Raw bits of a bfloat16 NaN: NumPy has no such dtype.
_STORAGE: dict[str, tuple[Any, Any]] = {
    "float32": (np.float32, np.nan),
    "float16": (np.float16, np.nan),
    "bfloat16": (np.uint16, 0x7FC0),
}


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What one block holds for one layer.

    Parameters
    ----------
    channels : int
        Channels of the convolution.
    state_len : int
        Tokens of its window.
    state_shape : tuple of int
        Axes of the recurrent state.
    orientation : str
        Label of these axes.
    state_dtype : {"float32", "float16", "bfloat16"}
        How the recurrent state is stored; it is computed in float32, and the window always stays float32.
    conv_layout : {"dim_first", "len_first"}
        Axes of a stored window: channels first, or tokens first.
    """

    channels: int
    state_len: int
    state_shape: tuple[int, ...]
    orientation: str
    state_dtype: str = "float32"
    conv_layout: str = "len_first"

    def __post_init__(self) -> None:
        for name, size, low in (
            ("channels", self.channels, 1),
            ("state_len", self.state_len, 0),
            *(("state_shape", axis, 1) for axis in self.state_shape),
        ):
            check_int(name, size, low)
        check_choice("state_dtype", self.state_dtype, _STORAGE)
        check_choice("conv_layout", self.conv_layout, ("dim_first", "len_first"))


class InitialStates(NamedTuple):
    """States before the first token of each row, float32; zeros where the sequence starts.

    Attributes
    ----------
    windows : ndarray
        [N, state_len, channels].
    states : ndarray
        [N, *state_shape].
    """

    windows: np.ndarray
    states: np.ndarray


class LayerStates:
    """A paged pool of one layer's states, all NaN until written.

    Parameters
    ----------
    spec : StateSpec
        What a block holds.
    num_blocks : int
        Blocks of the pool, the null block included.

    Examples
    --------
    >>> states = LayerStates(StateSpec(2, 3, (1, 4), "K"), num_blocks=3)
    >>> states.gather(np.array([2, 0]), np.array([True, False])).states.tolist()
    [[[nan, nan, nan, nan]], [[0.0, 0.0, 0.0, 0.0]]]
    """

    def __init__(self, spec: StateSpec, num_blocks: int) -> None:
        self.spec, self.num_blocks = spec, check_int("num_blocks", num_blocks, 1)
        window = (spec.state_len, spec.channels)
        page = window if spec.conv_layout == "len_first" else window[::-1]
        dtype, poison = _STORAGE[spec.state_dtype]
        raw = "bfloat16" if spec.state_dtype == "bfloat16" else None
        states = np.full((num_blocks, *spec.state_shape), poison, dtype)
        self.conv = ConvCache(np.full((num_blocks, *page), np.nan, np.float32), spec.conv_layout)
        self.recurrent = RecurrentCache(states, spec.orientation, raw)

    def gather(self, blocks: np.ndarray, has_initial_state: np.ndarray) -> InitialStates:
        """Return copies of the states in `blocks` (int [N]), and zeros for rows without (bool [N])."""
        outside = (blocks < 0) | (blocks >= self.num_blocks)
        if outside.any():
            refuse("blocks", f"block ids in [0, {self.num_blocks})", blocks.tolist(), "use the pool's block table")
        windows = self.conv.states[blocks]
        windows = windows if self.spec.conv_layout == "len_first" else windows.transpose(0, 2, 1)
        states = self.recurrent.states[blocks]
        if self.spec.state_dtype == "bfloat16":
            states = (states.astype(np.uint32) << 16).view(np.float32)
        return InitialStates(_where(has_initial_state, windows), _where(has_initial_state, states))


def _where(has_initial_state: np.ndarray, states: np.ndarray) -> np.ndarray:
    mask = has_initial_state.reshape(-1, *[1] * (states.ndim - 1))
    return np.ascontiguousarray(np.where(mask, states, 0), np.float32)
