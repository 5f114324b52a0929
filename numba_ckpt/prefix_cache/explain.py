"""Why a prefix was, or was not, found: one verdict for each boundary and group."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from numba_ckpt.prefix_cache.book import DECLINED, NO_BLOCKS, NOT_WORTH_IT
from numba_ckpt.prefix_cache.observer import UnkeptState
from numba_ckpt.prefix_cache.request import CachedRequest
from numba_ckpt.rules import (
    NULL_BLOCK_ID,
    checkpoint_col,
    floor_to,
    is_multiple,
)

if TYPE_CHECKING:
    from numba_ckpt.prefix_cache.manager import HybridPrefixCache

__all__ = ["BoundaryVerdict", "explain"]

Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class BoundaryVerdict:
    """What one group says of one boundary.

    Attributes
    ----------
    num_tokens : int
        The boundary, in tokens from the prompt's start.
    group : int
        Index of the cache group; -1 where no group is asked.
    verdict : str
        ``"hit"``, ``"being written"``, ``"evicted"``, ``"never stored"``, ``"unknown prefix"`` or ``"margin"``.
    reason : str
        More of it, in words.
    """

    num_tokens: int
    group: int
    verdict: str
    reason: str


def _why_not_kept(cache: "HybridPrefixCache", state: UnkeptState) -> str:
    why = {
        DECLINED: "the worker declined to write the checkpoint",
        NOT_WORTH_IT: "retention did not keep it",
        NO_BLOCKS: "the pool had no block left for the checkpoint",
    }
    return why.get(state.reason) or _why_invalid(cache, state)


def _why_invalid(cache: "HybridPrefixCache", state: UnkeptState) -> str:
    geometry = cache.config.geometry_of(cache.config.groups[state.group])
    start, end, position = state.start, state.end, state.position
    if geometry.checkpoint_alignment is None:
        return "alignment: the backend cannot export states"
    if not is_multiple(start, geometry.hash_block_size):
        return f"start {start} is not on the hash grid of {geometry.hash_block_size}"
    if checkpoint_col(end, geometry.state_block_size) * geometry.state_block_size < start:
        return f"no block-table column between the initial state's and the running one's for [{start}, {end})"
    if start + geometry.hash_block_size > position:
        return f"below one unit: it lies less than {geometry.hash_block_size} tokens after the start {start}"
    return f"alignment: offset {position - start} is no multiple of {geometry.checkpoint_alignment}"


def explain(cache: "HybridPrefixCache", request: CachedRequest) -> list[BoundaryVerdict]:
    """Say for each boundary of a prompt, longest first, what every group could serve and why not.

    Parameters
    ----------
    cache : HybridPrefixCache
        The cache to ask; nothing in it changes, and no counter moves.
    request : CachedRequest
        Added to the cache; looked up or not.

    Returns
    -------
    list of BoundaryVerdict
        Boundaries that no hit may reach first ("margin"), then one verdict for each group down to the longest
        boundary that all of them serve.

    Examples
    --------
    >>> from numba_ckpt.prefix_cache import CacheConfig, CacheGroup, HybridPrefixCache
    >>> groups = CacheGroup("full", 16), CacheGroup("state", 16, checkpoint_alignment=16)
    >>> cache = HybridPrefixCache(CacheConfig(groups, hash_block_size=16), num_blocks=64)
    >>> verdicts = explain(cache, cache.add("new", np.arange(40)))
    >>> [(v.num_tokens, v.group, v.verdict) for v in verdicts]
    [(32, 0, 'unknown prefix'), (32, 1, 'unknown prefix'), (16, 0, 'unknown prefix'), (16, 1, 'unknown prefix')]
    """
    last, step = request.last_boundary, cache.config.hit_step
    verdicts = [_margin(cache, position) for position in range(floor_to(request.num_tokens, step), last, -step)]
    for position in range(floor_to(last, step), 0, -step):
        asked = [_verdict(cache, request, (group, position)) for group in range(len(cache.config.groups))]
        verdicts += asked
        if all(verdict.verdict == "hit" for verdict in asked):
            break
    return verdicts


def _margin(cache: "HybridPrefixCache", position: int) -> BoundaryVerdict:
    why = "EAGLE margin: the last unit is given up" if cache.config.drop_eagle_block else "one token is left to compute"
    return BoundaryVerdict(position, -1, "margin", why)


def _verdict(cache: "HybridPrefixCache", request: CachedRequest, place: tuple[int, int]) -> BoundaryVerdict:
    group, position = place
    kind = cache.config.groups[group].kind
    first, second = request.keys[position // cache.config.hash_block_size - 1].tolist()
    if find_block_of(cache, (first, second, group)) != NULL_BLOCK_ID:
        return BoundaryVerdict(position, group, "hit", f"the {kind} group holds it")
    if kind == "state" and cache.observer.longest_pending(request, position - 1, position):
        return BoundaryVerdict(position, group, "being written", "a running step has not been committed")
    if (step := _eviction_step(cache, (first, second, group))) is not None:
        return BoundaryVerdict(position, group, "evicted", f"in step {step}")
    if states := cache.observer.unkept((first, second), group):
        return BoundaryVerdict(position, group, "never stored", _why_not_kept(cache, states[-1]))
    if kind == "state" and _is_known_to_attention(cache, request, position):
        return BoundaryVerdict(position, group, "never stored", "attention longer than state: no chunk left one here")
    why = "nobody computed these tokens with this salt"
    return BoundaryVerdict(position, group, "unknown prefix", why)


def _eviction_step(cache: "HybridPrefixCache", key: Key) -> int | None:
    evictions = cache.pool.arrays.evictions
    same = (evictions["key0"] == key[0]) & (evictions["key1"] == key[1]) & (evictions["group"] == key[2])
    same &= evictions["step"] > 0
    return int(evictions["step"][same].max()) if same.any() else None


def find_block_of(cache: "HybridPrefixCache", key: Key) -> int:
    """Return the block that a key leads to, or the null block."""
    first, second, group = key
    found = cache.pool.find(np.array([[first, second]], np.uint64), group)
    return int(found[0]) if found.size else NULL_BLOCK_ID


def _is_known_to_attention(cache: "HybridPrefixCache", request: CachedRequest, position: int) -> bool:
    key = request.keys[position // cache.config.hash_block_size - 1].tolist()
    attention = [group for group, spec in enumerate(cache.config.groups) if spec.kind != "state"]
    return any(find_block_of(cache, (*key, group)) != NULL_BLOCK_ID for group in attention)
