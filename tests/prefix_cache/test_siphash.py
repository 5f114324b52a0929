from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError, ArgumentTypeError
from numba_ckpt.prefix_cache.siphash import siphash128
from tests.prefix_cache.siphash_reference import reference_siphash128

KEY = bytes(range(16))
# `vectors_sip128` of the authors' reference code: line n is the digest of the bytes 0, 1, ..., n - 1 under KEY.
VECTORS = Path(__file__).with_name("siphash_vectors.txt").read_text().split()


@pytest.mark.parametrize("hash_message", [siphash128, reference_siphash128])
def test_official_vectors(hash_message):
    assert len(VECTORS) == 64
    assert [hash_message(KEY, bytes(range(length))).hex() for length in range(64)] == VECTORS


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=600))
def test_agrees_with_plain_python(key, message):
    assert siphash128(key, message) == reference_siphash128(key, message)


def test_arrays_are_hashed_as_their_bytes():
    tokens = np.arange(37, dtype="<i4")
    assert siphash128(KEY, tokens) == siphash128(KEY, tokens.tobytes()) == siphash128(KEY, bytearray(tokens.tobytes()))
    assert tokens.flags.writeable


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((bytes(15), b""), ArgumentError, "key: expected 16 bytes, got 15 bytes"),
        ((bytes(32), b""), ArgumentError, "key: expected 16 bytes, got 32 bytes"),
        (("0" * 16, b""), ArgumentTypeError, "key: expected 16 bytes, got str"),
        ((None, b""), ArgumentTypeError, "key: expected 16 bytes, got NoneType"),
        ((KEY, "text"), ArgumentTypeError, "data: expected bytes or a contiguous array, got str"),
        ((KEY, np.arange(9)[::2]), ArgumentTypeError, "data: expected bytes or a contiguous array, got ndarray"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        siphash128(*arguments)
