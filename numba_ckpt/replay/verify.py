"""Recompute a sample of resumed requests from scratch, and compare every state they read or wrote."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from numba_ckpt.errors import VerificationError
from numba_ckpt.replay.model import CHANNELS, STATE_LEN, LayerModel
from numba_ckpt.replay.trace import TraceRequest, output_tokens, prompt_tokens

__all__ = ["Verifier"]


class _Snapshot(NamedTuple):
    what: str
    position: int
    window: np.ndarray
    state: np.ndarray


class Verifier:
    """Keeps the states of a uniform sample of the resumed requests until they are checked.

    Parameters
    ----------
    sample : int
        Requests to keep; 0 keeps none.
    seed : int
        Seed of the sample.
    """

    def __init__(self, sample: int, seed: int) -> None:
        self._sample = sample
        self._rng = np.random.default_rng(seed)
        self._considered: set[int] = set()
        self._snapshots: dict[int, list[_Snapshot]] = {}

    def consider(self, number: int) -> None:
        """Take a resumed request into the sample, in place of another one once it is full, or leave it; only once."""
        if number in self._considered:
            return
        self._considered.add(number)
        if len(self._snapshots) >= self._sample:
            # Reservoir sampling: the k-th candidate stays with probability sample / k.
            place = int(self._rng.integers(len(self._considered)))
            if place >= self._sample:
                return
            del self._snapshots[list(self._snapshots)[place]]
        self._snapshots[number] = []

    def wants(self, number: int) -> bool:
        """Say whether this request is in the sample."""
        return number in self._snapshots

    def record(self, number: int, what: str, position: int, window: np.ndarray, state: np.ndarray) -> None:
        """Keep a state that a sampled request read or wrote, which the first `position` tokens must have led to."""
        self._snapshots[number].append(_Snapshot(what, position, window.copy(), state.copy()))

    def check(self, requests: Sequence[TraceRequest], model: LayerModel) -> int:
        """Recompute the sample.

        Returns
        -------
        int
            Requests found equal.

        Raises
        ------
        VerificationError
            A window or a state differs in any bit.
        """
        for number, snapshots in sorted(self._snapshots.items()):
            _check_request(number, requests[number], snapshots, model)
        return len(self._snapshots)


def _check_request(number: int, request: TraceRequest, snapshots: list[_Snapshot], model: LayerModel) -> None:
    num_outputs = max(0, max(snapshot.position for snapshot in snapshots) - request.num_input_tokens)
    ids = np.concatenate((prompt_tokens(request), output_tokens(number, num_outputs)))
    tokens = np.zeros((STATE_LEN + ids.size, CHANNELS), np.float32)
    model.embed(ids, tokens[STATE_LEN:])
    cold = model.prefill(
        tokens[STATE_LEN:],
        np.array([0, ids.size]),
        checkpoint_offsets=np.array([snapshot.position for snapshot in snapshots]),
        checkpoint_rows=np.zeros(len(snapshots), np.int64),
    )
    for snapshot, state in zip(snapshots, cold.checkpoint_states, strict=True):
        # Zeros stand before the prompt, so the window before position p begins at row p of `tokens`.
        window = tokens[snapshot.position : snapshot.position + STATE_LEN]
        _compare(number, snapshot, "convolution window", snapshot.window, window)
        _compare(number, snapshot, "recurrent state", snapshot.state, state)


def _compare(number: int, snapshot: _Snapshot, kind: str, stored: np.ndarray, cold: np.ndarray) -> None:
    differs = stored.view(np.uint32) != cold.view(np.uint32)
    if differs.any():
        first = tuple(int(axis[0]) for axis in np.nonzero(differs))
        raise VerificationError(
            f"request {number}: expected the {kind} it {snapshot.what} at token {snapshot.position} to equal the one "
            f"computed from scratch, got {int(differs.sum())} of {differs.size} elements that differ "
            f"(element {first}: {stored[first]!r} instead of {cold[first]!r}); the cache served or stored a wrong state"
        )
