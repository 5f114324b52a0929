"""Several checkpoints of one row from one pass, each good to resume from."""

import numpy as np
import pytest

from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvInput,
    ConvRecurrentExporter,
    InitialConvState,
    Mamba2Exporter,
    RecurrentCache,
    RecurrentInput,
)
from numba_ckpt.models import GatedDeltaTokens, Mamba2Tokens, gated_delta, mamba2_scan, short_conv
from numba_ckpt.models.gated_delta import ORIENTATION as HKV
from numba_ckpt.models.mamba2 import ORIENTATION as HPN
from numba_ckpt.planning import compute_chunk_layout

HEADS, KEY_DIM, VALUE_DIM, WIDTH = 2, 4, 3, 4
CHANNELS = HEADS * (2 * KEY_DIM + VALUE_DIM)
STARTS = np.array([0, 20, 33])
ROWS, OFFSETS, BLOCKS = np.array([1, 0, 0, 1, 0]), np.array([2, 16, 8, 9, 1]), np.array([4, 2, 6, 1, 3])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def poisoned(*shape):
    return np.full((8, *shape), np.nan, np.float32)


def split(mixed):
    parts = np.split(mixed, [HEADS * KEY_DIM, 2 * HEADS * KEY_DIM], axis=1)
    query, key, value = (np.ascontiguousarray(part).reshape(len(mixed), HEADS, -1) for part in parts)
    key /= np.sqrt((key * key).sum(-1, keepdims=True) + np.float32(1e-6))
    half = np.full((len(mixed), HEADS), 0.5, np.float32)
    return GatedDeltaTokens(query, key, value, half, half)


def test_gated_delta_resumes_from_each_of_several_checkpoints():
    tokens, weight = draw(33, CHANNELS), draw(WIDTH, CHANNELS, seed=1)
    conv_cache = ConvCache(poisoned(CHANNELS, WIDTH - 1))
    state_cache = RecurrentCache(poisoned(HEADS, KEY_DIM, VALUE_DIM), HKV)
    mixed = short_conv(tokens, weight, STARTS, activation="silu").outputs
    cold = gated_delta(split(mixed), STARTS, checkpoint_offsets=OFFSETS, checkpoint_rows=ROWS)
    fresh = InitialConvState(conv_cache.states, np.zeros(2, np.int64), np.zeros(2, np.bool_))
    ConvRecurrentExporter(conv_cache, state_cache).export(
        CheckpointTargets(OFFSETS, BLOCKS, ROWS),
        ConvInput(tokens, STARTS, initial=fresh),
        RecurrentInput(cold.checkpoint_states, orientation=HKV),
    )
    for row, offset, block in zip(ROWS, OFFSETS, BLOCKS, strict=True):
        at, end = STARTS[row] + offset, STARTS[row + 1]
        window = conv_cache.states[block].T[None]
        rest = short_conv(tokens[at:end], weight, [0, end - at], window, activation="silu")
        resumed = gated_delta(split(rest.outputs), [0, end - at], state_cache.states[block][None])
        assert resumed.outputs.tobytes() == cold.outputs[at:end].tobytes()
        assert resumed.final_states.tobytes() == cold.final_states[row : row + 1].tobytes()
    untouched = np.setdiff1d(np.arange(8), BLOCKS)
    assert np.isnan(conv_cache.states[untouched]).all()
    assert np.isnan(state_cache.states[untouched]).all()


@pytest.mark.parametrize("offsets", [[4, 8, 16], [8, 12, 5]])
def test_mamba2_resumes_wherever_a_chunk_ends(offsets):
    offsets = np.array(offsets)
    rng = np.random.default_rng(2)
    dt, a = rng.random((20, HEADS)).astype(np.float32), -rng.random(HEADS).astype(np.float32)
    b, c = draw(2, 20, 1, KEY_DIM, seed=3)
    x, d = draw(20, HEADS, VALUE_DIM), draw(HEADS)
    tokens = draw(20, CHANNELS)
    layout = compute_chunk_layout([0], [0, 20], 4, [5])
    cold = mamba2_scan(Mamba2Tokens(x, dt, b, c, a, d), layout)
    conv_cache = ConvCache(poisoned(CHANNELS, WIDTH - 1))
    state_cache = RecurrentCache(poisoned(HEADS, VALUE_DIM, KEY_DIM), HPN)
    targets = CheckpointTargets(offsets, np.array([3, 5, 7]), np.zeros(3, np.int64))
    exporter = Mamba2Exporter(conv_cache, state_cache)
    exporter.export(targets, ConvInput(tokens, np.array([0, 20])), cold.chunk_states, layout, HPN)
    for offset, block in zip(offsets, (3, 5, 7), strict=True):
        assert conv_cache.states[block].tobytes() == tokens[offset - 3 : offset].T.tobytes()
        rest = Mamba2Tokens(x[offset:], dt[offset:], b[offset:], c[offset:], a, d)
        layout_of_rest = compute_chunk_layout([offset], [0, 20 - offset], 4, [1] if offset == 4 else None)
        resumed = mamba2_scan(rest, layout_of_rest, state_cache.states[block][None])
        assert resumed.outputs.tobytes() == cold.outputs[offset:].tobytes()
        assert resumed.chunk_states[-1].tobytes() == cold.chunk_states[-1].tobytes()
