"""What became of each key of a prompt: the latest of all that a cache remembers."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from numba_ckpt.prefix_cache.book import DECLINED, GROUP, NO_BLOCKS, NOT_WORTH_IT
from numba_ckpt.prefix_cache.longest_hit import mark_keys
from numba_ckpt.prefix_cache.observer import UnkeptState, unkept_state
from numba_ckpt.prefix_cache.request import CachedRequest
from numba_ckpt.rules import checkpoint_col, checkpoint_position, is_multiple

if TYPE_CHECKING:
    from numba_ckpt.prefix_cache.manager import HybridPrefixCache

__all__ = ["Cause", "PrefixCauses"]


class Cause(NamedTuple):
    """Why a key leads to no block.

    Attributes
    ----------
    verdict : str
        ``"being written"``, ``"evicted"``, ``"reset"``, ``"never stored"`` or ``"unknown prefix"``.
    reason : str
        More of it, in words.
    """

    verdict: str
    reason: str


_WHY = {
    DECLINED: "the worker declined to write the checkpoint",
    NOT_WORTH_IT: "retention did not keep it",
    NO_BLOCKS: "the pool had no block left for the checkpoint",
}
_BEING_WRITTEN = Cause("being written", "a running step has not been committed")
_RESET = Cause("reset", "forgotten when the cache was reset")
_NO_STATE = Cause("never stored", "attention longer than state: no chunk left one here")
_UNKNOWN = Cause("unknown prefix", "nobody computed these tokens with this salt")
_FORGOTTEN = Cause("unknown prefix", "nobody computed these tokens with this salt, or too long ago to be remembered")


class PrefixCauses:
    """What became of the keys of one prompt, looked up once for all of them.

    Arrays are [units, groups], a unit being what a key stands for; an event is its number in the cache's life, -1 for
    none. Events of two kinds are ordered by the evictions before them.
    """

    def __init__(self, cache: "HybridPrefixCache", request: CachedRequest) -> None:
        self._cache, self._keys = cache, request.keys
        self._shape = len(request.keys), len(cache.config.groups)
        self._order = np.argsort(request.keys[:, 0])
        self._is_attention = np.array([group.kind != "state" for group in cache.config.groups])
        self.is_held = self._marks(cache.pool.words)
        self.is_pending = self._marks(cache.pending.words)
        self._find_evictions()
        self._unkept = cache.observer.unkept_rows()
        keys, groups = self._unkept[:, :GROUP].view(np.uint64), self._unkept[:, GROUP]
        self._unkept_at = self._latest(keys, groups, cache.observer.num_unkept)
        forgotten = cache.observer.last_reset.keys
        self._is_forgotten = self._latest(forgotten[:, :2], forgotten[:, 2].astype(np.int64), len(forgotten)) >= 0

    def _marks(self, words: np.ndarray) -> np.ndarray:
        marks = np.empty(self._shape, np.bool_)
        mark_keys(words, self._keys, marks)
        return marks

    def _find_evictions(self) -> None:
        ring, count = self._cache.pool.arrays.evictions, self._cache.pool.num_evicted
        self._evictions = np.roll(ring, -count) if count > len(ring) else ring[:count]
        keys = np.stack((self._evictions["key0"], self._evictions["key1"]), axis=1)
        self._evicted_at = self._latest(keys, self._evictions["group"], count)
        self._has_overflown = count > len(ring)

    def _latest(self, keys: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
        """Return the number of the latest event of each unit and group; `keys` are those of the last of `count`."""
        latest = np.full(self._shape, -1, np.int64)
        if len(keys) and len(self._order):
            places = np.searchsorted(self._keys[:, 0], keys[:, 0], sorter=self._order)
            units = self._order[np.minimum(places, len(self._order) - 1)]
            [same] = np.nonzero((self._keys[units] == keys).all(axis=1))
            # Of several events of a key the last assignment stays.
            latest[units[same], groups[same]] = same + (count - len(keys))
        return latest

    def of(self, unit: int, group: int) -> Cause:
        """Return why a group has no block for the prefix of `unit` + 1 hash blocks."""
        if self.is_pending[unit, group]:
            return _BEING_WRITTEN
        reset = self._cache.observer.last_reset
        evicted, unkept = int(self._evicted_at[unit, group]), int(self._unkept_at[unit, group])
        if evicted < reset.num_evicted and unkept < reset.num_unkept:
            # What is known of the key is older than the reset.
            return self._without_event(unit, group, max(evicted, unkept) >= 0 or bool(self._is_forgotten[unit, group]))
        state = unkept_state(self._unkept[unkept - self._num_lost]) if unkept >= reset.num_unkept else None
        if state is not None and state.num_evicted_before > evicted:
            return Cause("never stored", _why_not_kept(self._cache, state))
        step = int(self._evictions[evicted - self._cache.pool.num_evicted]["step"])
        return Cause("evicted", f"in step {step}")

    @property
    def _num_lost(self) -> int:
        return self._cache.observer.num_unkept - len(self._unkept)

    def _without_event(self, unit: int, group: int, is_forgotten: bool) -> Cause:
        if not self._is_attention[group]:
            evicted = self._evicted_at[unit] >= self._cache.observer.last_reset.num_evicted
            is_known = self.is_held[unit] | self.is_pending[unit] | evicted
            if (is_known & self._is_attention).any():
                return _NO_STATE
            is_forgotten |= bool((self._is_forgotten[unit] | (self._evicted_at[unit] >= 0)).any())
        if is_forgotten:
            return _RESET
        return _FORGOTTEN if self._has_overflown else _UNKNOWN


def _why_not_kept(cache: "HybridPrefixCache", state: UnkeptState) -> str:
    return _WHY.get(state.reason) or _why_not_asked(cache, state)


def _why_not_asked(cache: "HybridPrefixCache", state: UnkeptState) -> str:
    """Say why the chunk was given no checkpoint on the boundary; the order is that of `is_checkpoint_valid`."""
    geometry = cache.config.geometry_of(cache.config.groups[state.group])
    start, end, position = state.start, state.end, state.position
    unit, lookahead = geometry.cache_hit_alignment_tokens, geometry.num_hash_lookahead_tokens
    own = int(checkpoint_position(end, unit, geometry.drop_eagle_block, lookahead))
    if geometry.checkpoint_alignment is None:
        return "alignment: the backend cannot export states"
    if not is_multiple(start, geometry.hash_block_size):
        return f"start {start} is not on the hash grid of {geometry.hash_block_size}"
    if checkpoint_col(end, geometry.state_block_size) * geometry.state_block_size < start:
        return f"no block-table column between the initial state's and the running one's for [{start}, {end})"
    if own != position:
        return f"the chunk [{start}, {end}) runs past it, outputs included: its one checkpoint belongs on {own}"
    if start + geometry.hash_block_size > position:
        return f"below one unit: it lies less than {geometry.hash_block_size} tokens after the start {start}"
    return f"alignment: offset {position - start} is no multiple of {geometry.checkpoint_alignment}"
