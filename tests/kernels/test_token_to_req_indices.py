"""The request of every token on the host: a list oracle, poisoned buffers, and mistakes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError, BackendMixError
from numba_ckpt.kernels.token_to_req_indices import token_to_req_indices
from numba_ckpt.rules.batch_rows import NO_REQUEST
from numba_ckpt.testing import SimulatedDevice

POISON = -777


def buffer(num_tokens):
    return np.full(num_tokens, POISON, np.int32)


@given(
    st.lists(st.integers(0, 9), max_size=8), st.integers(0, 6), st.integers(0, 3), st.sampled_from([np.int32, np.int64])
)
def test_every_token_finds_its_request(query_lens, padding, num_more, dtype):
    expected = [row for row, length in enumerate(query_lens) for _ in range(length)] + [-1] * padding
    # Entries beyond the batch are those of an earlier, larger one.
    starts = np.concatenate((np.cumsum([0, *query_lens]), [POISON] * num_more)).astype(dtype)
    out = buffer(len(expected))
    assert token_to_req_indices(starts, len(query_lens), max(query_lens, default=0), out) is out
    assert out.tolist() == expected


def test_a_batch_without_requests_is_padding():
    assert token_to_req_indices(np.array([0]), 0, 0, buffer(3)).tolist() == [NO_REQUEST] * 3
    assert token_to_req_indices(np.array([0]), 0, 0, buffer(0)).tolist() == []


def test_rows_without_tokens_have_none():
    assert token_to_req_indices(np.array([0, 0, 2, 2, 3]), 4, 2, buffer(4)).tolist() == [1, 1, 3, -1]


def test_a_strided_buffer_keeps_the_entries_between():
    whole = buffer(8)
    token_to_req_indices(np.array([0, 3]), 1, 3, whole[::2])
    assert whole.tolist() == [0, POISON, 0, POISON, 0, POISON, -1, POISON]


@pytest.mark.parametrize("max_query_len", [0, 1, 2, 1000])
def test_nothing_depends_on_the_longest_query(max_query_len):
    assert token_to_req_indices(np.array([0, 3, 5]), 2, max_query_len, buffer(6)).tolist() == [0, 0, 0, 1, 1, -1]


STARTS = np.array([0, 2, 5])
MISTAKES = {
    "starts in a list": (([0, 2, 5], 2, 3, buffer(6)), "query_start_loc: expected a NumPy or CuPy array, got list"),
    "starts of floats": ((STARTS * 1.0, 2, 3, buffer(6)), "query_start_loc: expected a signed integer"),
    "unsigned starts": ((STARTS.astype(np.uint32), 2, 3, buffer(6)), "query_start_loc: expected a signed integer"),
    "two-dimensional starts": ((STARTS[None], 2, 3, buffer(6)), "query_start_loc: expected 1 dim"),
    "more requests than starts": ((STARTS, 3, 3, buffer(6)), r"num_reqs: expected an integer in \[0, 2\], got 3"),
    "no start at all": ((STARTS[:0], 0, 3, buffer(6)), "num_reqs"),
    "a negative number of requests": ((STARTS, -1, 3, buffer(6)), "num_reqs"),
    "requests by a float": ((STARTS, 2.0, 3, buffer(6)), "num_reqs: expected an integer"),
    "a negative length": ((STARTS, 2, -3, buffer(6)), "max_query_len: expected an integer"),
    "64-bit indices": ((STARTS, 2, 3, np.full(6, POISON)), "out: expected int32, got int64"),
    "two-dimensional indices": ((STARTS, 2, 3, buffer((2, 3))), "out: expected 1 dim"),
    "a read-only buffer": ((STARTS, 2, 3, np.broadcast_to(np.int32(POISON), 6)), "out: expected a writable"),
    "starts that fall": ((np.array([0, 3, 2]), 2, 3, buffer(6)), "ascending starts.* got 2 at entry 2"),
    "a first start beyond 0": ((np.array([1, 2, 5]), 2, 3, buffer(6)), "from 0 to at most 6, got 1 at entry 0"),
    "a negative start": ((np.array([-1, 2, 5]), 2, 3, buffer(6)), "got -1 at entry 0"),
    "more tokens than entries": ((STARTS, 2, 3, buffer(4)), "from 0 to at most 4, got 5 at entry 2"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_write_nothing(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        token_to_req_indices(*arguments)
    assert (arguments[-1] == POISON).all()


def test_arrays_of_different_devices():
    with SimulatedDevice.attached() as device, pytest.raises(BackendMixError, match="out on simulated"):
        token_to_req_indices(STARTS, 2, 3, device.put(buffer(6)))
