import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError, MissingDependencyError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.replay.engine import ReplayEngine
from numba_ckpt.replay.generate import generate_trace
from numba_ckpt.replay.options import ReplayOptions
from tests.replay.prompts import expected_hits, prompt

GEOMETRY = CheckpointGeometry(16, 64, 16, checkpoint_alignment=16)
ALL = 1000


def _hits(engine: ReplayEngine) -> list[int]:
    timelines = sorted(engine.run().timelines, key=lambda timeline: timeline.number)
    engine.index.check_integrity()
    return [timeline.num_hit_tokens for timeline in timelines]


def _options(geometry: CheckpointGeometry = GEOMETRY, **changes: int) -> ReplayOptions:
    defaults = {"num_blocks": 4096, "budget_tokens": 512, "max_rows": 1, "verify_sample": ALL}
    return ReplayOptions(geometry, **(defaults | changes))


PROMPTS = st.builds(
    prompt, st.lists(st.integers(0, 2), min_size=3, max_size=3), st.integers(1, 3 * 512) | st.sampled_from([512, 1024])
)
GEOMETRIES = st.builds(
    CheckpointGeometry,
    st.sampled_from([16, 32]),
    st.sampled_from([32, 64, 96, 512]),
    st.sampled_from([16, 32, 64]),
    checkpoint_alignment=st.sampled_from([None, 8, 16, 64]),
    drop_eagle_block=st.booleans(),
    num_hash_lookahead_tokens=st.integers(0, 3),
)


@settings(max_examples=200)
@given(st.lists(PROMPTS, min_size=1, max_size=8), GEOMETRIES, st.sampled_from([512, 700, 2048]))
def test_hits_are_those_of_the_oracle_and_verified(requests, geometry, budget):
    engine = ReplayEngine(requests, _options(geometry, budget_tokens=budget))
    assert _hits(engine) == expected_hits(requests, geometry, budget)


@settings(max_examples=150)
@given(st.lists(PROMPTS, min_size=1, max_size=12), GEOMETRIES, st.integers(1, 5), st.sampled_from([16, 64]))
def test_batches_and_small_pools_serve_nothing_wrong(requests, geometry, max_rows, num_blocks):
    """Every resumed request is verified, so a wrong or unwritten state cannot hide."""
    engine = ReplayEngine(requests, _options(geometry, max_rows=max_rows, num_blocks=num_blocks))
    result = engine.run()
    engine.index.check_integrity()
    assert engine.index.num_available == num_blocks - 1
    assert result.counts.verified_requests == result.counts.resumed_requests
    assert result.counts.input_tokens == sum(request.num_input_tokens for request in requests)


def test_the_second_of_two_equal_prompts_resumes_at_the_last_boundary():
    assert _hits(ReplayEngine([prompt([1, 2], 1000)] * 2, _options())) == [0, 992]


def test_a_longer_prompt_resumes_from_the_checkpoint_of_a_shorter():
    assert _hits(ReplayEngine([prompt([1, 2], 1000), prompt([1, 2, 3])], _options())) == [0, 992]


def test_prompts_that_part_early_share_nothing():
    assert _hits(ReplayEngine([prompt([1, 2]), prompt([3, 2])], _options())) == [0, 0]


def test_without_an_alignment_only_chunk_ends_are_stored():
    geometry = CheckpointGeometry(16, 64, 16, checkpoint_alignment=None)
    engine = ReplayEngine([prompt([1, 2], 1000)] * 2, _options(geometry))
    assert _hits(engine) == [0, 512]


def test_eagle_gives_up_a_unit():
    geometry = CheckpointGeometry(16, 64, 16, checkpoint_alignment=16, drop_eagle_block=True)
    assert _hits(ReplayEngine([prompt([1, 2], 1000)] * 2, _options(geometry))) == [0, 976]


