"""Exporters on the host against the reference: every dtype, layout, stride and kind of row, byte for byte."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvExporter,
    ConvInput,
    InitialConvState,
    Mamba2Exporter,
    RecurrentCache,
    RecurrentExporter,
    RecurrentInput,
)
from numba_ckpt.errors import ArgumentError
from numba_ckpt.planning import compute_chunk_layout
from numba_ckpt.testing import poisoned
from tests.checkpoint.problems import DTYPES, ExportProblem, same_bytes

problems = st.builds(
    ExportProblem,
    seed=st.integers(0, 2**32 - 1),
    dtypes=st.sampled_from(DTYPES),
    layout=st.sampled_from(["dim_first", "len_first"]),
    state_len=st.integers(1, 5),
    num_extra_slots=st.integers(0, 3),
    num_rows=st.integers(1, 6),
    num_channels=st.integers(1, 7),
    with_token_indices=st.booleans(),
    with_initial=st.booleans(),
    several_per_row=st.booleans(),
)


def check(problem):
    export, *pages = problem.build()
    export()
    for name, page, answer in zip(("conv", "recurrent"), pages, problem.expected(), strict=True):
        assert same_bytes(page, answer), name


@given(problems)
def test_exports_what_the_reference_says_and_nothing_else(problem):
    check(problem)


@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: "-".join(str(np.dtype(x)) if x else "" for x in d))
@pytest.mark.parametrize("layout", ["dim_first", "len_first"])
def test_every_dtype_and_layout(dtypes, layout):
    for seed in range(5):
        check(ExportProblem(seed, dtypes, layout, num_extra_slots=2, several_per_row=True, with_token_indices=True))


def targets(offsets, blocks, rows=None):
    rows = None if rows is None else np.array(rows)
    return CheckpointTargets(np.array(offsets, np.int32), np.array(blocks, np.int32), rows)


def test_a_window_shorter_than_its_slots_continues_the_initial_one():
    pages = np.zeros((10, 1, 3), np.float32)
    pages[7] = [[70, 71, 72]]
    tokens = np.array([[1], [2]], np.float32)
    source = ConvInput(tokens, np.array([0, 2]), initial=InitialConvState(pages, np.array([7])))
    ConvExporter(ConvCache(pages)).export(targets([2], [9]), source)
    assert pages[9].tolist() == [[72, 1, 2]]
    assert pages[7].tolist() == [[70, 71, 72]]


def test_a_sequence_that_starts_here_has_zeros_before_it():
    pages = poisoned((3, 1, 3), np.float32)
    initial = InitialConvState(pages, np.array([0]), np.array([False]))
    source = ConvInput(np.ones((1, 1), np.float32), np.array([0, 1]), initial=initial)
    ConvExporter(ConvCache(pages)).export(targets([1], [2]), source)
    assert pages[2].tolist() == [[0, 0, 1]]


def test_several_checkpoints_of_one_row():
    pages, states = poisoned((5, 1, 2), np.float32), poisoned((5, 3), np.float32)
    tokens = np.arange(8, dtype=np.float32)[:, None]
    source = ConvInput(tokens, np.array([0, 8]))
    flat = targets([2, 4, 8], [4, 1, 3], rows=[0, 0, 0])
    ConvExporter(ConvCache(pages)).export(flat, source)
    RecurrentExporter(RecurrentCache(states)).export(flat, RecurrentInput(np.arange(9.0).reshape(3, 3).astype("f4")))
    assert [pages[block].tolist() for block in (4, 1, 3)] == [[[0, 1]], [[2, 3]], [[6, 7]]]
    assert [states[block].tolist() for block in (4, 1, 3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert np.isnan(states[[0, 2]]).all()


def test_mamba2_takes_the_chunk_that_ends_on_the_checkpoint():
    layout = compute_chunk_layout([0, 1000], [0, 100, 400], 128, [64, 100])
    chunk_states = np.arange(layout.chunk_rows.size, dtype=np.float32)[:, None]
    pages, states = poisoned((4, 1, 3), np.float32), poisoned((4, 1), np.float32)
    source = ConvInput(np.arange(400, dtype=np.float32)[:, None], np.array([0, 100, 400]))
    exporter = Mamba2Exporter(ConvCache(pages), RecurrentCache(states))
    exporter.export(targets([64, 100], [1, 2]), source, chunk_states, layout)
    ends = layout.cu_chunk_seqlens[1:]
    assert [ends[int(states[block, 0])] for block in (1, 2)] == [64, 200]
    assert [pages[block].tolist() for block in (1, 2)] == [[[61, 62, 63]], [[197, 198, 199]]]


def test_mamba2_refuses_a_layout_without_the_checkpoint():
    layout = compute_chunk_layout([0], [0, 100], 32)
    exporter = Mamba2Exporter(ConvCache(np.zeros((2, 1, 3), "f4")), RecurrentCache(np.zeros((2, 1), "f4")))
    with pytest.raises(ArgumentError, match="a chunk that ends on each checkpoint"):
        exporter.export(
            targets([40], [1]), ConvInput(np.zeros((100, 1), "f4"), np.array([0, 100])), np.zeros((4, 1), "f4"), layout
        )


def test_rounding_of_every_float32_that_matters():
    # All float16 and bfloat16 neighbourhoods: each 16-bit pattern, half way to the next, and one bit to either side.
    halves = np.arange(2**16, dtype=np.uint16)
    exact = [halves.view(np.float16).astype(np.float32), halves.view(ml_dtypes.bfloat16).astype(np.float32)]
    bits = np.concatenate(exact).view(np.uint32)[:, None] + np.array(
        [0, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001], np.uint32
    )
    source = bits.reshape(1, -1).view(np.float32)
    for cache_dtype in (np.float16, ml_dtypes.bfloat16):
        states = poisoned((2, source.shape[1]), cache_dtype)
        RecurrentExporter(RecurrentCache(states)).export(targets([1], [1]), RecurrentInput(source))
        with np.errstate(over="ignore", invalid="ignore"):
            answer = source[0].astype(cache_dtype)
        nan = np.isnan(source[0])
        assert np.isnan(states[1][nan].astype(np.float32)).all()
        assert same_bytes(states[1][~nan], answer[~nan])


class TestBeyond32Bits:
    """Untouched zero pages cost no memory, so the caches can be larger than it."""

    def test_a_block_beyond_2_31_elements(self):
        states = np.zeros((60_001, 36_864), np.uint8)
        source = np.arange(36_864).astype(np.uint8)[None]
        RecurrentExporter(RecurrentCache(states)).export(targets([1], [60_000]), RecurrentInput(source))
        assert same_bytes(states[60_000], source[0])
        assert not states[59_999].any()

    def test_a_window_beyond_2_31_elements(self):
        pages = np.zeros((60_001, 12_288, 3), np.uint8)
        source = ConvInput(np.full((3, 12_288), 9, np.uint8), np.array([0, 3]))
        ConvExporter(ConvCache(pages)).export(targets([3], [60_000]), source)
        assert (pages[60_000] == 9).all()
        assert not pages[59_999].any()

    def test_a_token_beyond_2_31_elements(self):
        tokens = np.zeros((58_260, 36_864), np.uint8)[:, :4]
        tokens[58_255:58_258] = [[1] * 4, [2] * 4, [3] * 4]
        pages = np.zeros((2, 4, 3), np.uint8)
        ConvExporter(ConvCache(pages)).export(targets([58_258], [1]), ConvInput(tokens, np.array([0, 58_260])))
        assert (pages[1] == [1, 2, 3]).all()


def test_rows_that_write_nothing_are_not_looked_at():
    # Padding rows carry stale rows, offsets and sources.
    pages, states = poisoned((3, 2, 3), np.float32), poisoned((3, 4), np.float32)
    stale = targets([0, 9_999, 5], [2, 0, -1], rows=[99, 99, 99])
    ConvExporter(ConvCache(pages)).export(stale, ConvInput(np.zeros((4, 2), "f4"), np.array([0, 4])))
    RecurrentExporter(RecurrentCache(states)).export(stale, RecurrentInput(np.zeros((1, 4), "f4"), np.array([7, 7, 7])))
    assert np.isnan(pages).all()
    assert np.isnan(states).all()


def test_an_empty_batch_is_fine():
    states = poisoned((3, 4), np.float32)
    RecurrentExporter(RecurrentCache(states)).export(targets([], []), RecurrentInput(np.zeros((0, 4), "f4")))
    assert np.isnan(states).all()
