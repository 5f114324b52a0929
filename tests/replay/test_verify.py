import re

import numpy as np
import pytest

from numba_ckpt.errors import VerificationError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.replay.engine import ReplayEngine
from numba_ckpt.replay.model import CHANNELS, STATE_SHAPE, LayerModel
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.verify import Verifier
from tests.replay.prompts import prompt

REQUESTS = [prompt([1, 2], 1000), prompt([1, 2, 3], 1300)]
HIT = 992


def _engine(**options: int) -> ReplayEngine:
    geometry = CheckpointGeometry(16, 64, 16, checkpoint_alignment=16)
    return ReplayEngine(
        REQUESTS, ReplayOptions(geometry, **({"num_blocks": 256, "max_running": 1, "verify_sample": 8} | options))
    )


def _after_export(engine: ReplayEngine, monkeypatch, damage) -> None:
    """Call `damage(blocks)` with the blocks of each export, after it."""
    export = engine.store.export

    def export_and_damage(checkpoint, *arguments):
        export(checkpoint, *arguments)
        damage([block for block in checkpoint.state_indices.tolist() if block])

    monkeypatch.setattr(engine.store, "export", export_and_damage)


def test_sound_states_pass():
    assert _engine().run().counts.verified_requests == 1


@pytest.mark.parametrize(("array", "kind"), [("windows", "convolution window"), ("states", "recurrent state")])
def test_one_wrong_bit_in_a_stored_state_is_caught(monkeypatch, array, kind):
    engine = _engine()

    def flip(blocks):
        getattr(engine.store, array).reshape(256, -1).view(np.uint32)[blocks, 7] ^= 1

    _after_export(engine, monkeypatch, flip)
    expected = re.escape(f"request 1: expected the {kind} it resumed from at token {HIT} to equal")
    with pytest.raises(VerificationError, match=expected + ".* 1 of .* elements that differ"):
        engine.run()


def test_a_state_that_was_reserved_but_not_written_is_caught(monkeypatch):
    engine = _engine()
    monkeypatch.setattr(engine.store, "export", lambda *arguments: None)
    with pytest.raises(VerificationError, match=r"nan"):
        engine.run()


def test_a_state_of_other_tokens_is_caught(monkeypatch):
    engine = _engine()

    def swap(blocks):
        engine.store.states[blocks] = engine.store.states[blocks][:, :, ::-1].copy()

    _after_export(engine, monkeypatch, swap)
    with pytest.raises(VerificationError, match="recurrent state it resumed from"):
        engine.run()


def test_a_wrong_state_written_by_a_resumed_request_is_caught(monkeypatch):
    engine = _engine()

    def damage(blocks):
        # The last step is the resumed request's only one.
        if engine._result.counts.resumed_requests:
            engine.store.states[blocks] += 1

    _after_export(engine, monkeypatch, damage)
    with pytest.raises(VerificationError, match="request 1: expected the recurrent state it wrote at token 1"):
        engine.run()


@pytest.mark.parametrize("num_tokens", [4096, 32768])
def test_the_layer_does_not_forget(num_tokens):
    """Else a wrong start of an early chunk would have gone from the states that are compared."""
    model, tokens = LayerModel(0), np.empty((num_tokens, CHANNELS), np.float32)
    model.embed(np.arange(num_tokens), tokens)
    starts, zeros = np.array([0, num_tokens]), np.zeros((1, *STATE_SHAPE), np.float32)
    sound, damaged = (model.prefill(tokens, starts, None, zeros + start).final_states for start in (0, 1e-3))
    assert (sound != damaged).mean() > 0.9


def test_an_earlier_chunk_that_started_from_a_wrong_state_is_caught(monkeypatch):
    engine = _engine(budget_tokens=512)
    prefill, starts = engine._worker.model.prefill, []

    def prefill_from_zeros(tokens, query_start_loc, windows=None, states=None, *arguments, **checkpoints):
        starts.append(states)
        if len(starts) == 2:  # the second chunk of the request that is resumed later
            states[:] = 0
        return prefill(tokens, query_start_loc, windows, states, *arguments, **checkpoints)

    monkeypatch.setattr(engine._worker.model, "prefill", prefill_from_zeros)
    with pytest.raises(VerificationError, match="request 1: expected the recurrent state it resumed from"):
        engine.run()


def test_a_planner_that_disagrees_with_the_scheduler_is_caught():
    engine = _engine()
    engine._worker._geometry = CheckpointGeometry(16, 64, 16, checkpoint_alignment=None)
    expected = r"request 0: expected a checkpoint at offset 992 of its chunk \[0, 1000\), got 0 from the planner"
    with pytest.raises(VerificationError, match=expected):
        engine.run()


def test_a_stored_state_goes_on_in_a_copy(monkeypatch):
    # The second prompt resumes at 992 and goes on to 1008, in the same block-table column.
    requests = [REQUESTS[0], prompt([1, 2], 1010)]
    engine = ReplayEngine(requests, _engine().options)
    assert engine.run().counts.verified_requests == 1
    engine = ReplayEngine(requests, _engine().options)
    monkeypatch.setattr(engine.store, "copy", lambda sources, destinations: None)
    with pytest.raises(VerificationError, match="request 1: expected the convolution window it resumed from"):
        engine.run()


def test_without_a_sample_nothing_is_compared(monkeypatch):
    engine = _engine(verify_sample=0)
    monkeypatch.setattr(engine.store, "export", lambda *arguments: None)
    assert engine.run().counts.verified_requests == 0


def _chosen(sample: int, seed: int) -> set[int]:
    verifier = Verifier(sample, seed)
    for number in range(40):
        verifier.consider(number)
    return {number for number in range(40) if verifier.wants(number)}


def test_a_sample_is_seeded_and_of_the_size_asked_for():
    assert len(_chosen(5, 0)) == 5
    assert _chosen(5, 0) == _chosen(5, 0) != _chosen(5, 1)
    assert _chosen(0, 0) == set()
    assert _chosen(40, 0) == set(range(40))


def test_a_sample_is_uniform():
    counts = np.zeros(40)
    for seed in range(400):
        counts[list(_chosen(10, seed))] += 1
    assert counts.mean() == 100
    assert counts.min() > 60
    assert counts.max() < 140
