"""Export: how close scattered states come to one flat copy of as many bytes."""

import numpy as np
import pytest

from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvInput,
    ConvRecurrentExporter,
    RecurrentCache,
    RecurrentExporter,
    RecurrentInput,
)

NUM_STATES, STATE_SHAPE = 64, (32, 64, 128)  # 1 MiB of float32 each
CHANNELS, STATE_LEN, QUERY_LEN = 4096, 3, 64


def pool_and_states():
    """Twice as many blocks as states, in pages padded by 4 KiB, and the states that go into every other block."""
    rng = np.random.default_rng(20260101)
    size = int(np.prod(STATE_SHAPE))
    pages = np.full((2 * NUM_STATES + 1, size + 1024), np.nan, np.float32)
    states = rng.standard_normal((NUM_STATES, *STATE_SHAPE), dtype=np.float32)
    blocks = 1 + 2 * rng.permutation(NUM_STATES).astype(np.int32)
    return pages[:, :size].reshape(-1, *STATE_SHAPE), states, blocks


def flat_copy(num_bytes):
    source, destination = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    return lambda: np.copyto(destination, source)


@comparison(
    "`RecurrentExporter.export`, 64 MiB of state",
    "64 float32 states of 1 MiB into scattered padded pages, against one `np.copyto` of 64 MiB",
    goal=0.9,
)
def recurrent_sides():
    pool, states, blocks = pool_and_states()
    targets = CheckpointTargets(np.full(NUM_STATES, 16, np.int32), blocks)
    exporter, source = RecurrentExporter(RecurrentCache(pool)), RecurrentInput(states)

    def check():
        pool[blocks] = np.nan
        exporter.export(targets, source)
        assert pool[blocks].tobytes() == states.tobytes()
        assert np.isnan(pool[0::2]).all()

    return Sides(flat_copy(states.nbytes), lambda: exporter.export(targets, source), check)


@comparison(
    "`ConvRecurrentExporter.export`, 64 MiB of state and 64 windows",
    "as above, with float16 windows of 3 × 4,096 from a column band of a wider projection",
    goal=0.9,
)
def conv_recurrent_sides():
    pool, states, blocks = pool_and_states()
    rng = np.random.default_rng(20260102)
    tokens = rng.standard_normal((NUM_STATES * QUERY_LEN, CHANNELS + 512)).astype(np.float16)[:, 256:-256]
    conv = np.full((len(pool), STATE_LEN, CHANNELS), np.nan, np.float16)
    starts = np.arange(NUM_STATES + 1) * QUERY_LEN
    targets = CheckpointTargets(np.full(NUM_STATES, 16, np.int32), blocks)
    exporter = ConvRecurrentExporter(ConvCache(conv, "len_first"), RecurrentCache(pool))
    sources = ConvInput(tokens, starts), RecurrentInput(states)

    def check():
        pool[blocks] = conv[blocks] = np.nan
        exporter.export(targets, *sources)
        assert pool[blocks].tobytes() == states.tobytes()
        for row, block in enumerate(blocks):
            assert np.array_equal(conv[block], tokens[starts[row] + 13 : starts[row] + 16])
        assert np.isnan(conv[0::2]).all()

    num_bytes = states.nbytes + NUM_STATES * conv[0].nbytes
    return Sides(flat_copy(num_bytes), lambda: exporter.export(targets, *sources), check)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_export(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
