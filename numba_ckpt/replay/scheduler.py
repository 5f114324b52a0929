"""Which tokens the next step computes: requests in trace order, cut into chunks that fit the budget.

A chunk ends where its prompt ends, or on the state-block grid::

    |=== hit ===|-- chunk, step 7 --|-- chunk, step 8 --|- last chunk -.
    0        start                 end                  end          prompt's end
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.prefix_cache import PrefixIndex, PrefixKeys
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.trace import TOKENS_PER_ID, TraceRequest
from numba_ckpt.rules import NULL_BLOCK_ID, checkpoint_position, floor_to

__all__ = ["ActiveRequest", "Chunk", "ChunkScheduler", "hit_candidates"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, end) of a prompt, computed in one step; `checkpoint` is the position of a state inside, or 0."""

    step: int
    start: int
    end: int
    checkpoint: int


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request being prefilled.

    Attributes
    ----------
    number : int
        Place in the trace, from 0.
    request : TraceRequest
        Its prompt.
    keys : PrefixKeys
        Identities of its prefixes.
    num_hit_tokens : int
        Tokens that a stored state spared it.
    num_computed_tokens : int
        Tokens behind the state that its next chunk starts from.
    block : int
        Block with that state, held; the null block before the first token.
    chunks : list of Chunk
        What has been computed so far.
    """

    number: int
    request: TraceRequest
    keys: PrefixKeys
    num_hit_tokens: int = 0
    num_computed_tokens: int = 0
    block: int = NULL_BLOCK_ID
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.request.num_input_tokens

    @property
    def is_done(self) -> bool:
        """Whether the whole prompt has been computed."""
        return self.num_computed_tokens == self.num_tokens


def hit_candidates(num_tokens: int, geometry: CheckpointGeometry) -> range:
    """Return the positions at which a prompt of `num_tokens` may resume, longest first.

    The longest is where its own checkpoint would lie: both leave what has to be computed again.

    Examples
    --------
    >>> list(hit_candidates(1600, CheckpointGeometry(512, 512, 512, checkpoint_alignment=16)))
    [1536, 1024, 512]
    """
    unit = geometry.cache_hit_alignment_tokens
    last = checkpoint_position(num_tokens, unit, geometry.drop_eagle_block, geometry.num_hash_lookahead_tokens)
    return range(int(last), 0, -unit)


class ChunkScheduler:
    """Hands out the rows of each step.

    Parameters
    ----------
    requests : sequence of TraceRequest
        In the order in which they are served.
    index : PrefixIndex
        Where requests find the state they resume from, at the moment they are admitted.
    options : ReplayOptions
        Geometry, budget and the largest number of rows.
    """

    def __init__(self, requests: Sequence[TraceRequest], index: PrefixIndex, options: ReplayOptions) -> None:
        self._waiting = deque(enumerate(requests))
        self._active: list[ActiveRequest] = []
        self._index = index
        self._options = options

    def next_rows(self) -> list[tuple[ActiveRequest, int]]:
        """Return the requests of the next step, each with the end of its chunk; empty when all are done."""
        self._active = [active for active in self._active if not active.is_done]
        budget = self._options.budget_tokens
        rows: list[tuple[ActiveRequest, int]] = []
        for active in self._candidates():
            # At least a state block of budget is left here, so that the chunk reaches the next boundary: never empty.
            end = self._chunk_end(active, budget)
            rows.append((active, end))
            budget -= end - active.num_computed_tokens
            if len(rows) == self._options.max_rows or budget < self._options.geometry.state_block_size:
                break
        return rows

    def _candidates(self) -> Iterable[ActiveRequest]:
        yield from list(self._active)
        while self._waiting:
            yield self._admit(*self._waiting.popleft())

    def _admit(self, number: int, request: TraceRequest) -> ActiveRequest:
        active = ActiveRequest(number, request, PrefixKeys(request.block_ids, TOKENS_PER_ID))
        positions = hit_candidates(request.num_input_tokens, self._options.geometry)
        hit = self._index.acquire_longest(map(active.keys.at, positions))
        if hit is not None:
            place, active.block = hit
            active.num_hit_tokens = active.num_computed_tokens = positions[place]
        self._active.append(active)
        return active

    def _chunk_end(self, active: ActiveRequest, budget: int) -> int:
        limit = active.num_computed_tokens + budget
        if limit >= active.num_tokens:
            return active.num_tokens
        return floor_to(limit, self._options.geometry.state_block_size)
