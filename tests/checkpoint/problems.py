"""Random export problems with their answers, for the host and for the simulated device alike.

Every cache is poisoned, padded and strided; what an export must write is computed slowly from the reference, and
everything else must keep its poison.
"""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvInput,
    ConvRecurrentExporter,
    InitialConvState,
    RecurrentCache,
    RecurrentInput,
)
from numba_ckpt.planning.reference import reference_conv_window
from numba_ckpt.testing import poisoned

# (dtype of tokens and states, dtype of the caches, what raw cache bits stand for)
DTYPES = [
    (np.float32, np.float32, None),
    (np.float16, np.float16, None),
    (np.uint16, np.uint16, None),
    (np.uint8, np.uint8, None),
    (np.float64, np.float64, None),
    (ml_dtypes.bfloat16, ml_dtypes.bfloat16, None),
    (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn, None),
    (np.float32, np.float16, None),
    (np.float32, ml_dtypes.bfloat16, None),
    (np.float32, np.uint16, "bfloat16"),
    (np.float32, np.uint16, "float16"),
]


@dataclass
class ExportProblem:
    """One export of windows and states; `build` it for a device, then compare with `expected`."""

    seed: int
    dtypes: tuple[Any, Any, Any] = DTYPES[0]
    layout: str = "dim_first"
    state_len: int = 3
    num_extra_slots: int = 0
    num_rows: int = 4
    num_channels: int = 5
    with_token_indices: bool = False
    with_initial: bool = True
    several_per_row: bool = False
    rng: Any = field(init=False)

    def __post_init__(self) -> None:
        self.rng = rng = np.random.default_rng(self.seed)
        lens = rng.integers(0, 9, self.num_rows)
        self.query_start_loc = np.concatenate([[0], np.cumsum(lens)])
        num_tokens = int(self.query_start_loc[-1])
        count = self.num_rows * (3 if self.several_per_row else 1)
        self.rows = np.repeat(np.arange(self.num_rows), count // self.num_rows)
        low = 0 if self.with_initial else self.state_len
        self.offsets = np.array(
            [rng.integers(low, max(low, n) + 1) if n >= low else 0 for n in lens[self.rows]], np.int32
        )
        self.num_blocks = count + self.num_rows + 3
        blocks = rng.permutation(np.arange(1, self.num_blocks))
        self.state_indices = blocks[:count].astype(np.int32)
        self.state_indices[rng.random(count) < 0.15] = 0
        self.state_indices[rng.random(count) < 0.1] = -1
        self.initial_blocks = blocks[count : count + self.num_rows]
        self.has_initial = rng.random(self.num_rows) < 0.7
        self.token_indices = rng.permutation(num_tokens + 3)[:num_tokens] if self.with_token_indices else None
        self.tokens = self._random((num_tokens + 3, 2 * self.num_channels + 1))
        self.states = self._random((count + 2, 2, 3))
        self.state_rows = rng.integers(0, count + 2, count)
        self.conv_pages = poisoned((self.num_blocks, *self._page()), self.dtypes[1])
        self.state_pages = poisoned((self.num_blocks, 2 * 3 + 5), self.dtypes[1])
        self.conv_pages[self.initial_blocks] = self._random(self.conv_pages[self.initial_blocks].shape).astype(
            self.dtypes[1]
        )

    def _page(self) -> tuple[int, int]:
        slots, channels = self.state_len + self.num_extra_slots, self.num_channels + 2
        return (channels, slots) if self.layout == "dim_first" else (slots, channels)

    def _random(self, shape: tuple[int, ...]) -> np.ndarray:
        if np.dtype(self.dtypes[0]).kind in "u":
            return self.rng.integers(0, 256, shape).astype(self.dtypes[0])
        return (self.rng.normal(size=shape) * 10.0 ** self.rng.integers(-6, 5, shape)).astype(self.dtypes[0])

    def _views(self, tokens: Any, conv_pages: Any, state_pages: Any) -> tuple[Any, Any, Any]:
        # A column band of a wider projection, and pages padded in channels and bytes.
        band = tokens[:, 1 : 1 + 2 * self.num_channels : 2]
        channels = slice(1, 1 + self.num_channels)
        conv = conv_pages[:, channels, :] if self.layout == "dim_first" else conv_pages[:, :, channels]
        return band, conv, state_pages[:, :6].reshape(self.num_blocks, 2, 3)

    def build(self, put: Any = np.array) -> tuple[Any, Any, Any]:
        """Return a call that exports, and the raw pages it writes."""
        pages = put(self.conv_pages), put(self.state_pages)
        band, conv, states = self._views(put(self.tokens), *pages)
        conv_cache = ConvCache(conv, self.layout, self.state_len, self.dtypes[2])
        exporter = ConvRecurrentExporter(conv_cache, RecurrentCache(states, "HK", self.dtypes[2]))
        initial = None
        if self.with_initial:
            initial = InitialConvState(conv, put(self.initial_blocks), put(self.has_initial))
        mapped = None if self.token_indices is None else put(self.token_indices)
        source = ConvInput(band, put(self.query_start_loc), mapped, initial, self.query_start_loc)
        rows = put(self.rows) if self.several_per_row else None
        targets = CheckpointTargets(put(self.offsets), put(self.state_indices), rows, self.offsets, self.rows)
        recurrent = RecurrentInput(put(self.states), put(self.state_rows), "HK")
        return lambda: exporter.export(targets, source, recurrent), *pages

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The raw pages after the export, computed one element at a time."""
        pages = self.conv_pages.copy(), self.state_pages.copy()
        tokens, conv, states = self._views(self.tokens, *pages)
        before = self._views(self.tokens, self.conv_pages, self.state_pages)[1]
        if self.token_indices is not None:
            tokens = tokens[self.token_indices]
        for k, (offset, block) in enumerate(zip(self.offsets, self.state_indices, strict=True)):
            if offset > 0 and block > 0:
                states[block] = self._stored(self.states[self.state_rows[k]])
                window = self._window(k, self._stored(tokens), before)
                conv[block] = self._merge(conv[block], window)
        return pages

    def _window(self, k: int, tokens: np.ndarray, conv: np.ndarray) -> np.ndarray:
        row = self.rows[k]
        initial = np.zeros((self.state_len, self.num_channels), self.dtypes[1])
        if self.has_initial[row]:
            page = conv[self.initial_blocks[row]]
            initial = (page.T if self.layout == "dim_first" else page)[: self.state_len]
        first = int(self.query_start_loc[row])
        return np.array(reference_conv_window(tokens, first, int(self.offsets[k]), self.state_len, initial))

    def _merge(self, page: np.ndarray, window: np.ndarray) -> np.ndarray:
        merged = page.copy()
        slots = merged.T if self.layout == "dim_first" else merged
        slots[: self.state_len] = window
        return merged

    def _stored(self, array: np.ndarray) -> np.ndarray:
        source, cache, raw = self.dtypes
        if raw is None:
            return array if source == cache else _quiet_cast(array, cache)
        return _quiet_cast(array, np.float16 if raw == "float16" else ml_dtypes.bfloat16).view(cache)


def _quiet_cast(array: np.ndarray, dtype: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays hold the same bytes, NaNs included."""
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
