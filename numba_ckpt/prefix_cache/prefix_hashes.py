"""Prompt tokens in, one digest for each unit's prefix out: what the prefix index looks up."""

import functools
import secrets
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from numba_ckpt._check import INT32_MAX, check_array, check_choice, check_int, describe, refuse
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.prefix_cache.hash_chains import CHAINS, UnitExtras
from numba_ckpt.prefix_cache.siphash import KEY_BYTES, check_key

__all__ = ["ExtraKey", "PrefixHasher", "PrefixState"]

_INT64_MAX = 2**63 - 1
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_NO_TOKENS = np.empty(0, np.int32)
_NO_EXTRAS = UnitExtras([], [])


class ExtraKey(NamedTuple):
    """Something besides tokens that a state depends on: an adapter's id, an image's hash.

    Attributes
    ----------
    position : int
        First token that depends on it, counted from the sequence's first: 0 for an adapter, the first placeholder for
        an image. The digest of that token's unit and of all later units depend on it.
    content : bytes
        What tells it from others of its kind.
    """

    position: int
    content: bytes


class PrefixState:
    """How far a sequence has been hashed; made by `PrefixHasher.start`, moved on by `PrefixHasher.extend`.

    Attributes
    ----------
    num_tokens : int
        Tokens that the state has been given, those of a unit that is not yet whole included.
    """

    __slots__ = ("_chain", "_extra_keys", "_hasher", "_tail", "num_tokens")

    def __init__(self, hasher: "PrefixHasher", chain: np.ndarray, extra_keys: list[ExtraKey]) -> None:
        self.num_tokens = 0
        self._hasher, self._chain, self._extra_keys = hasher, chain, extra_keys
        self._tail = _NO_TOKENS

    def fork(self) -> "PrefixState":
        """Return a copy that can be extended by other tokens."""
        copy = PrefixState(self._hasher, self._chain, self._extra_keys)
        copy.num_tokens, copy._tail = self.num_tokens, self._tail
        return copy


@functools.cache
def _process_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


