"""Why a prefix was, or was not, found: one verdict for each boundary and group."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from numba_ckpt.prefix_cache.causes import Cause, PrefixCauses
from numba_ckpt.prefix_cache.checks import check_known
from numba_ckpt.prefix_cache.groups import CacheConfig
from numba_ckpt.prefix_cache.longest_hit import find_holes
from numba_ckpt.prefix_cache.request import CachedRequest
from numba_ckpt.rules import floor_to

if TYPE_CHECKING:
    from numba_ckpt.prefix_cache.manager import HybridPrefixCache

__all__ = ["BoundaryVerdict", "explain"]


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
        ``"hit"``, ``"margin"`` (what is left to compute, or has to be known beyond the boundary), or what became of
        the block that is missing: ``"being written"``, ``"evicted"``, ``"reset"``, ``"never stored"``, ``"unknown
        prefix"``. The latest cause wins.
    reason : str
        More of it, in words. It names the block's end where that is not the boundary.
    """

    num_tokens: int
    group: int
    verdict: str
    reason: str


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
        boundary that all of them serve, which is what `HybridPrefixCache.look_up` finds. Linear in the prompt.

    Examples
    --------
    >>> from numba_ckpt.prefix_cache import CacheConfig, CacheGroup, HybridPrefixCache
    >>> groups = CacheGroup("full", 16), CacheGroup("state", 16, checkpoint_alignment=16)
    >>> cache = HybridPrefixCache(CacheConfig(groups, hash_block_size=16), num_blocks=64)
    >>> verdicts = explain(cache, cache.add("new", np.arange(40)))
    >>> [(v.num_tokens, v.group, v.verdict) for v in verdicts]
    [(32, 0, 'unknown prefix'), (32, 1, 'unknown prefix'), (16, 0, 'unknown prefix'), (16, 1, 'unknown prefix')]
    """
    check_known(cache._requests, request)
    last, step = request.last_boundary, cache.config.hit_step
    holes = np.zeros((last // step, len(cache.config.groups)), np.int64)
    words = cache.pool.words, cache.observer.words
    hit = find_holes(*words, request.keys, last, holes)
    verdicts = [
        _margin(cache.config, request, p) for p in range(floor_to(request.num_prompt_tokens, step), last, -step)
    ]
    explainer = _Explainer(cache, request)
    for position in range(floor_to(last, step), max(hit, step) - step, -step):
        asked = enumerate(holes[position // step - 1].tolist())
        verdicts += [explainer.verdict(position, group, hole) for group, hole in asked]
    return verdicts


def _margin(config: CacheConfig, request: CachedRequest, position: int) -> BoundaryVerdict:
    lookahead = config.num_hash_lookahead_tokens
    if config.drop_eagle_block:
        why = "EAGLE margin: the last unit is given up"
    elif lookahead > 1:
        why = f"minimum lookahead: a boundary's hash needs {lookahead} tokens after it"
    else:
        why = "one token is left to compute"
    return BoundaryVerdict(position, -1, "margin", why)


class _Explainer:
    """Verdicts of one prompt; a block that many boundaries lack is looked into once."""

    def __init__(self, cache: "HybridPrefixCache", request: CachedRequest) -> None:
        self._groups, self._unit = cache.config.groups, cache.config.hash_block_size
        self._causes, self._num_units = PrefixCauses(cache, request), len(request.keys)
        self._found: dict[tuple[int, int], Cause] = {}

    def verdict(self, position: int, group: int, hole: int) -> BoundaryVerdict:
        """Return what a group says of a boundary; `hole` is where the block ends that it lacks, 0 if it lacks none."""
        if not hole:
            return BoundaryVerdict(position, group, "hit", self._why_hit(position, group))
        if hole > self._num_units * self._unit:
            why = f"EAGLE margin: the token after it is known by a block that ends on {hole}, beyond the prompt"
            return BoundaryVerdict(position, group, "margin", why)
        verdict, reason = self._cause(group, hole)
        if hole > position:
            why = f"EAGLE margin: the token after it is known by the block that ends on {hole}: {verdict}, {reason}"
            return BoundaryVerdict(position, group, "margin", why)
        where = f"the block that ends on {hole}: " if hole < position else ""
        return BoundaryVerdict(position, group, verdict, where + reason)

    def _why_hit(self, position: int, group: int) -> str:
        is_held = self._causes.is_held[position // self._unit - 1, group]
        return f"the {self._groups[group].kind} group {'holds it' if is_held else 'needs nothing here'}"

    def _cause(self, group: int, hole: int) -> Cause:
        if (group, hole) not in self._found:
            self._found[group, hole] = self._causes.of(hole // self._unit - 1, group)
        return self._found[group, hole]
