"""What compiled code puts in the place of the Python functions below the rules does what they do."""

import numba
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numba_ckpt._jit import (
    address_of,
    device_quotient,
    int64,
    load_chunk,
    load_item,
    on_device,
    store_chunk,
    store_item,
    strided,
    uint64,
)

WORDS = st.integers(0, 2**64 - 1)


@numba.njit
def quotient(n, divisor):
    return device_quotient(n, divisor)


@given(WORDS, st.integers(1, 2**64 - 1))
@example(2**64 - 1, 1)
@example(2**64 - 1, 2**64 - 1)
@example(2**63, 2**63 + 1)
@example(2**32 - 1, 2**32)
def test_device_quotient(n, divisor):
    compiled = numba.njit(device_quotient)
    for value in (device_quotient(uint64(n), uint64(divisor)), compiled(np.uint64(n), np.uint64(divisor))):
        assert int(value) % 2**64 == n // divisor


@numba.njit
def strides(first, size, step):
    found = []
    for index in strided(first, size, step):
        found.append(index)  # noqa: PERF402  (`list` of an iterator is not compiled)
    return found


@given(st.integers(-5, 50), st.integers(-5, 50), st.integers(1, 60))
def test_strided(first, size, step):
    assert strides(first, size, step) == list(strided(first, size, step)) == list(range(first, size, step))


@numba.njit
def address(array, row, col):
    return address_of(array, (row, col)), on_device()


def test_address_of():
    array = np.zeros((6, 8), np.int32)[::2, 1::3]
    for indices in ((0, 0), (2, 1), (7, -1)):
        expected = array.ctypes.data + indices[0] * 64 + indices[1] * 12
        assert address(array, *indices) == (expected, False)
        assert address_of(array, indices) == expected


@numba.njit
def move(destination, source, num_bytes):
    store_item(destination, load_item(source, num_bytes), num_bytes)


@numba.njit
def move_chunk(destination, source):
    a, b, c, d = load_chunk(source)
    store_chunk(destination, (d, c, b, a))


@pytest.mark.parametrize("num_bytes", [1, 2, 4, 8])
@pytest.mark.parametrize("mover", [move, move.py_func])
def test_items(num_bytes, mover):
    source, destination = np.arange(200, 216, dtype=np.uint8), np.zeros(16, np.uint8)
    mover(destination.ctypes.data + num_bytes, source.ctypes.data, num_bytes)
    assert (destination[num_bytes : 2 * num_bytes] == source[:num_bytes]).all()
    assert not destination[:num_bytes].any()
    assert not destination[2 * num_bytes :].any()


@pytest.mark.parametrize("mover", [move_chunk, move_chunk.py_func])
def test_chunks(mover):
    words = np.arange(2**32 - 16, 2**32, dtype=np.uint32)
    start = -words.ctypes.data % 16 // 4
    mover(words[start + 4 :].ctypes.data, words[start:].ctypes.data)
    assert (words[start + 4 : start + 8] == words[start : start + 4][::-1]).all()
    with pytest.raises(AssertionError, match="aligned"):
        load_chunk(words[start + 1 :].ctypes.data)


def test_a_word_keeps_its_sign_bits():
    word = np.array([-1], np.int64)
    assert load_item(word.ctypes.data, 8) == 2**64 - 1
    store_item(word.ctypes.data, int64(-2), 8)
    assert word[0] == -2
