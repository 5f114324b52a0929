"""Prompts for tests, given as block ids and a length, and a slow oracle of what a replay of them hits."""

from collections.abc import Iterator, Sequence

import numpy as np

from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.planning.reference import reference_checkpoint, reference_checkpoint_position
from numba_ckpt.replay.trace import TOKENS_PER_ID, TraceRequest


def prompt(ids: Sequence[int], num_tokens: int | None = None) -> TraceRequest:
    """A request whose prompt is the first `num_tokens` tokens of these blocks; all of them by default."""
    num_tokens = TOKENS_PER_ID * len(ids) if num_tokens is None else num_tokens
    used = ids[: -(-num_tokens // TOKENS_PER_ID)]
    return TraceRequest(0.0, num_tokens, 0, np.array(used, np.int64))


def expected_hits(requests: Sequence[TraceRequest], geometry: CheckpointGeometry, budget: int) -> list[int]:
    """Hit tokens of each request, served one after the other, with a pool that never evicts."""
    stored: set[tuple[tuple[int, int], ...]] = set()
    hits = []
    for request in requests:
        hit = _longest_hit(request, geometry, stored)
        hits.append(hit)
        for position in _stored_positions(hit, request.num_input_tokens, geometry, budget):
            if position % geometry.cache_hit_alignment_tokens == 0:
                stored.add(_prefix(request, position))
    return hits


def _prefix(request: TraceRequest, position: int) -> tuple[tuple[int, int], ...]:
    """The runs (id, tokens of it) that make up the first `position` tokens."""
    whole, rest = divmod(position, TOKENS_PER_ID)
    ids = request.block_ids.tolist()
    runs = [(name, TOKENS_PER_ID) for name in ids[:whole]]
    return tuple(runs + [(name, rest) for name in ids[whole : whole + 1] if rest])


def _longest_hit(request: TraceRequest, geometry: CheckpointGeometry, stored: set) -> int:
    unit = geometry.cache_hit_alignment_tokens
    last = reference_checkpoint_position(
        request.num_input_tokens, unit, geometry.drop_eagle_block, geometry.num_hash_lookahead_tokens
    )
    return max((at for at in range(unit, last + 1, unit) if _prefix(request, at) in stored), default=0)


def _stored_positions(start: int, num_tokens: int, geometry: CheckpointGeometry, budget: int) -> Iterator[int]:
    while start < num_tokens:
        end = start + budget
        end = num_tokens if end >= num_tokens else end - end % geometry.state_block_size
        offset, _ = reference_checkpoint(end, end - start, geometry)
        if offset:
            yield start + offset
        yield end
        start = end
