"""What every state block covers, written down when it is written, and held against the keys that lead to it.

::

    write ──► the block has a key?      it must name what was written        the moment it is overwritten
    commit ─► before a key is given     it must name what was written last   nothing is published otherwise
    look-up ► before a block is served  its key must name what it covers     nothing is held otherwise
"""

from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numba_ckpt._check import INT32_MAX, check_int, refuse
from numba_ckpt.cache import BlockPool
from numba_ckpt.cache.key_table import NO_GROUP
from numba_ckpt.cache.pool_calls import find_each_block
from numba_ckpt.errors import ArgumentTypeError, LedgerError
from numba_ckpt.prefix_cache.commit_loops import collect_publications
from numba_ckpt.prefix_cache.request import CachedRequest
from numba_ckpt.prefix_cache.step import CacheStep

if TYPE_CHECKING:
    from numba_ckpt.prefix_cache.manager import HybridPrefixCache

__all__ = ["WriteLedger", "check_publications", "check_published"]


class _Content(NamedTuple):
    group: int
    prefix: tuple[int, int]
    num_tokens: int


class WriteLedger:
    """A record of which tokens each state block covers, kept by whoever writes the blocks.

    Give one to `HybridPrefixCache` and call `write` from the worker. The cache then refuses, with `LedgerError`, to
    publish or to serve a block whose content is not the prefix that its key names, or that was never written; and
    `write` raises it where a block that a key leads to is overwritten.

    Examples
    --------
    >>> ledger = WriteLedger()
    >>> ledger.write(group=1, block=7, prefix=(3, 9), num_tokens=512)
    >>> ledger.check(group=1, block=7, prefix=(3, 9), num_tokens=512)
    """

    def __init__(self) -> None:
        self._content: dict[int, _Content] = {}
        self._pool: BlockPool | None = None

    @property
    def is_in_use(self) -> bool:
        """Whether it is some cache's."""
        return self._pool is not None

    def watch(self, pool: BlockPool) -> "WriteLedger":
        """Hold what is written from now on against the keys of `pool`: its cache calls it."""
        self._pool = pool
        return self

    def write(self, group: int, block: int, prefix: tuple[int, int], num_tokens: int) -> None:
        """Record that `block` of `group` now holds the state after the `num_tokens` tokens that `prefix` names.

        Raises
        ------
        LedgerError
            A key leads to the block and names another prefix; the write is on record, and look-ups raise it as well.
        ArgumentError, ArgumentTypeError
            No block of the pool, or no prefix, is given.
        """
        content = _Content(check_int("group", group, 0), _check_prefix(prefix), check_int("num_tokens", num_tokens, 0))
        self._record(self._check_block(block), content)

    def forget(self, group: int, block: int) -> None:
        """Record that the block's content is gone or unknown; raises LedgerError if a key leads to it."""
        check_int("group", group, 0)
        self._record(self._check_block(block), None)

    def forget_all(self, states: Iterable[tuple[int, int]]) -> None:
        """Do so for several (group, block)."""
        for group, block in states:
            self.forget(group, block)

    def check(self, group: int, block: int, prefix: tuple[int, int], num_tokens: int) -> None:
        """Raise LedgerError unless the block's content is this prefix."""
        if self._content.get(block) != (group, prefix, num_tokens):
            raise LedgerError(
                f"block {block} of group {group}: expected the state after {num_tokens} tokens, got "
                f"{self._describe(block, prefix, group)}; say that the checkpoint was declined, or write it before the "
                "commit and never after"
            )

    def _check_block(self, block: int) -> int:
        return check_int("block", block, 1, self._pool.num_blocks - 1 if self._pool else INT32_MAX)

    def _record(self, block: int, content: _Content | None) -> None:
        before = self._content.pop(block, None)
        if content is not None:
            self._content[block] = content
        if (key := self._key_of(block)) is None:
            return
        is_as_before = before is None or before[:2] != key or before == content
        if content is None or content[:2] != key or not is_as_before:
            raise LedgerError(
                f"block {block} of group {key[0]}: expected no write while a key leads to it, got "
                f"{self._describe(block, key[1], key[0])}; write into the blocks that the step reserved"
            )

    def _key_of(self, block: int) -> tuple[int, tuple[int, int]] | None:
        """Return the group and the key of a published block."""
        if self._pool is None:
            return None
        key0, key1, _, group, _, _ = self._pool.arrays.blocks[block].item()
        return None if group == NO_GROUP else (group, (key0, key1))

    def _describe(self, block: int, prefix: tuple[int, int], group: int) -> str:
        if (content := self._content.get(block)) is None:
            return "never written"
        state = f"the state after {content.num_tokens} tokens"
        if content.group != group:
            return f"{state} of group {content.group}"
        return state if content.prefix == prefix else f"{state} of another prefix"


def _check_prefix(prefix: Any) -> tuple[int, int]:
    if not isinstance(prefix, tuple) or len(prefix) != 2:
        do = "pass a row of `CachedRequest.keys` as a tuple"
        refuse("prefix", "the two halves of a key", repr(prefix), do, ArgumentTypeError)
    most = 2**64 - 1
    return check_int("prefix", prefix[0], 0, most), check_int("prefix", prefix[1], 0, most)


def check_publications(cache: "HybridPrefixCache", book: np.ndarray, step: CacheStep, declined: Set[str]) -> None:
    """Raise LedgerError unless every state that the commit of a step would publish is what its key says."""
    for request, start, end, reserved in step.reservations:
        written = request.request_id in declined, request.last_boundary, request.junction
        found = collect_publications(book, request.table, reserved, start, end, *written)
        for block, num_tokens, group in found.tolist():
            _check_state(cache, request, num_tokens, (group, block))


def check_published(cache: "HybridPrefixCache", request: CachedRequest) -> None:
    """Raise LedgerError unless every state that the keys of a prompt lead to is what they say."""
    unit = cache.config.hash_block_size
    keys = np.ascontiguousarray(request.keys[: request.last_boundary // unit])
    found = np.empty(len(keys), np.int32)
    for group, spec in enumerate(cache.config.groups):
        if spec.kind == "state":
            find_each_block(cache.pool.words, keys, group, found)
            for index in np.flatnonzero(found).tolist():
                _check_state(cache, request, (index + 1) * unit, (group, int(found[index])))


def _check_state(cache: "HybridPrefixCache", request: CachedRequest, num_tokens: int, place: tuple[int, int]) -> None:
    group, block = place
    if cache.ledger is not None and cache.config.groups[group].kind == "state":
        first, second = request.keys[num_tokens // cache.config.hash_block_size - 1].tolist()
        cache.ledger.check(group, block, (first, second), num_tokens)
