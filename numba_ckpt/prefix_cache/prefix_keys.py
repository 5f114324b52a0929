"""Identities of prompt prefixes: equal keys if and only if equal tokens."""

import hashlib

import numpy as np

from numba_ckpt._check import check_array, check_int, refuse

__all__ = ["PrefixKey", "PrefixKeys"]

PrefixKey = tuple[bytes, int, int]
"""Chained digest of the whole token blocks, then id and token count of a block that the prefix only begins."""

_DIGEST_BYTES = 16
_NO_TAIL = (-1, 0)


class PrefixKeys:
    """The keys of one prompt's prefixes, at any token position.

    Parameters
    ----------
    block_ids : ndarray
        Integer [blocks], identities of the prompt's token blocks in order; equal ids stand for equal tokens.
    tokens_per_id : int
        Tokens of one block, at least 1.
    secret : bytes
        Key of the digest, at most 64 bytes; prefixes compare equal only under one secret.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above.

    Notes
    -----
    The digests chain: each covers all blocks before it, so one comparison settles a whole prefix. A prefix that ends
    inside a block adds that block's id and how much of it belongs to the prefix.

    Examples
    --------
    >>> import numpy as np
    >>> first, second = PrefixKeys(np.array([7, 8, 9]), 512), PrefixKeys(np.array([7, 8, 5]), 512)
    >>> first.at(1024) == second.at(1024), first.at(1030) == second.at(1030), first.at(1024) == first.at(512)
    (True, False, False)
    """

    __slots__ = ("_digests", "_ids", "_tokens_per_id")

    def __init__(self, block_ids: np.ndarray, tokens_per_id: int, secret: bytes = b"") -> None:
        check_array("block_ids", block_ids, 1, "iu")
        _check_secret(secret)
        self._tokens_per_id = check_int("tokens_per_id", tokens_per_id, 1)
        self._ids = block_ids.tolist()
        self._digests = _chain(block_ids, secret)

    def at(self, position: int) -> PrefixKey:
        """Return the key of the first `position` tokens, 0 to the tokens of all blocks."""
        num_whole, num_tail_tokens = divmod(position, self._tokens_per_id)
        tail = (self._ids[num_whole], num_tail_tokens) if num_tail_tokens else _NO_TAIL
        return (self._digests[num_whole], *tail)


def _check_secret(secret: object) -> None:
    if not isinstance(secret, bytes) or len(secret) > hashlib.blake2b.MAX_KEY_SIZE:
        got = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
        refuse("secret", f"at most {hashlib.blake2b.MAX_KEY_SIZE} bytes", got, "take some random bytes")


def _chain(block_ids: np.ndarray, secret: bytes) -> list[bytes]:
    """Return the digests of the first 0, 1, 2, ... blocks."""
    digests = [bytes(_DIGEST_BYTES)]
    raw = block_ids.astype("<i8").tobytes()
    for start in range(0, len(raw), 8):
        digest = hashlib.blake2b(digests[-1] + raw[start : start + 8], digest_size=_DIGEST_BYTES, key=secret)
        digests.append(digest.digest())
    return digests
