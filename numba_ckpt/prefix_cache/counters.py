"""What a prefix cache has done so far, and the few things it warns about."""

import warnings
from dataclasses import dataclass, field

from numba_ckpt.prefix_cache.request import PrefixHit

__all__ = ["CacheCounters", "CacheWarning"]


class CacheWarning(UserWarning):
    """Something about a cache's use that keeps it from ever helping."""


@dataclass(slots=True)
class CacheCounters:
    """Counts since the cache was made, exact on every path; evictions and occupancy are the pool's.

    Attributes
    ----------
    lookups, waits : int
        Look-ups, and those that found a longer prefix being written.
    prompt_tokens, hit_tokens, lost_tokens : int
        Tokens looked up, served, and known to the attention groups but lost for want of a state.
    steps_committed, steps_aborted : int
        Steps by how they ended.
    checkpoints_reserved, checkpoints_written, checkpoints_declined, checkpoints_aborted : int
        Checkpoint blocks by what became of them: the first is the sum of the others and of those in flight.
    states_reused : int
        Hits, each of which resumed from a stored state.
    copies : int
        State blocks copied because a request moved on inside a block that others may read.
    """

    lookups: int = 0
    waits: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    lost_tokens: int = 0
    steps_committed: int = 0
    steps_aborted: int = 0
    checkpoints_reserved: int = 0
    checkpoints_written: int = 0
    checkpoints_declined: int = 0
    checkpoints_aborted: int = 0
    states_reused: int = 0
    copies: int = 0
    _has_warned: bool = field(default=False, repr=False)

    def count_lookup(self, num_tokens: int, hit: PrefixHit) -> None:
        """Count one look-up of a prompt of `num_tokens`."""
        self.lookups += 1
        self.waits += hit.pending_tokens > 0
        self.prompt_tokens += num_tokens
        self.hit_tokens += hit.num_tokens
        self.lost_tokens += hit.attention_tokens - hit.num_tokens
        self.states_reused += hit.num_tokens > 0

    def warn_of_short_prompt(self, num_tokens: int, hit_step: int) -> None:
        """Warn, once, of prompts into which the unit of a hit does not fit: they are never served."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a prompt of {num_tokens} tokens can never be hit: hits are multiples of {hit_step} tokens and leave "
                "one token (with EAGLE one unit) to compute; use a finer hash block or smaller attention blocks",
                CacheWarning,
                stacklevel=4,
            )