class PrefixHasher:
    """Keyed digests of 128 bits of every prefix of a token sequence that ends with a whole unit.

    Parameters
    ----------
    unit : int
        Tokens between two digests, at least 1. A cache whose blocks are k units reads the digests k - 1, 2k - 1, ...
    key : bytes, optional
        16 secret bytes. By default random ones, the same for all hashers of the process; processes that share an index
        share a key.
    algorithm : str
        ``"siphash128"`` (compiled), or ``"sha256"`` or ``"blake2b"`` from the standard library, cut to 128 bits, which
        take some 25 times as long for units of 16 tokens and 5 times as long for units of 512.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The unit is not a positive integer, the key not 16 bytes, the algorithm unknown.

    Notes
    -----
    Digests are equal exactly where key, unit, algorithm, salt, tokens and extra keys up to the unit's end are, but for
    a chance of 2^-128 for each pair. They do not depend on the integer dtype of the tokens. There is no hash without a
    key on offer: whoever can make two prompts collide is served the other's state.

    A pickled or copied hasher hashes like the original, in any process: what is pickled holds the secret, and whoever
    reads it can make prompts collide. Guard it like a key, or share a `key` by other means.

    Examples
    --------
    >>> import numpy as np
    >>> hasher = PrefixHasher(16, key=bytes(16))
    >>> prompt = np.arange(50)
    >>> digests = hasher.hash_prompt(prompt, salt=b"tenant 1")
    >>> digests.shape, digests.dtype
    ((3, 2), dtype('uint64'))
    >>> prompt[40] = 7
    >>> (hasher.hash_prompt(prompt, salt=b"tenant 1") == digests).all(axis=1).tolist()
    [True, True, False]
    """

    def __init__(self, unit: int, key: bytes | None = None, algorithm: str = "siphash128") -> None:
        self.unit = check_int("unit", unit, 1)
        self.algorithm = check_choice("algorithm", algorithm, CHAINS)
        self._chain = CHAINS[self.algorithm](_process_key() if key is None else check_key(key), self.unit)

    def __repr__(self) -> str:
        return f"PrefixHasher(unit={self.unit}, algorithm={self.algorithm!r})"

    def hash_prompt(self, tokens: np.ndarray, salt: bytes = b"", extra_keys: Iterable[ExtraKey] = ()) -> np.ndarray:
        """Hash all whole units of a prompt.

        Parameters
        ----------
        tokens : ndarray
            Integer [T], token ids in [0, 2^31).
        salt : bytes
            Keeps those who use different salts apart from the first token on.
        extra_keys : iterable of ExtraKey
            In any order; plain pairs will do. Positions are at most T.

        Returns
        -------
        ndarray
            uint64 [T // unit, 2], low word first; row i is the digest of the first ``(i + 1) * unit`` tokens.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An argument is not as above.
        """
        return self.start_with(tokens, salt, extra_keys)[1]

    def start(self, salt: bytes = b"") -> PrefixState:
        """Return the state of an empty sequence, to be extended as its tokens arrive."""
        return PrefixState(self, self._chain.start(_check_bytes("salt", salt)), [])

    def start_with(
        self, tokens: np.ndarray, salt: bytes = b"", extra_keys: Iterable[ExtraKey] = ()
    ) -> tuple[PrefixState, np.ndarray]:
        """Return the state after a prompt and the digests of its units: `start` and `extend` in one, sooner done."""
        tokens = _check_tokens(tokens)
        extras, waiting = self._sort_extra_keys([], extra_keys, 0, tokens.size)
        state = PrefixState(self, self._chain.start(_check_bytes("salt", salt)), waiting)
        digests = self._advance(state._chain, tokens, extras)
        state.num_tokens = tokens.size
        state._tail = tokens[len(digests) * self.unit :].astype(np.int32)
        return state, digests

    def extend(self, state: PrefixState, new_tokens: np.ndarray, extra_keys: Iterable[ExtraKey] = ()) -> np.ndarray:
        """Append tokens to a sequence and hash the units that they complete.

        Parameters
        ----------
        state : PrefixState
            Advanced, unless an error is raised.
        new_tokens : ndarray
            Integer [T], token ids in [0, 2^31).
        extra_keys : iterable of ExtraKey
            Keys not given before. Positions count from the sequence's first token; they may neither lie in a unit that
            has been hashed, nor beyond the first token that is still to come.

        Returns
        -------
        ndarray
            uint64 [units completed, 2]: the rows that `hash_prompt` of the whole sequence has after those returned
            before.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An argument is not as above, or the state is another hasher's.

        Examples
        --------
        >>> import numpy as np
        >>> hasher, tokens = PrefixHasher(4, key=bytes(16)), np.arange(10)
        >>> state = hasher.start()
        >>> parts = [hasher.extend(state, tokens[:7]), hasher.extend(state, tokens[7:])]
        >>> bool((np.concatenate(parts) == hasher.hash_prompt(tokens)).all())
        True
        """
        _check_state(state, self)
        tokens = _check_tokens(new_tokens)
        num_tokens = state.num_tokens + tokens.size
        if state._tail.size:
            tokens = np.concatenate((state._tail, tokens))
        extras, waiting = self._sort_extra_keys(state._extra_keys, extra_keys, num_tokens - tokens.size, num_tokens)
        chain = state._chain.copy()
        digests = self._advance(chain, tokens, extras, tokens.size - new_tokens.size)
        state._chain, state._extra_keys, state.num_tokens = chain, waiting, num_tokens
        state._tail = tokens[len(digests) * self.unit :].astype(np.int32)
        return digests

    def _advance(self, chain: np.ndarray, tokens: np.ndarray, extras: UnitExtras, num_old: int = 0) -> np.ndarray:
        digests = self._chain.advance(chain, tokens, extras)
        if digests is None:
            _refuse_tokens(tokens[num_old:])
        return digests

    def _sort_extra_keys(
        self, waiting: list[ExtraKey], extra_keys: Iterable[ExtraKey], first: int, num_tokens: int
    ) -> tuple[UnitExtras, list[ExtraKey]]:
        """Return the keys of the units that tokens `first` to `num_tokens` make whole, and those that go on waiting."""
        if not waiting and isinstance(extra_keys, tuple) and not extra_keys:
            return _NO_EXTRAS, waiting
        keys = sorted([*waiting, *_check_extra_keys(extra_keys, first, num_tokens)])
        contents: dict[int, bytes] = {}
        num_units = (num_tokens - first) // self.unit
        for position, content in keys:
            unit = (position - first) // self.unit
            if unit < num_units:
                contents[unit] = contents.get(unit, b"") + struct.pack("<QQ", position, len(content)) + content
        still_waiting = [key for key in keys if key.position >= first + num_units * self.unit]
        return UnitExtras(list(contents), list(contents.values())), still_waiting


