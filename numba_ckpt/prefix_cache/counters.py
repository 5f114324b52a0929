"""What a prefix cache has done so far."""

from dataclasses import dataclass

__all__ = ["CacheCounters", "CacheWarning"]


class CacheWarning(UserWarning):
    """Something about a cache's use that keeps it from ever helping."""


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Counts since the cache was made, exact on every path; what an aborted step did is taken back, or told apart.

    Attributes
    ----------
    lookups, prompt_tokens, hit_tokens : int
        Look-ups; the prompts' tokens looked up, outputs apart, and served.
    lost_to_boundaries, lost_to_attention, lost_to_states, lost_to_writing : int
        Tokens looked up and not served: beyond the last boundary that a hit may reach; beyond what the attention groups
        served (evicted, or never seen); served by them, or in a model without them, but without a state; and those that
        a step was about to make hittable. Each is counted once.
    states_reused : int
        State blocks that hits resumed from, one for each hit and state group.
    checkpoints_reserved, checkpoints_written, checkpoints_declined, checkpoints_aborted : int
        Checkpoint blocks by what became of them: the first is the sum of the others and of those in flight.
    checkpoints_skipped : int
        Checkpoints done without because the pool had no block left for them, aborted steps apart.
    copies : int
        State blocks copied because a request moved on inside a block that others may read, aborted steps apart.
    waits : int
        Look-ups that found a longer prefix being written.
    steps_committed, steps_aborted : int
        Steps by how they ended.
    evictions : int
        Keys given up because their blocks were needed.
    blocks_held, blocks_idle, blocks_free : int
        The pool now, the null block apart: blocks of requests; those that a key leads to and nobody holds; the others.
    hit_tokens_by_group : tuple of int
        Tokens in the blocks that hits took over from each group: of a window what is still read, of a state all before
        it.
    """

    lookups: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    lost_to_boundaries: int = 0
    lost_to_attention: int = 0
    lost_to_states: int = 0
    lost_to_writing: int = 0
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
    evictions: int = 0
    blocks_held: int = 0
    blocks_idle: int = 0
    blocks_free: int = 0
    hit_tokens_by_group: tuple[int, ...] = ()

    @property
    def lost_tokens(self) -> int:
        """Tokens looked up and not served."""
        return self.prompt_tokens - self.hit_tokens
