"""The algorithms behind `PrefixHasher`: each starts a chain from a salt and advances it over whole units of tokens."""

import functools
import hashlib
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from numba_ckpt._check import INT32_MAX
from numba_ckpt.prefix_cache.siphash import KEY_BYTES, hash_octets, key_words, siphash128
from numba_ckpt.prefix_cache.siphash_units import (
    CHAIN_WORDS,
    hash_units_host,
    hash_units_with_extras_host,
    start_chain_host,
)

__all__ = ["CHAINS", "HashChain", "UnitExtras"]

DIGEST_WORDS = 2


class UnitExtras(NamedTuple):
    """What some units mix in besides their tokens, in ascending order of units.

    Attributes
    ----------
    units : list of int
        Units, counted from the first unit of the call.
    contents : list of bytes
        An unambiguous encoding of each one's extra keys.
    """

    units: list[int]
    contents: list[bytes]


class HashChain(Protocol):
    """One algorithm under one key. A chain is a uint64 array that stands for everything hashed before."""

    def start(self, salt: bytes) -> np.ndarray:
        """Return a new chain."""

    def advance(self, chain: np.ndarray, tokens: np.ndarray, extras: UnitExtras) -> np.ndarray | None:
        """Advance `chain` over the whole units of `tokens` (int32 or int64, contiguous, writable).

        Returns their digests, uint64 [units, 2], or None if some token is negative or above 2^31 - 1; the chain is
        then worthless.
        """


class SipHashChain:
    """SipHash-2-4-128 throughout; how, and why it is sound, says `numba_ckpt.prefix_cache.siphash_units`."""

    def __init__(self, key: bytes, unit: int) -> None:
        names = ("salt", "extra", "content", "chain")
        keys = {name: key_words(siphash128(key, f"numba_ckpt {name} {unit}".encode())) for name in names}
        self.__setstate__((unit, keys))

    def __getstate__(self) -> tuple[int, dict[str, np.ndarray]]:
        return self._unit, self._keys

    def __setstate__(self, state: tuple[int, dict[str, np.ndarray]]) -> None:
        self._unit, self._keys = state
        # Each copy remembers salts for itself: what is remembered cannot be pickled.
        self._started = functools.lru_cache(maxsize=256)(self._start)

    def start(self, salt: bytes) -> np.ndarray:
        return self._started(salt).copy()

    def _start(self, salt: bytes) -> np.ndarray:
        chain = np.empty(CHAIN_WORDS, np.uint64)
        start_chain_host(chain, self._keys["chain"], self._digests("salt", [salt])[0])
        return chain

    def _digests(self, name: str, messages: list[bytes]) -> np.ndarray:
        octets = (np.frombuffer(message, np.uint8) for message in messages)
        return np.array([hash_octets(self._keys[name], message) for message in octets], np.uint64)

    def advance(self, chain: np.ndarray, tokens: np.ndarray, extras: UnitExtras) -> np.ndarray | None:
        digests = np.empty((tokens.size // self._unit, DIGEST_WORDS), np.uint64)
        arguments = tokens, self._unit, self._keys["content"], chain, digests
        if extras.units:
            units, extra_digests = np.array(extras.units, np.int64), self._digests("extra", extras.contents)
            bits = hash_units_with_extras_host(*arguments, units, extra_digests)
        else:
            bits = hash_units_host(*arguments)
        return None if bits & ~INT32_MAX else digests


class LibraryChain:
    """A hash of the standard library, unit after unit: digest = hash(key, parent ‖ extra keys ‖ tokens)."""

    def __init__(self, hash_message: Callable[[bytes, bytes], bytes], key: bytes, unit: int) -> None:
        self._hash_message, self._key, self._unit = hash_message, key, unit

    def start(self, salt: bytes) -> np.ndarray:
        # The label stands where a unit's message has its parent's digest.
        return key_words(self._hash_message(self._key, b"numba_ckpt root " + struct.pack("<Q", self._unit) + salt))

    def advance(self, chain: np.ndarray, tokens: np.ndarray, extras: UnitExtras) -> np.ndarray | None:
        if tokens.size and not 0 <= tokens.min() <= tokens.max() <= INT32_MAX:
            return None
        raw, step = memoryview(tokens.astype("<i4").tobytes()), 4 * self._unit
        contents, parent, digests = dict(zip(*extras, strict=True)), chain.astype("<u8").tobytes(), []
        for unit in range(tokens.size // self._unit):
            extra = contents.get(unit, b"")
            message = b"".join((parent, struct.pack("<Q", len(extra)), extra, raw[unit * step : (unit + 1) * step]))
            parent = self._hash_message(self._key, message)
            digests.append(parent)
        chain[:] = key_words(parent)
        return key_words(b"".join(digests)).reshape(-1, DIGEST_WORDS)


def _sha256(key: bytes, message: bytes) -> bytes:
    # The key has a fixed length, and half of the output stays hidden: nobody can extend a message from its digest.
    return hashlib.sha256(key + message).digest()[:KEY_BYTES]


def _blake2b(key: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(message, key=key, digest_size=KEY_BYTES).digest()


CHAINS: dict[str, Callable[[bytes, int], HashChain]] = {
    "siphash128": SipHashChain,
    "sha256": lambda key, unit: LibraryChain(_sha256, key, unit),
    "blake2b": lambda key, unit: LibraryChain(_blake2b, key, unit),
}
"""By the name that `PrefixHasher` takes."""
