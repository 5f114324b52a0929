"""How many tokens the next chunk of a prefill gets, so that its states lie where the prefix cache can use them."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._check import check_bool, check_int, refuse
from numba_ckpt._jit import host_loop
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.rules import chunk_end, prefill_end

__all__ = ["PrefillProgress", "SplitPolicy", "split_prefill", "split_tokens"]

_REFUSED = -1
_LENGTH_BITS = 62
_LONGEST = 2**_LENGTH_BITS - 1


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """What decides where the chunks of all prefills end; checked once, when made.

    Parameters
    ----------
    geometry : CheckpointGeometry
        The sizes that the worker's planner uses too, so that a stop is spared only where the worker writes a state.
        With `checkpoint_alignment` None no stop is ever spared.
    max_num_scheduled_tokens : int
        Token budget of a step, 1 to 2^31 - 1.
    long_prefill_token_threshold : int, optional
        Tokens that one prefill may take of a step, 1 to 2^31 - 1; None sets no limit besides the budget. Both only
        say here whether a chunk can ever be as long as a state block; the scheduler applies them to what it asks for.
    exact_junction : bool
        Whether a chunk stops on the very token of a junction inside its prompt, instead of on the last whole state
        block before it. For caches that can serve a state at any token, or know that the junction is a boundary.

    Raises
    ------
    ArgumentError
        A size is out of range.
    ArgumentTypeError
        The geometry is none, a size is no integer, or the switch no bool.

    Examples
    --------
    >>> geometry = CheckpointGeometry(16, 2048, 16, checkpoint_alignment=None)
    >>> SplitPolicy(geometry, max_num_scheduled_tokens=8192, long_prefill_token_threshold=4096).max_chunk_tokens
    4096
    """

    geometry: CheckpointGeometry
    max_num_scheduled_tokens: int
    long_prefill_token_threshold: int | None = None
    exact_junction: bool = False
    # What `split_tokens` reads: the geometry's `params`, the longest chunk, the switch.
    params: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.geometry, CheckpointGeometry):
            got = type(self.geometry).__name__
            refuse("geometry", "a CheckpointGeometry", got, "make one from the block sizes", ArgumentTypeError)
        budget = check_int("max_num_scheduled_tokens", self.max_num_scheduled_tokens, 1)
        object.__setattr__(self, "max_num_scheduled_tokens", budget)
        if self.long_prefill_token_threshold is not None:
            threshold = check_int("long_prefill_token_threshold", self.long_prefill_token_threshold, 1)
            object.__setattr__(self, "long_prefill_token_threshold", threshold)
        object.__setattr__(self, "exact_junction", check_bool("exact_junction", self.exact_junction))
        own = [self.max_chunk_tokens, self.exact_junction]
        object.__setattr__(self, "params", np.append(self.geometry.params, np.array(own, np.int64)))

    @property
    def max_chunk_tokens(self) -> int:
        """Tokens of the longest chunk that a step can have."""
        threshold = self.long_prefill_token_threshold
        return self.max_num_scheduled_tokens if threshold is None else min(self.max_num_scheduled_tokens, threshold)


class PrefillProgress(NamedTuple):
    """How far a request is; all in tokens.

    Attributes
    ----------
    num_computed_tokens : int
        Tokens before the chunk: computed earlier, hit in the cache, or loaded from elsewhere.
    num_prompt_tokens : int
        Tokens of the prompt, at least 1.
    num_tokens : int
        The prompt's and all outputs so far; a resumed request replays these.
    shared_prefix_boundary : int
        The *junction*: how far an earlier prompt had the same tokens, at most `num_tokens`; 0 where none is known.
    """

    num_computed_tokens: int
    num_prompt_tokens: int
    num_tokens: int
    shared_prefix_boundary: int = 0


@host_loop
def split_tokens(params, num_computed_tokens, num_prompt_tokens, num_tokens, junction, num_new_tokens):  # type: ignore[no-untyped-def]
    """Split as `split_prefill` does, in compiled code: `SplitPolicy.params`, the fields of `PrefillProgress`, the wish.

    Returns -1, and never raises, where `split_prefill` would raise.

    Examples
    --------
    >>> policy = SplitPolicy(CheckpointGeometry(16, 2048, 16, checkpoint_alignment=None), 8192)
    >>> split_tokens(policy.params, 0, 5000, 5000, 0, 5000), split_tokens(policy.params, 0, 5000, 5000, 0, 5001)
    (4096, -1)
    """
    bits = num_computed_tokens | num_prompt_tokens | num_tokens | junction | num_new_tokens
    if (bits >> _LENGTH_BITS) or num_prompt_tokens < 1 or max(num_prompt_tokens, junction) > num_tokens:
        return _REFUSED
    end = num_computed_tokens + num_new_tokens
    if end > num_tokens and num_computed_tokens < prefill_end(num_prompt_tokens, num_tokens):
        return _REFUSED
    stop = chunk_end(
        num_computed_tokens,
        end,
        num_prompt_tokens,
        num_tokens,
        junction,
        params[0],
        params[1],
        params[2],
        params[3],
        params[4] != 0,
        params[5],
        params[6],
        params[7] != 0,
    )
    return stop - num_computed_tokens


def _check_relations(progress: PrefillProgress, num_new_tokens: int) -> None:
    computed, prompt, total, junction = progress
    for name, value, limit in (
        ("num_prompt_tokens", prompt, total),
        ("shared_prefix_boundary", junction, total),
        ("num_new_tokens", num_new_tokens, total - computed if computed < prefill_end(prompt, total) else _LONGEST),
    ):
        if value > limit:
            got = f"{value} with num_computed_tokens {computed} and num_tokens {total}"
            refuse(name, f"at most {limit}", got, "num_tokens counts the prompt and all outputs so far")


def _split_checked(progress: Any, num_new_tokens: Any, policy: Any) -> int:
    """Split what the fast path does not take (other kinds of integers), or say what is wrong."""
    for name, value, kind in (("progress", progress, PrefillProgress), ("policy", policy, SplitPolicy)):
        if not isinstance(value, kind):
            refuse(name, f"a {kind.__name__}", type(value).__name__, f"make a {kind.__name__}", ArgumentTypeError)
    names = PrefillProgress._fields
    fields = [
        check_int(name, value, int("prompt" in name), _LONGEST) for name, value in zip(names, progress, strict=True)
    ]
    asked = check_int("num_new_tokens", num_new_tokens, 0, _LONGEST)
    checked = PrefillProgress(*fields)
    _check_relations(checked, asked)
    return int(split_tokens(policy.params, *checked, asked))


def split_prefill(progress: PrefillProgress, num_new_tokens: int, policy: SplitPolicy) -> int:
    """Return how many of the tokens that a scheduler would give a request its next chunk gets.

    Parameters
    ----------
    progress : PrefillProgress
        How far the request is.
    num_new_tokens : int
        Tokens that the scheduler would compute next: what the prefill still needs, within the step's budget.
    policy : SplitPolicy
        Sizes and switches, the same for all requests.

    Returns
    -------
    int
        In [0, `num_new_tokens`]. 0 means that the chunk would end before the first boundary and has to wait for a step
        with more room; asked for as much as a step can give, it is never 0. Once the prefill is over, all that was
        asked for.

    Raises
    ------
    ArgumentError
        A length is negative, the prompt or the junction is longer than the request, or more tokens are asked for than
        the prefill has left.
    ArgumentTypeError
        A length is no integer, or a record of another type.

    Notes
    -----
    A chunk that would run past a boundary worth keeping stops there, so that its final state is the boundary's::

        start             block    junction       last block     tail  prompt's end
          |------------|-----v-----|---v-------|-----v-----|-------v---.

    A chunk that finishes the prefill is spared the stops for blocks and tail if it can export a state on the way. The
    pieces are in `numba_ckpt.rules.chunk_split`. A chunk that a junction cuts short is spared them all the same, though
    it finishes nothing then. Behaviour follows vLLM's Mamba block-aligned split.

    Examples
    --------
    >>> geometry = CheckpointGeometry(16, 2048, 16, checkpoint_alignment=None)
    >>> policy = SplitPolicy(geometry, max_num_scheduled_tokens=8192)
    >>> ends, end = [], 0
    >>> while end < 5000:
    ...     end += split_prefill(PrefillProgress(end, 5000, 5000), 5000 - end, policy)
    ...     ends.append(end)
    >>> ends  # the last whole block, the prompt's tail, the prompt
    [4096, 4992, 5000]

    A backend that exports states needs one chunk:

    >>> exporting = SplitPolicy(CheckpointGeometry(16, 2048, 16, checkpoint_alignment=16), 8192)
    >>> split_prefill(PrefillProgress(0, 5000, 5000), 5000, exporting)
    5000
    """
    if type(progress) is PrefillProgress and type(policy) is SplitPolicy:
        computed, prompt, total, junction = progress
        # The compiled function would take a float and be compiled for it.
        if int is type(computed) is type(prompt) is type(total) is type(junction) is type(num_new_tokens):
            try:
                num_tokens: int = split_tokens(policy.params, computed, prompt, total, junction, num_new_tokens)
            except OverflowError:
                num_tokens = _REFUSED
            if num_tokens >= 0:
                return num_tokens
    return _split_checked(progress, num_new_tokens, policy)
