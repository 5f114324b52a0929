"""What a prefix cache has done so far."""

from dataclasses import dataclass

__all__ = ["CacheCounters", "CacheWarning"]


class CacheWarning(UserWarning):
    """Something about a cache's use that keeps it from ever helping."""


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Counts since the cache was made, exact on every path; evictions and occupancy are the pool's.

    Attributes
    ----------
    lookups, prompt_tokens, hit_tokens, lost_tokens : int
        Look-ups; the tokens looked up, served, and known to the attention groups but lost for want of a state.
    states_reused : int
        Hits, each of which resumed from a stored state.
    checkpoints_reserved, checkpoints_written, checkpoints_declined, checkpoints_aborted : int
        Checkpoint blocks by what became of them: the first is the sum of the others and of those in flight.
    checkpoints_skipped : int
        Checkpoints done without because the pool had no block left for them.
    copies : int
        State blocks copied because a request moved on inside a block that others may read.
    waits : int
        Look-ups that found a longer prefix being written.
    steps_committed, steps_aborted : int
        Steps by how they ended.
    """

    lookups: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    lost_tokens: int = 0
    states_reused: int = 0
    checkpoints_reserved: int = 0
    checkpoints_written: int = 0
    checkpoints_declined: int = 0
    checkpoints_aborted: int = 0
    checkpoints_skipped: int = 0
    copies: int = 0
    waits: int = 0
    steps_committed: int = 0
    steps_aborted: int = 0
