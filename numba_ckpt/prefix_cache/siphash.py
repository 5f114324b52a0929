"""SipHash-2-4 with 128 bits of output: a keyed pseudo-random function that is fast on short messages.

Who does not know the key can neither predict a digest nor find two messages that share one, which is what keeps one
tenant's prompt from being served another's state. The rounds are scalar rules on unsigned 64-bit words; `siphash128`
hashes one message, and `numba_ckpt.prefix_cache.siphash_units` many at a time.

Source: J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF" (2012), and the authors' public-domain
reference code for the 128-bit variant, whose test vectors the tests replay.
"""

import struct
from typing import Any

import numpy as np

from numba_ckpt._check import refuse
from numba_ckpt._jit import host_loop, rule, uint64
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["KEY_BYTES", "check_key", "hash_octets", "key_words", "siphash128"]

KEY_BYTES = 16

# "somepseudorandomlygeneratedbytes", read as four big-endian words.
_INIT_0, _INIT_1, _INIT_2, _INIT_3 = 0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573
# What tells the 128-bit variant, and its two halves, from the 64-bit one.
_WIDE, _SECOND_HALF = 0xEE, 0xDD


@rule
def _rotate(word, bits):  # type: ignore[no-untyped-def]
    # Both shifts are cast: an int64 among uint64 operands would turn the result into a float64.
    return (word << uint64(bits)) | (word >> uint64(64 - bits))


@rule
def _sip_round(v0, v1, v2, v3):  # type: ignore[no-untyped-def]
    v0 = v0 + v1
    v2 = v2 + v3
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v2 = v2 + v1
    v0 = _rotate(v0, 32) + v3
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    return v0, v1, _rotate(v2, 32), v3


@rule
def sip_start(key_0, key_1):  # type: ignore[no-untyped-def]
    """Return the four state words before the first message word, from the two words of the key."""
    return key_0 ^ uint64(_INIT_0), key_1 ^ uint64(_INIT_1 ^ _WIDE), key_0 ^ uint64(_INIT_2), key_1 ^ uint64(_INIT_3)


@rule
def sip_absorb(v0, v1, v2, v3, word):  # type: ignore[no-untyped-def]
    """Return the state after one more message word."""
    v3 = v3 ^ word
    for _ in range(2):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


@rule
def sip_finish(v0, v1, v2, v3):  # type: ignore[no-untyped-def]
    """Return the low and the high digest word, after the word that holds the length has been absorbed."""
    v2 = v2 ^ uint64(_WIDE)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 = v1 ^ uint64(_SECOND_HALF)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@rule
def sip_last_word(tail, num_bytes):  # type: ignore[no-untyped-def]
    """Return the closing word: at most seven bytes that fill no word, and the length modulo 256 in the top byte."""
    return uint64(tail) | (uint64(num_bytes) << uint64(56))


@host_loop
def _siphash128_host(data, key):  # type: ignore[no-untyped-def]
    v0, v1, v2, v3 = sip_start(key[0], key[1])
    word = uint64(0)
    for at in range(data.size):
        word |= uint64(data[at]) << uint64(8 * (at & 7))
        if at & 7 == 7:
            v0, v1, v2, v3 = sip_absorb(v0, v1, v2, v3, word)
            word = uint64(0)
    v0, v1, v2, v3 = sip_absorb(v0, v1, v2, v3, sip_last_word(word, data.size))
    return sip_finish(v0, v1, v2, v3)


def check_key(key: object) -> bytes:
    """Return `key` if it is bytes of the right length; the message never shows a key."""
    if not isinstance(key, bytes):
        do = "take secrets.token_bytes(16), or one that the processes share"
        refuse("key", f"{KEY_BYTES} bytes", type(key).__name__, do, ArgumentTypeError)
    if len(key) != KEY_BYTES:
        refuse("key", f"{KEY_BYTES} bytes", f"{len(key)} bytes", "derive it with hashlib if yours is longer")
    return key


def key_words(key: bytes) -> np.ndarray:
    """Return a key (or digest) of 16 bytes as uint64 [2], low word first."""
    return np.frombuffer(key, "<u8").astype(np.uint64)


def hash_octets(key: np.ndarray, octets: np.ndarray) -> tuple[int, int]:
    """Return the digest words of a contiguous uint8 array under `key_words` of a key."""
    octets.flags.writeable = False  # one compiled loop for views of bytes and of arrays
    return _siphash128_host(octets, key)  # type: ignore[no-any-return]


def siphash128(key: bytes, data: Any) -> bytes:
    """Hash one message with SipHash-2-4-128.

    Parameters
    ----------
    key : bytes
        16 secret bytes.
    data : bytes-like
        The message: bytes, or a contiguous array, of which the bytes are read in place.

    Returns
    -------
    bytes
        16 bytes.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The key is not 16 bytes, or the data has no contiguous bytes.

    Examples
    --------
    >>> siphash128(bytes(range(16)), b"").hex()
    'a3817f04ba25a8e66df67214c7550293'
    """
    words = key_words(check_key(key))
    try:
        octets = np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError) as cause:
        raise ArgumentTypeError(
            f"data: expected bytes or a contiguous array, got {type(data).__name__}; encode it or copy the array"
        ) from cause
    return struct.pack("<QQ", *hash_octets(words, octets))
