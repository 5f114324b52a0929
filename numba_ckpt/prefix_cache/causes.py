"""What became of each key of a prompt: the latest of all that a cache remembers."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from numba_ckpt.cache.pool_calls import find_each_block
from numba_ckpt.prefix_cache.book import DECLINED, GROUP, NO_BLOCKS, NOT_WORTH_IT, NUM_EVICTED_BEFORE
from numba_ckpt.prefix_cache.observer import UnkeptState, unkept_state
from numba_ckpt.prefix_cache.request import CachedRequest
from numba_ckpt.rules import NULL_BLOCK_ID, checkpoint_col, checkpoint_position, is_multiple

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
_UNKNOWN, _RESET, _NO_STATE, _PENDING, _EVICTED, _UNKEPT = range(6)
_CAUSES = (
    Cause("unknown prefix", "nobody computed these tokens with this salt"),
    Cause("reset", "what was known of it was forgotten when the cache was reset"),
    Cause("never stored", "attention longer than state: no chunk left one here"),
    Cause("being written", "a running step has not been committed"),
)
_NO_STATE_LEFT = Cause("unknown prefix", "no state was left here; without attention nothing else tells of the tokens")
_TOO_LONG_AGO = Cause("unknown prefix", "nobody computed these tokens with this salt, or too long ago to be remembered")


class PrefixCauses:
    """What became of the keys of one prompt, looked up once for all of them.

    Arrays are [units, groups], a unit being what a key stands for. An event is its number in the cache's life, -1 for
    none; events of two kinds are ordered by how many keys had been evicted before.

    Attributes
    ----------
    is_held : ndarray
        bool, whether the key leads to a block.
    """

    def __init__(self, cache: "HybridPrefixCache", request: CachedRequest) -> None:
        self._cache, self._keys = cache, request.keys
        self._shape = len(request.keys), len(cache.config.groups)
        self._order = np.argsort(request.keys[:, 0])
        self.is_held = self._marks(cache.pool.words)
        self._evictions, self._num_evicted = cache.pool.arrays.evictions, cache.pool.num_evicted
        self._unkept, self._num_unkept = cache.observer.unkept_rows()
        self._codes = self._classify().tolist()

    def _marks(self, words: np.ndarray) -> np.ndarray:
        found = np.empty(self._shape[::-1], np.int32)
        for group, blocks in enumerate(found):
            find_each_block(words, self._keys, group, blocks)
        marks: np.ndarray = found.T != NULL_BLOCK_ID
        return marks

    def _latest(self, keys: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
        """Return the latest event of each unit and group; a ring has the last of `count`, keys uint64 [n, 2]."""
        latest = np.full(self._shape, -1, np.int64)
        if len(keys) and len(self._order):
            places = np.searchsorted(self._keys[:, 0], keys[:, 0], sorter=self._order)
            units = self._order[np.minimum(places, len(self._order) - 1)]
            [same] = np.nonzero((self._keys[units] == keys).all(axis=1))
            events = same + (count - 1 - same) // len(keys) * len(keys)
            np.maximum.at(latest, (units[same], groups[same]), events)
        return latest

    def _classify(self) -> np.ndarray:
        """Return a code for each unit and group: int64, of the causes above or of a kind of event."""
        num_evicted, num_unkept, reset = self._num_evicted, self._num_unkept, self._cache.observer.last_reset
        ring, rows = self._evictions[:num_evicted], self._unkept[:num_unkept]
        keys = np.stack((ring["key0"], ring["key1"]), axis=1)
        evicted = self._evicted_at = self._latest(keys, ring["group"], num_evicted)
        unkept = self._unkept_at = self._latest(rows[:, :GROUP].view(np.uint64), rows[:, GROUP], num_unkept)
        forgotten = self._latest(reset.keys[:, :2], reset.keys[:, 2].astype(np.int64), len(reset.keys)) >= 0
        is_old = forgotten | (evicted >= 0) | (unkept >= 0)
        is_pending = self._marks(self._cache.pending.words)
        is_known = self.is_held | is_pending | (evicted >= reset.num_evicted)
        attention = [group for group, spec in enumerate(self._cache.config.groups) if spec.kind != "state"]
        is_state = np.array([spec.kind == "state" for spec in self._cache.config.groups])
        codes = np.full(self._shape, _UNKNOWN)
        codes[is_old | (is_state & is_old[:, attention].any(axis=1, keepdims=True))] = _RESET
        codes[is_state & is_known[:, attention].any(axis=1, keepdims=True)] = _NO_STATE
        codes[evicted >= reset.num_evicted] = _EVICTED
        before = self._unkept[unkept % len(self._unkept), NUM_EVICTED_BEFORE]
        codes[(unkept >= reset.num_unkept) & (before > evicted)] = _UNKEPT
        codes[is_pending] = _PENDING
        return codes

    def of(self, unit: int, group: int) -> Cause:
        """Return why a group has no block for the prefix of `unit` + 1 hash blocks."""
        code = self._codes[unit][group]
        if code == _EVICTED:
            step = self._evictions[self._evicted_at[unit, group] % len(self._evictions)]["step"]
            return Cause("evicted", f"in step {step}")
        if code == _UNKEPT:
            state = unkept_state(self._unkept[self._unkept_at[unit, group] % len(self._unkept)])
            return Cause("never stored", _why_not_kept(self._cache, state))
        if code == _UNKNOWN and all(spec.kind == "state" for spec in self._cache.config.groups):
            return _NO_STATE_LEFT
        if code == _UNKNOWN and (self._num_evicted > len(self._evictions) or len(self._cache.observer.last_reset.keys)):
            return _TOO_LONG_AGO
        return _CAUSES[code]


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
