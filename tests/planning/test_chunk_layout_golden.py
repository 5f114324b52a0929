"""The chunk layout against the recorded batches (set d), from lists and from arrays."""

import numpy as np
import pytest

from numba_ckpt.planning import compute_chunk_layout
from numba_ckpt.planning.reference import reference_chunk_layout
from tests.golden import chunk_cases


def strided(values, dtype):
    wide = np.full(2 * len(values), 91, dtype)
    wide[::2] = values
    return wide[::2]


ARRANGEMENTS = {
    "list": list,
    "tuple": tuple,
    "int32": lambda values: np.array(values, np.int32),
    "int64": lambda values: np.array(values, np.int64),
    "uint16": lambda values: np.array(values, np.uint16),
    "strided": lambda values: strided(values, np.int32),
}


@pytest.mark.parametrize("arrange", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
def test_recorded_layouts(arrange):
    for case in chunk_cases():
        offsets = None if case.checkpoint_offsets is None else arrange(case.checkpoint_offsets)
        layout = compute_chunk_layout(
            arrange(case.num_computed_tokens), arrange(case.query_start_loc), case.chunk_size, offsets
        )
        for name in ("cu_chunk_seqlens", "chunk_rows", "last_chunk_indices", "checkpoint_chunk_indices"):
            assert getattr(layout, name).dtype == np.int32
            assert getattr(layout, name).tolist() == getattr(case, name), (name, case)


def test_recorded_layouts_equal_the_oracle():
    for case in chunk_cases():
        layout = reference_chunk_layout(
            case.num_computed_tokens, case.query_start_loc, case.chunk_size, case.checkpoint_offsets
        )
        assert tuple(layout) == case[4:], case


def test_the_chunk_of_each_recorded_checkpoint_is_found_again():
    for case in chunk_cases():
        if case.checkpoint_offsets is not None:
            offsets = np.array(case.checkpoint_offsets)
            layout = compute_chunk_layout(case.num_computed_tokens, case.query_start_loc, case.chunk_size, offsets)
            found = layout.chunks_ending_at(np.arange(offsets.size), offsets)
            assert found[offsets > 0].tolist() == [index for index in case.checkpoint_chunk_indices if index >= 0]
