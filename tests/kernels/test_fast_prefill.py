"""Staging of logits and the starts of their batch: launchers on the host."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError
from numba_ckpt.kernels.logits_start_loc import logits_start_loc
from numba_ckpt.kernels.stage_logits_indices import stage_logits_indices
from numba_ckpt.testing import poisoned


@given(st.lists(st.integers(0, 6), max_size=8), st.sets(st.integers(0, 60)), st.sampled_from([np.int32, np.int64]))
def test_starts_count_the_logits_before_each_request(query_lens, logits, dtype):
    starts = np.cumsum([0, *query_lens], dtype=dtype)
    found = logits_start_loc(starts, np.array(sorted(logits), np.int32))
    assert found.dtype == dtype
    assert found.tolist() == [sum(token < start for token in logits) for start in starts.tolist()]


def test_an_example_with_several_logits_of_a_request():
    starts, logits = np.array([0, 15, 20, 28]), np.array([14, 18, 19, 27])
    assert np.diff(logits_start_loc(starts, logits)).tolist() == [1, 2, 1]


def test_a_strided_source_fills_the_whole_buffer():
    buffer = poisoned((6,), np.int32)
    stage_logits_indices(np.arange(9, dtype=np.uint32)[::3], buffer)
    assert buffer.tolist() == [0, 3, 6, 6, 6, 6]


STARTS, LOGITS = np.array([0, 4]), np.array([3], np.int32)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (stage_logits_indices, (LOGITS[:0], np.zeros(2, np.int32)), "logits_indices: expected 1 to 2 entries, got 0"),
        (stage_logits_indices, (STARTS, np.zeros(1, np.int32)), "logits_indices: expected 1 to 1 entries, got 2"),
        (stage_logits_indices, (LOGITS * 1.0, np.zeros(2, np.int32)), "logits_indices: expected an integer dtype"),
        (stage_logits_indices, (LOGITS, np.zeros(2)), "buffer: expected a signed integer dtype"),
        (stage_logits_indices, (LOGITS, np.zeros((2, 1), np.int32)), "buffer: expected 1 dimension"),
        (stage_logits_indices, ([3], np.zeros(2, np.int32)), "logits_indices: expected a NumPy or CuPy array"),
        (logits_start_loc, (STARTS[:0], LOGITS), "query_start_loc: expected N \\+ 1 entries, got 0"),
        (logits_start_loc, (STARTS * 0.5, LOGITS), "query_start_loc: expected a signed integer dtype"),
        (logits_start_loc, (STARTS, LOGITS > 0), "logits_indices: expected a signed integer dtype"),
        (logits_start_loc, (STARTS, LOGITS[None]), "logits_indices: expected 1 dimension"),
    ],
)
def test_bad_input(function, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        function(*arguments)
