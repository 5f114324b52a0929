"""The cache groups of a model, as the prefix cache sees them: what each keeps of a prefix, in which blocks."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numba_ckpt._check import INT32_MAX, check_bool, check_choice, check_int, refuse
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.rules import checkpoint_position, floor_to, is_state_kept

__all__ = ["CacheConfig", "CacheGroup"]

FULL, SLIDING_WINDOW, CHUNKED_LOCAL, STATE = range(4)
KINDS = ("full", "sliding_window", "chunked_local", "state")

MAX_SPECULATIVE_BLOCKS = 1024
"""Every request's table row has as many columns more."""

# Columns of `CacheConfig.group_rows`.
KIND, BLOCK_SIZE, WINDOW, ALIGNMENT, NUM_SPECULATIVE, TOKENS_SERVED, NUM_FIELDS = range(7)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table.

    Parameters
    ----------
    kind : {"full", "sliding_window", "chunked_local", "state"}
        What serves a boundary: all blocks before it; the blocks of the window before it; the blocks of its chunk; or
        one recurrent state that ends on it.
    block_size : int
        Tokens per block, at least 1.
    window : int, optional
        Tokens that a query token sees (``"sliding_window"``), or tokens per chunk (``"chunked_local"``).
    checkpoint_alignment : int, optional
        ``"state"`` alone: the backend can export states at multiples of this many tokens from a query's start; None
        means that it cannot.
    num_speculative_blocks : int
        ``"state"`` alone: blocks after the running state's that take the states after each draft token; at most 1024.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An unknown kind, a size out of range, or a window or alignment where it has no meaning.

    Examples
    --------
    >>> CacheGroup("state", 2048, checkpoint_alignment=16).block_size
    2048
    """

    kind: str
    block_size: int
    window: int | None = None
    checkpoint_alignment: int | None = None
    num_speculative_blocks: int = 0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        object.__setattr__(self, "block_size", check_int("block_size", self.block_size, 1))
        self._check_optional("window", self.kind in ("sliding_window", "chunked_local"), needed=True)
        self._check_optional("checkpoint_alignment", self.kind == "state", needed=False)
        most = MAX_SPECULATIVE_BLOCKS if self.kind == "state" else 0
        num_speculative = check_int("num_speculative_blocks", self.num_speculative_blocks, 0, most)
        object.__setattr__(self, "num_speculative_blocks", num_speculative)

    def _check_optional(self, name: str, has_meaning: bool, needed: bool) -> None:
        value = getattr(self, name)
        if not has_meaning and value is not None:
            refuse(name, f"None for a group of kind {self.kind!r}", value, "leave it out")
        if has_meaning and (needed or value is not None):
            object.__setattr__(self, name, check_int(name, value, 1))


def _common_multiple(name: str, *sizes: int) -> int:
    """Return the least common multiple, refusing one that no count of tokens reaches."""
    least = math.lcm(*sizes)
    if least > INT32_MAX:
        expected, do = f"sizes with a common multiple of at most {INT32_MAX}", "make one size a multiple of the other"
        refuse(name, expected, f"{least}, the least of {', '.join(map(str, sorted({*sizes})))}", do)
    return least


def _check_groups(groups: Any) -> tuple[CacheGroup, ...]:
    members = tuple(groups) if isinstance(groups, Iterable) else ()
    if not members or not all(isinstance(member, CacheGroup) for member in members):
        expected = "a sequence of one CacheGroup at least"
        refuse("groups", expected, groups, "describe the model's groups", ArgumentTypeError)
    return members


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Groups and units of a prefix cache; checked once, when made.

    Parameters
    ----------
    groups : sequence of CacheGroup
        At least one.
    hash_block_size : int
        Tokens per prefix hash; divides every block size.
    cache_hit_alignment_tokens : int, optional
        A hit is a multiple of this many tokens, itself a multiple of `hash_block_size`. By default the least that
        `hash_block_size` and the block sizes of all attention groups divide: on a finer grid prompts would keep states
        that no hit can reach, because attention blocks are shared whole.
    drop_eagle_block : bool
        Whether a hit gives up the last alignment unit of its prompt to speculative decoding. Wherever it ends, the
        full-attention groups then have to know one hash block more, and know it by whole blocks.
    num_hash_lookahead_tokens : int
        Tokens beyond a boundary that its hash needs.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No groups, block sizes that the hash block does not divide, or sizes without a common multiple of at most
        2^31 - 1.

    Notes
    -----
    State groups with several alignments share their least common multiple: a boundary is worth keeping only where all
    of them can keep it.

    Examples
    --------
    >>> groups = CacheGroup("full", 512), CacheGroup("state", 2048, checkpoint_alignment=16)
    >>> CacheConfig(groups, hash_block_size=64).hit_step
    512
    """

    groups: Sequence[CacheGroup]
    hash_block_size: int
    cache_hit_alignment_tokens: int | None = None
    drop_eagle_block: bool = False
    num_hash_lookahead_tokens: int = 0
    # Tokens of the smallest block, and the most speculative blocks: what `num_cols` needs for each request.
    _smallest: int = field(init=False, repr=False, compare=False)
    _num_extra: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _check_groups(self.groups))
        object.__setattr__(self, "_smallest", min(group.block_size for group in self.groups))
        object.__setattr__(self, "_num_extra", max(group.num_speculative_blocks for group in self.groups))
        object.__setattr__(self, "drop_eagle_block", check_bool("drop_eagle_block", self.drop_eagle_block))
        lookahead = check_int("num_hash_lookahead_tokens", self.num_hash_lookahead_tokens, 0)
        object.__setattr__(self, "num_hash_lookahead_tokens", lookahead)
        unit = check_int("hash_block_size", self.hash_block_size, 1)
        common = _common_multiple("block_size", unit, *self._attention_sizes())
        if self.cache_hit_alignment_tokens is None:
            object.__setattr__(self, "cache_hit_alignment_tokens", common)
        alignment = check_int("cache_hit_alignment_tokens", self.cache_hit_alignment_tokens, 1)
        _common_multiple("cache_hit_alignment_tokens", alignment, *self._attention_sizes())
        for name, size in (
            ("cache_hit_alignment_tokens", alignment),
            *(("block_size", g.block_size) for g in self.groups),
        ):
            if size % unit:
                refuse(
                    name, f"a multiple of hash_block_size {unit}", size, "hash in a unit that divides all block sizes"
                )
        for group in self.groups:
            if group.kind == "state":
                self.geometry_of(group)

    @property
    def hit_step(self) -> int:
        """Tokens between two boundaries that all groups can serve: attention blocks are shared whole."""
        return math.lcm(self.cache_hit_alignment_tokens or 1, *self._attention_sizes())

    def _attention_sizes(self) -> list[int]:
        return [group.block_size for group in self.groups if group.kind != "state"]

    def last_boundary(self, num_tokens: int) -> int:
        """Return the last boundary of a prompt that a hit may reach, in tokens."""
        alignment = self.cache_hit_alignment_tokens or self.hash_block_size
        return checkpoint_position(num_tokens, alignment, self.drop_eagle_block, self.num_hash_lookahead_tokens)

    def longest_hit(self, num_tokens: int) -> int:
        """Return the longest hit that a prompt can have where every group holds all that it can, in tokens.

        It is the last boundary where hits are as coarse as the attention blocks. Otherwise what the groups know may
        end before, above all with EAGLE: the token after a hit is known only by whole attention blocks.
        """
        last, margin = self.last_boundary(num_tokens), self.hash_block_size if self.drop_eagle_block else 0
        known = [floor_to(num_tokens, group.block_size) for group in self.groups if group.kind == "full"]
        return int(floor_to(max(min([last, *(tokens - margin for tokens in known)]), 0), self.hit_step))

    def keeps_states(self, longest_hit: int, last_boundary: int, interval: int) -> bool:
        """Say whether a prompt's states are kept on any boundary that a hit can reach, junctions apart.

        `interval` is the retention's.
        """
        sizes = [group.block_size for group in self.groups if group.kind == "state"]
        boundaries = {last_boundary, *(floor_to(last_boundary, size) for size in sizes)}
        if interval:
            boundaries.add(floor_to(longest_hit, math.lcm(interval, self.hit_step)))
        reachable = [p for p in boundaries if 0 < p <= longest_hit and p % self.hit_step == 0]
        return not sizes or any(
            all(is_state_kept(p, interval, last_boundary, 0, size) for size in sizes) for p in reachable
        )

    def num_cols(self, num_tokens: int) -> int:
        """Return the block-table columns that a sequence needs in every group, speculative blocks included."""
        return -(-num_tokens // self._smallest) + self._num_extra

    def geometry_of(self, group: CacheGroup) -> CheckpointGeometry:
        """Return the checkpoint geometry of a state group, with the alignment that all state groups share."""
        alignments = [g.checkpoint_alignment for g in self.groups if g.kind == "state"]
        known = [alignment for alignment in alignments if alignment is not None]
        shared = _common_multiple("checkpoint_alignment", *known) if len(known) == len(alignments) else None
        return CheckpointGeometry(
            self.hash_block_size,
            group.block_size,
            self.cache_hit_alignment_tokens or self.hash_block_size,
            shared,
            self.drop_eagle_block,
            self.num_hash_lookahead_tokens,
        )

    def sizes(self) -> list[int]:
        """Return the units as compiled loops read them: hash block, alignment, EAGLE switch, lookahead, hit step."""
        unit = self.hash_block_size
        alignment = self.cache_hit_alignment_tokens or unit
        return [unit, alignment, int(self.drop_eagle_block), self.num_hash_lookahead_tokens, self.hit_step]

    def group_rows(self) -> np.ndarray:
        """Return the groups as compiled loops read them, nothing served yet: int64 [groups, NUM_FIELDS]."""
        rows = np.zeros((len(self.groups), NUM_FIELDS), np.int64)
        for row, group in zip(rows, self.groups, strict=True):
            row[KIND], row[BLOCK_SIZE], row[WINDOW] = KINDS.index(group.kind), group.block_size, group.window or 0
            row[NUM_SPECULATIVE] = group.num_speculative_blocks
            row[ALIGNMENT] = (self.geometry_of(group).checkpoint_alignment or 0) if group.kind == "state" else 0
        return rows