def test_counts_add_up():
    requests = [prompt([1, 2], 1000), prompt([1, 2], 1000), prompt([4], 200)]
    engine = ReplayEngine(requests, _options(verify_sample=1))
    counts = engine.run().counts
    assert (counts.requests, counts.resumed_requests, counts.verified_requests) == (3, 1, 1)
    assert (counts.input_tokens, counts.hit_tokens, counts.hit_share) == (2200, 992, 992 / 2200)
    # 1000 tokens in chunks of 512 and 488, the 8 tokens after the hit, and 200 tokens.
    assert (counts.steps, counts.prefills) == (4, 4)
    # The second chunk's checkpoint at 992, the third prompt's at 192; the first chunk is not its prompt's last.
    assert (counts.checkpoints_written, counts.passes_saved) == (3, 2)
    assert counts.running_states_written == 4
    assert counts.bytes_moved == 7 * (3 * 8 + 64) * 4


def test_rows_share_a_step_and_its_budget():
    requests = [prompt([number], 300) for number in range(4)]
    timelines = ReplayEngine(requests, _options(max_rows=4)).run().timelines
    chunks = {
        timeline.number: [(chunk.step, chunk.start, chunk.end) for chunk in timeline.chunks] for timeline in timelines
    }
    # Of the budget of 512, 212 tokens are left for the second row: three state blocks of 64.
    assert chunks[0] == [(0, 0, 300)]
    assert chunks[1] == [(0, 0, 192), (1, 192, 300)]
    assert chunks[2] == [(1, 0, 300)]
    assert chunks[3] == [(1, 0, 64), (2, 64, 300)]


def test_progress_counts_every_prompt_token_once():
    requests = [prompt([1, 2], 1000), prompt([1, 2, 3]), prompt([4], 200)]
    seen: list[int] = []
    ReplayEngine(requests, _options(max_rows=3)).run(seen.append)
    assert sum(seen) == sum(request.num_input_tokens for request in requests)


def test_a_state_is_written_before_its_key_is_published(monkeypatch):
    engine = ReplayEngine(generate_trace(30), _options(max_rows=4, budget_tokens=2048))
    publish, published = engine.index.publish, []

    def checked_publish(key, block):
        windows, states = engine.store.read([block])
        assert not np.isnan(windows).any()
        assert not np.isnan(states).any()
        published.append(block)
        return publish(key, block)

    monkeypatch.setattr(engine.index, "publish", checked_publish)
    assert len(published) == 0
    assert engine.run().counts.states_published == len(published) > 30


def test_the_null_block_is_never_written():
    engine = ReplayEngine(generate_trace(30), _options(max_rows=4, num_blocks=16))
    assert engine.run().counts.states_evicted > 0
    windows, states = engine.store.read([0])
    assert np.isnan(windows).all()
    assert np.isnan(states).all()


@pytest.mark.parametrize("max_rows", [1, 3, 16])
def test_the_states_do_not_depend_on_how_requests_are_batched(max_rows):
    requests = [prompt([1, 2, number], 1100 + number) for number in range(6)]
    counts = ReplayEngine(requests, _options(max_rows=max_rows)).run().counts
    assert counts.verified_requests == counts.resumed_requests > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget_tokens": 63}, r"budget_tokens: expected at least one state block \(64\), got 63"),
        ({"budget_tokens": 0}, "budget_tokens: expected an integer in"),
        ({"max_rows": 0}, "max_rows: expected an integer in"),
        ({"max_rows": 2, "num_blocks": 6}, "num_blocks: expected at least 7 for 2 rows, got 6"),
        ({"num_blocks": 2.5}, "num_blocks: expected an integer"),
        ({"verify_sample": -1}, "verify_sample: expected an integer in"),
        ({"seed": -1}, "seed: expected an integer in"),
        ({"device": "tpu"}, "device: expected one of 'cpu', 'cuda', got 'tpu'"),
        ({"geometry": (16, 64)}, "geometry: expected a CheckpointGeometry, got tuple"),
    ],
)
def test_bad_options_are_refused(changes, message):
    with pytest.raises(ArgumentError, match=message):
        _options(**changes)


def test_without_cupy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "numba-ckpt\[cuda13\]"'):
        ReplayEngine([prompt([1])], _options(device="cuda"))
