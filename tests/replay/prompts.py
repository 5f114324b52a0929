"""Prompts for tests, given as block ids and a length, and a slow oracle of what a replay of them hits."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from numba_ckpt.planning.reference import reference_checkpoint, reference_checkpoint_position
from numba_ckpt.prefix_cache import PrefillProgress, split_prefill
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.trace import TOKENS_PER_ID, TraceRequest

Prefix = tuple[tuple[int, int], ...]
"""The runs (id, tokens of it) that make up a prefix."""


def prompt(ids: Sequence[int], num_tokens: int | None = None) -> TraceRequest:
    """A request whose prompt is the first `num_tokens` tokens of these blocks; all of them by default."""
    num_tokens = TOKENS_PER_ID * len(ids) if num_tokens is None else num_tokens
    used = ids[: -(-num_tokens // TOKENS_PER_ID)]
    return TraceRequest(0.0, num_tokens, 0, np.array(used, np.int64))


def expected_hits(requests: Sequence[TraceRequest], options: ReplayOptions) -> list[int]:
    """Hit tokens of each request, served one after the other, with a pool that never evicts."""
    attention: set[Prefix] = set()
    states: set[Prefix] = set()
    hits = []
    for request in requests:
        hit, junction = _longest_hit(request, options, attention, states)
        hits.append(hit)
        proven, size = (junction, _last_boundary(request, options)), options.geometry.state_block_size
        kept = {*proven, *(position - position % size for position in proven)}
        for position in _stored_positions(hit, junction, request, options):
            if position in kept or (options.retention.interval and position % options.retention.interval == 0):
                states.add(_prefix(request, position))
        block = options.attention_block_size
        attention |= {_prefix(request, at) for at in range(block, request.num_input_tokens + 1, block)}
    return hits


def _prefix(request: TraceRequest, position: int) -> Prefix:
    whole, rest = divmod(position, TOKENS_PER_ID)
    ids = request.block_ids.tolist()
    runs = [(name, TOKENS_PER_ID) for name in ids[:whole]]
    return tuple(runs + [(name, rest) for name in ids[whole : whole + 1] if rest])


def _last_boundary(request: TraceRequest, options: ReplayOptions) -> int:
    geometry = options.geometry
    last = reference_checkpoint_position(
        request.num_input_tokens,
        geometry.cache_hit_alignment_tokens,
        geometry.drop_eagle_block,
        geometry.num_hash_lookahead_tokens,
    )
    return last - last % geometry.hash_block_size


def _longest_hit(
    request: TraceRequest, options: ReplayOptions, attention: set[Prefix], states: set[Prefix]
) -> tuple[int, int]:
    """The hit, and how far attention goes beyond it; 0 if it does not."""
    block, limit = options.attention_block_size, _last_boundary(request, options)
    # With the EAGLE drop, the unit after a hit has to be known too.
    margin = options.geometry.cache_hit_alignment_tokens if options.geometry.drop_eagle_block else 0
    known, most = 0, min(limit + margin, request.num_input_tokens)
    while known + block <= most and _prefix(request, known + block) in attention:
        known += block
    step = math.lcm(block, options.geometry.cache_hit_alignment_tokens)
    known = max(min(known - margin, limit), 0)
    longest = known - known % step
    hit = max((at for at in range(step, longest + 1, step) if _prefix(request, at) in states), default=0)
    return hit, longest if longest > hit else 0


def _stored_positions(start: int, junction: int, request: TraceRequest, options: ReplayOptions) -> Iterator[int]:
    geometry, num_tokens, policy = options.geometry, request.num_input_tokens, options.split_policy()
    while start < num_tokens:
        shared = junction if options.junction != "none" else 0
        wish = min(num_tokens - start, policy.max_chunk_tokens)
        end = start + split_prefill(PrefillProgress(start, num_tokens, num_tokens, shared), wish, policy)
        offset, _ = reference_checkpoint(end, end - start, geometry)
        if offset:
            yield start + offset
        if end % geometry.cache_hit_alignment_tokens == 0:
            yield end
        start = end
