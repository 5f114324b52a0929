"""A random call of the exporter's launcher, for every way in which elements are copied or rounded."""

import numpy as np

from numba_ckpt._array import HOST
from numba_ckpt.kernels._registry import OPS
from numba_ckpt.kernels.checkpoint_export import ConvMove, RecurrentMove
from numba_ckpt.rules import CAST_BFLOAT16, CAST_FLOAT16, CAST_NONE

__all__ = ["EXPORTS"]

NUM_BLOCKS, CHANNELS, STATE_LEN = 9, 11, 3


def _bits(rng, shape, dtype):
    return rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]


def _targets(places, lens, dtype):
    """Two checkpoints for some rows, at any offsets, in blocks of their own; some write nothing."""
    rng = places.rng
    rows = rng.integers(0, lens.size, 4)
    offsets = rng.integers(0, lens[rows] + 1)
    blocks = rng.permutation(np.arange(1, NUM_BLOCKS))[:4]
    blocks[rng.random(4) < 0.2] = rng.integers(-1, 1)
    return [places.put(array.astype(dtype)) for array in (rows, offsets, blocks)]


def _conv(places, lens, types, cast, dtype):
    rng, starts = places.rng, np.cumsum([0, *lens])
    num_tokens, num_rows = int(starts[-1]) + 2, lens.size
    indices = rng.permutation(num_tokens)[: starts[-1]] if rng.random() < 0.5 else np.arange(0)
    cache = places.put(_bits(rng, (NUM_BLOCKS, CHANNELS, STATE_LEN + 1), types[0]))
    tokens = places.put(_bits(rng, (num_tokens, CHANNELS), types[1]))
    initial = places.put(_bits(rng, (4, CHANNELS, STATE_LEN + 1), types[0]))
    # Where every row has its window there are no flags; an empty array takes any type.
    flags = places.put(rng.random(num_rows) < 0.7) if rng.random() < 0.7 else places.put(np.arange(0))
    arrays = (places.put(array.astype(dtype)) for array in (starts, indices, rng.integers(0, 4, num_rows)))
    query_start_loc, token_indices, initial_indices = arrays
    fields = cache, tokens, query_start_loc, token_indices, initial, initial_indices, flags
    return ConvMove(*fields, STATE_LEN, cast)


def _recurrent(places, types, cast, dtype):
    rng, size = places.rng, int(places.rng.choice([1, 40, 333, 1600, 1600]))
    cache = places.put(_bits(rng, (NUM_BLOCKS, size), types[0]), num_strided=1)
    states = places.put(_bits(rng, (6, size), types[1]), num_strided=1)
    return RecurrentMove(cache, states, places.put(rng.integers(0, 6, 4).astype(dtype)), cast)


def _export(dtype, conv_types, conv_cast, state_types, state_cast):
    def export(places):
        lens = places.rng.integers(0, 7, 3)
        targets = _targets(places, lens, dtype)
        conv = _conv(places, lens, conv_types, conv_cast, dtype)
        recurrent = _recurrent(places, state_types, state_cast, dtype)
        OPS["checkpoint_export"].launcher(places.device or HOST, tuple(targets), conv, recurrent)

    return export


_TO_16_BITS = np.uint16, np.uint32
EXPORTS = {
    "export-bytes": _export(np.int32, (np.uint8, np.uint8), CAST_NONE, (np.uint8, np.uint8), CAST_NONE),
    "export-words": _export(np.int64, (np.uint16, np.uint16), CAST_NONE, (np.uint32, np.uint32), CAST_NONE),
    "export-doubles": _export(np.int32, (np.int64, np.int64), CAST_NONE, (np.int64, np.int64), CAST_NONE),
    "export-rounded": _export(np.int64, _TO_16_BITS, CAST_BFLOAT16, _TO_16_BITS, CAST_FLOAT16),
}
"""Calls by name, as in `calls.py`."""
