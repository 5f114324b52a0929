"""What every state block covers, written down when it is written, and checked when a key is about to lead to it."""

import numpy as np

from numba_ckpt.errors import LedgerError
from numba_ckpt.prefix_cache.commit_loops import collect_publications
from numba_ckpt.prefix_cache.groups import CacheConfig
from numba_ckpt.prefix_cache.request import ChunkReservation

__all__ = ["WriteLedger", "check_publications"]


class WriteLedger:
    """A record of which tokens each state block covers, kept by whoever writes the blocks.

    Give one to `HybridPrefixCache` and call `write` from the worker: the cache then refuses, with `LedgerError`, to
    publish a block whose content is not the prefix that its key names, or that was never written.

    Examples
    --------
    >>> ledger = WriteLedger()
    >>> ledger.write(group=1, block=7, prefix=(3, 9), num_tokens=512)
    >>> ledger.check(group=1, block=7, prefix=(3, 9), num_tokens=512)
    """

    def __init__(self) -> None:
        self._content: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}

    def write(self, group: int, block: int, prefix: tuple[int, int], num_tokens: int) -> None:
        """Record that `block` of `group` now holds the state after the `num_tokens` tokens that `prefix` names."""
        self._content[group, block] = (prefix, num_tokens)

    def forget(self, group: int, block: int) -> None:
        """Record that the block's content is gone or unknown."""
        self._content.pop((group, block), None)

    def check(self, group: int, block: int, prefix: tuple[int, int], num_tokens: int) -> None:
        """Raise LedgerError unless the block's content is this prefix."""
        content = self._content.get((group, block))
        if content != (prefix, num_tokens):
            got = "never written" if content is None else f"the state after {content[1]} tokens of another prefix"
            if content is not None and content[0] == prefix:
                got = f"the state after {content[1]} tokens"
            raise LedgerError(
                f"block {block} of group {group}: expected the state after {num_tokens} tokens, got {got}; "
                "say that the checkpoint was declined, or write it before the commit"
            )


def check_publications(
    ledger: WriteLedger, config: CacheConfig, book: np.ndarray, chunk: ChunkReservation, is_declined: bool
) -> None:
    """Raise LedgerError unless every state that the commit of a chunk would publish is what its key says."""
    request, start, end, reserved = chunk
    boundaries = request.last_boundary, request.junction
    found = collect_publications(book, request.table, reserved, start, end, is_declined, *boundaries)
    for block, num_tokens, group in found.tolist():
        if config.groups[group].kind == "state":
            first, second = request.keys[num_tokens // config.hash_block_size - 1].tolist()
            ledger.check(group, block, (first, second), num_tokens)