def _check_state(state: object, hasher: PrefixHasher) -> None:
    if getattr(state, "_hasher", None) is not hasher:
        got = "another hasher's" if isinstance(state, PrefixState) else type(state).__name__
        refuse("state", "a state that this hasher started", got, "call start of this hasher", ArgumentTypeError)


def _check_bytes(name: str, value: object) -> bytes:
    if not isinstance(value, bytes):
        refuse(name, "bytes", f"{value!r} ({type(value).__name__})", "encode it", ArgumentTypeError)
    return value


def _check_extra_keys(extra_keys: Any, first: int, num_tokens: int) -> list[ExtraKey]:
    """Return the keys as a list, refusing any whose position is not in [first, num_tokens]."""
    checked: list[ExtraKey] = []
    for key in extra_keys if hasattr(extra_keys, "__iter__") else (extra_keys,):
        if not isinstance(key, tuple) or len(key) != 2:
            do = "pass a list of ExtraKey"
            refuse("extra_keys", "pairs of a position and bytes", repr(key), do, ArgumentTypeError)
        position = check_int("extra_keys position", key[0], 0, _INT64_MAX)
        if not first <= position <= num_tokens:
            expected = f"positions in [{first}, {num_tokens}]"
            refuse("extra_keys", expected, position, "pass a key with the tokens that it takes effect at")
        checked.append(ExtraKey(position, _check_bytes("extra_keys content", key[1])))
    return checked


def _check_tokens(tokens: Any) -> np.ndarray:
    """Return tokens as a contiguous, writable int32 or int64 array; that is, as they are, but for rare ones."""
    # The usual case first, by identity: comparing dtypes takes longer than hashing a short prompt.
    if type(tokens) is np.ndarray and (tokens.dtype is _INT32 or tokens.dtype is _INT64):
        if tokens.ndim == 1 and tokens.flags.carray:
            return tokens
    if not isinstance(tokens, np.ndarray):
        do = "wrap it with numpy.asarray; hashing runs on the host"
        refuse("tokens", "a 1-d NumPy array of integers", describe(tokens), do, ArgumentTypeError)
    check_array("tokens", tokens, 1, "iu")
    if tokens.dtype in (np.int32, np.int64) and tokens.flags.carray:
        return np.asarray(tokens)
    if tokens.dtype.kind == "u" and tokens.size and int(tokens.max()) > INT32_MAX:
        _refuse_tokens(tokens)
    return tokens.astype(np.int32 if tokens.dtype.itemsize < 4 else np.int64, order="C")


def _refuse_tokens(tokens: np.ndarray) -> NoReturn:
    bad = int(np.argmax((tokens < 0) | (tokens > INT32_MAX)))
    refuse("tokens", f"token ids in [0, {INT32_MAX}]", f"{tokens[bad]} at index {bad}", "mask padding before hashing")
