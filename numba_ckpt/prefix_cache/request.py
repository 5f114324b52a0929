"""A request as the prefix cache keeps it."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt.prefix_cache.chunk_loops import CHECKPOINT_BLOCK, COPY_FROM, INITIAL_BLOCK, OFFSET, RUNNING_BLOCK
from numba_ckpt.prefix_cache.groups import CacheConfig
from numba_ckpt.prefix_cache.prefix_hashes import PrefixState
from numba_ckpt.rules import NULL_BLOCK_ID

__all__ = ["CachedRequest", "ChunkReservation", "PrefixHit"]


class PrefixHit(NamedTuple):
    """What a look-up found, in tokens.

    Attributes
    ----------
    num_tokens : int
        The longest boundary that every group serves; the request resumes there.
    attention_tokens : int
        The longest that the attention groups know and serve: what lies between is lost for want of a state. No more
        than `num_tokens` where no attention group has been further, as on an empty cache or without such groups.
    pending_tokens : int
        The hit that the prompt would have if all open steps were committed now, no checkpoint declined; 0 if that is
        no longer than `num_tokens`. Waiting for their commits pays.
    """

    num_tokens: int
    attention_tokens: int
    pending_tokens: int = 0


@dataclass(slots=True, eq=False)
class CachedRequest:
    """A request, the digests of its prefixes, and the blocks that it holds; made by `HybridPrefixCache.add`.

    Attributes
    ----------
    request_id : str
        The engine's name for it.
    num_tokens : int
        Tokens of the prompt, and of the outputs appended so far.
    hashed : PrefixState
        How far the tokens have been hashed; what appended ones continue.
    keys : ndarray
        uint64 [units, 2], digest of each prefix of whole hash blocks.
    table : ndarray
        int32 [groups, columns], the blocks that it holds; position-indexed, null where it holds none.
    last_boundary : int
        Last boundary of the prompt that a hit may reach; 0 if there is none.
    num_computed_tokens : int
        Tokens that need no more computing, hits included.
    junction : int
        Boundary up to which the attention groups knew the prompt, if states did not reach it; 0 if none.
    open_steps : list of CacheStep
        Steps with a chunk of it that are neither committed nor aborted, the earliest first.
    num_committed_tokens : int
        Computed tokens without those in flight.
    has_lost_state : bool
        Whether an aborted step may have moved its state on.
    num_prompt_tokens : int
        Tokens of the prompt.
    """

    request_id: str
    num_tokens: int
    hashed: PrefixState
    keys: np.ndarray
    table: np.ndarray
    last_boundary: int
    num_computed_tokens: int = 0
    junction: int = 0
    open_steps: list[Any] = field(default_factory=list)
    num_committed_tokens: int = 0
    has_lost_state: bool = False
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_tokens

    @property
    def num_in_flight(self) -> int:
        """Chunks in its open steps."""
        return len(self.open_steps)

    def grow(self, new_keys: np.ndarray, config: CacheConfig) -> None:
        """Take in tokens that have been hashed, and the keys of the hash blocks that they complete."""
        self.num_tokens = self.hashed.num_tokens
        if len(new_keys):
            self.keys = np.concatenate((self.keys, new_keys))
        num_cols, old_cols = config.num_cols(self.num_tokens), self.table.shape[1]
        if num_cols > old_cols:
            # Twice as wide at least, so that a long output does not copy its table for each block.
            self.table = np.pad(self.table, ((0, 0), (0, max(num_cols - old_cols, old_cols))))


class ChunkReservation(NamedTuple):
    """The chunk [start, end) of a request in a step, and the blocks reserved for it.

    Attributes
    ----------
    request : CachedRequest
        Whose chunk it is.
    start, end : int
        Token range that the step computes.
    groups : ndarray
        int64 [groups, 8], zeros but for state groups: the checkpoint's offset (0: none), column and block, the block
        that the initial state is read from (0: the sequence starts here), the block of the running state, a block to
        copy into it before the step (0: none), the offset of a checkpoint done without for want of blocks, and how many
        speculative blocks are new.
    """

    request: CachedRequest
    start: int
    end: int
    groups: np.ndarray

    @property
    def has_checkpoint(self) -> bool:
        """Whether the worker is to write a checkpoint, in some group."""
        return bool((self.groups[:, OFFSET] > 0).any())

    @property
    def new_states(self) -> list[tuple[int, int]]:
        """State blocks reserved for the step: (group, block)."""
        rows = enumerate(self.groups.tolist())
        return [
            (group, block)
            for group, row in rows
            for block in (row[CHECKPOINT_BLOCK], row[RUNNING_BLOCK])
            if block not in (NULL_BLOCK_ID, row[INITIAL_BLOCK])
        ]

    @property
    def moves_in_place(self) -> bool:
        """Whether the step overwrites the state that it starts from, in some group."""
        return any(row[RUNNING_BLOCK] and row[RUNNING_BLOCK] == row[INITIAL_BLOCK] for row in self.groups.tolist())

    @property
    def copies(self) -> list[tuple[int, int, int]]:
        """Copies that the worker makes before the step: (group, from block, to block).

        The state goes on inside a block that others may read, so it goes on in a copy.
        """
        rows = enumerate(self.groups.tolist())
        return [(group, row[COPY_FROM], row[RUNNING_BLOCK]) for group, row in rows if row[COPY_FROM]]
