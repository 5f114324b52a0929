from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError, MissingDependencyError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.prefix_cache import DENSE, PROVEN, Retention
from numba_ckpt.replay.engine import ReplayEngine
from numba_ckpt.replay.generate import generate_trace
from numba_ckpt.replay.options import ReplayOptions
from tests.replay.prompts import expected_hits, prompt

GEOMETRY = CheckpointGeometry(16, 64, 16, checkpoint_alignment=16)
ALL = 1000


def _hits(engine: ReplayEngine) -> list[int]:
    timelines = sorted(engine.run().timelines, key=lambda timeline: timeline.number)
    engine.cache.pool.check_integrity()
    return [timeline.num_hit_tokens for timeline in timelines]


def _options(geometry: CheckpointGeometry = GEOMETRY, **changes: object) -> ReplayOptions:
    defaults = {"num_blocks": 4096, "budget_tokens": 512, "max_running": 1, "verify_sample": ALL}
    return ReplayOptions(geometry, **(defaults | changes))


PROMPTS = st.builds(
    prompt, st.lists(st.integers(0, 2), min_size=3, max_size=3), st.integers(1, 3 * 512) | st.sampled_from([512, 1024])
)
GEOMETRIES = st.builds(
    lambda sizes, state_block, **switches: CheckpointGeometry(sizes[0], state_block, sizes[1], **switches),
    st.sampled_from([(16, 16), (16, 32), (16, 64), (32, 32), (32, 64)]),
    st.sampled_from([32, 64, 96, 512]),
    checkpoint_alignment=st.sampled_from([None, 8, 16, 64]),
    drop_eagle_block=st.booleans(),
    num_hash_lookahead_tokens=st.integers(0, 3),
)


POLICIES = st.fixed_dictionaries(
    {
        "budget_tokens": st.sampled_from([100, 512, 700, 2048]),
        "attention_block": st.sampled_from([None, 32, 64]),
        "retention": st.sampled_from([PROVEN, DENSE, Retention(96)]),
        "junction": st.sampled_from(["exact", "block", "none"]),
        "long_prefill_tokens": st.sampled_from([None, 300]),
    }
)


@settings(max_examples=200)
@given(st.lists(PROMPTS, min_size=1, max_size=8), GEOMETRIES, POLICIES)
def test_hits_are_those_of_the_oracle_and_verified(requests, geometry, policies):
    options = _options(geometry, **policies)
    assert _hits(ReplayEngine(requests, options)) == expected_hits(requests, options)


OUTPUTS = st.sampled_from([0, 1, 2, 70])
ARRIVALS = st.lists(st.integers(0, 60), min_size=12, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PROMPTS, min_size=1, max_size=12),
    GEOMETRIES,
    POLICIES,
    st.tuples(st.integers(1, 5), st.integers(0, 30), st.sampled_from([0, 1, 5]), OUTPUTS),
    ARRIVALS,
)
def test_batches_and_small_pools_serve_nothing_wrong(requests, geometry, policies, load, times):
    """Every resumed request is verified, so a wrong or unwritten state cannot hide."""
    max_running, spare_blocks, decode, num_outputs = load
    requests = [
        replace(request, timestamp=1.0 * time, num_output_tokens=num_outputs)
        for request, time in zip(requests, times, strict=False)
    ]
    options = _options(geometry, **policies, max_running=max_running, decode_tokens=decode, arrivals="trace")
    longest = max(request.num_input_tokens for request in requests) + num_outputs
    options = replace(options, num_blocks=options.blocks_for(longest) + spare_blocks)
    engine = ReplayEngine(requests, options)
    counts = engine.run().counts
    engine.cache.pool.check_integrity()
    assert engine.cache.pool.num_available == options.num_blocks - 1
    # A request that began cold may resume after a preemption.
    assert 0 <= counts.verified_requests - counts.resumed_requests <= counts.preemptions
    assert counts.requests == len(requests)
    assert counts.input_tokens == sum(request.num_input_tokens for request in requests)
    assert counts.output_tokens == (len(requests) * max(num_outputs - 1, 0) if decode else 0)
    assert (counts.recomputed_tokens > 0) <= (counts.preemptions > 0)
    lost = counts.lost_states + counts.lost_attention + counts.lost_to_boundaries
    assert counts.hit_tokens + lost == counts.ceiling_tokens


def test_the_second_of_two_equal_prompts_resumes_at_the_last_boundary():
    assert _hits(ReplayEngine([prompt([1, 2], 1000)] * 2, _options())) == [0, 992]


def test_a_longer_prompt_resumes_from_the_checkpoint_of_a_shorter():
    assert _hits(ReplayEngine([prompt([1, 2], 1000), prompt([1, 2, 3])], _options())) == [0, 992]


def test_prompts_that_part_early_share_nothing():
    assert _hits(ReplayEngine([prompt([1, 2]), prompt([3, 2])], _options())) == [0, 0]


def test_without_an_alignment_only_chunk_ends_are_stored():
    geometry = CheckpointGeometry(16, 64, 16, checkpoint_alignment=None)
    engine = ReplayEngine([prompt([1, 2], 1000)] * 2, _options(geometry))
    assert _hits(engine) == [0, 992]
    assert engine.run().counts.checkpoints_written == 0


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
    timelines = ReplayEngine(requests, _options(max_running=4)).run().timelines
    chunks = {
        timeline.number: [(chunk.step, chunk.start, chunk.end) for chunk in timeline.chunks] for timeline in timelines
    }
    # Of the budget of 512, 212 tokens are left for the second row: three state blocks of 64.
    assert chunks[0] == [(0, 0, 300)]
    assert chunks[1] == [(0, 0, 192), (1, 192, 300)]
    assert chunks[2] == [(1, 0, 300)]
    assert chunks[3] == [(1, 0, 64), (2, 64, 300)]


def test_when_the_pool_is_exhausted_the_latest_request_starts_over():
    requests = [prompt([number], 512) for number in range(3)]
    # 32 attention blocks each and up to 3 for states: room for one and a half.
    options = _options(max_running=3, long_prefill_tokens=128, num_blocks=55)
    result = ReplayEngine(requests, options).run()
    assert result.counts.preemptions > 0
    assert result.counts.recomputed_tokens > 0
    assert [timeline.number for timeline in result.timelines] == [0, 1, 2]


def test_a_request_that_cannot_fit_is_named_before_anything_runs():
    requests = [prompt([1], 40), prompt([2], 512)]
    with pytest.raises(ArgumentError, match="num_blocks: expected at least 36 for the 512 tokens of request 1, got 35"):
        ReplayEngine(requests, _options(num_blocks=35))
    assert ReplayEngine(requests, _options(num_blocks=36)).run().counts.requests == 2


def test_outputs_are_computed_all_but_the_last():
    requests = [replace(prompt([1], 100), num_output_tokens=40), replace(prompt([1], 100), num_output_tokens=1)]
    for decode, steps in ((1, 41), (8, 7)):
        counts = ReplayEngine(requests, _options(decode_tokens=decode)).run().counts
        assert counts.output_tokens == 39
        assert (counts.prefills, counts.steps, counts.hit_tokens) == (2, steps, 96)


def test_requests_arrive_at_their_time_stamps():
    requests = [replace(prompt([number], 100), timestamp=time) for number, time in enumerate((5000.0, 0.0, 1.0))]
    result = ReplayEngine(requests, _options(arrivals="trace", max_running=4, tokens_per_second=1000)).run()
    assert [timeline.number for timeline in result.timelines] == [1, 2, 0]
    # A step takes 10 ms and 1 ms a token.
    assert [sample.seconds for sample in result.series.samples] == pytest.approx([0.11, 0.22, 5.11])


def test_a_request_waits_a_step_for_a_prefix_that_is_being_written(monkeypatch):
    engine = ReplayEngine([prompt([1, 2], 1000), prompt([1, 2], 1010)], _options(max_running=2, budget_tokens=2048))
    look_up, pending = engine.cache.look_up, iter([0, 992, 0])
    monkeypatch.setattr(
        engine.cache, "look_up", lambda request: look_up(request)._replace(pending_tokens=next(pending))
    )
    result = engine.run()
    assert [timeline.num_hit_tokens for timeline in result.timelines] == [0, 992]
    assert [timeline.chunks[0].step for timeline in result.timelines] == [0, 1]


def test_a_session_goes_on_when_its_last_request_is_done():
    requests = [replace(prompt([number % 2], 100 + number), session=number % 2) for number in range(6)]
    result = ReplayEngine(requests, _options(max_running=6)).run()
    steps = {timeline.number: timeline.chunks[0].step for timeline in result.timelines}
    assert steps == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    assert result.counts.resumed_requests == 4


def test_a_step_that_fails_leaves_nothing_behind(monkeypatch):
    engine = ReplayEngine([prompt([1, 2], 1000)], _options())
    monkeypatch.setattr(engine.store, "export", None)
    with pytest.raises(TypeError):
        engine.run()
    assert engine.cache.pool.num_cached == 0
    assert engine.cache.pool.num_available == 4095


def test_lost_tokens_are_told_apart():
    # The second prompt parts from the first in the middle; the third from both there: a junction.
    requests = [prompt([1, 2, 3]), prompt([1, 2, 4]), prompt([1, 2, 5])]
    counts = ReplayEngine(requests, _options(junction="none", budget_tokens=2048)).run().counts
    assert (counts.hit_tokens, counts.lost_states, counts.ceiling_tokens) == (0, 2048, 2048)
    counts = ReplayEngine(requests, _options(budget_tokens=2048)).run().counts
    assert (counts.hit_tokens, counts.lost_states, counts.ceiling_tokens) == (1024, 1024, 2048)
    counts = ReplayEngine(requests[:1] * 2, _options()).run().counts
    assert (counts.hit_tokens, counts.lost_to_boundaries) == (1520, 15)


def test_progress_counts_every_prompt_token_once():
    requests = [prompt([1, 2], 1000), prompt([1, 2, 3]), prompt([4], 200)]
    seen: list[int] = []
    ReplayEngine(requests, _options(max_running=3)).run(seen.append)
    assert sum(seen) == sum(request.num_input_tokens for request in requests)


def test_a_state_is_written_before_its_key_is_published(monkeypatch):
    engine = ReplayEngine(generate_trace(30), _options(max_running=4, budget_tokens=2048))
    commit, written = engine.cache.commit, []

    def checked_commit(step):
        blocks = [block for chunk in step.reservations for block in chunk.groups[1, [2, 4]].tolist() if block]
        for array in engine.store.read(blocks):
            assert not np.isnan(array).any()
        written.extend(blocks)
        commit(step)

    monkeypatch.setattr(engine.cache, "commit", checked_commit)
    counts = engine.run().counts
    assert len(written) == counts.checkpoints_written + counts.running_states_written > 30


def test_the_null_block_is_never_written():
    engine = ReplayEngine(generate_trace(30), _options(max_running=4, num_blocks=1300))
    assert engine.run().counts.blocks_evicted > 0
    windows, states = engine.store.read([0])
    assert np.isnan(windows).all()
    assert np.isnan(states).all()


@pytest.mark.parametrize("max_running", [1, 3, 16])
def test_the_states_do_not_depend_on_how_requests_are_batched(max_running):
    requests = [prompt([1, 2, number], 1100 + number) for number in range(6)]
    counts = ReplayEngine(requests, _options(max_running=max_running)).run().counts
    assert counts.verified_requests == counts.resumed_requests > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget_tokens": 0}, "budget_tokens: expected an integer in"),
        ({"max_running": 0}, "max_running: expected an integer in"),
        ({"num_blocks": 1}, "num_blocks: expected an integer in"),
        ({"attention_block": 24}, "attention_block: expected a multiple of the hash block 16, got 24"),
        ({"retention": 512}, "retention: expected a Retention, got int"),
        ({"junction": "maybe"}, "junction: expected one of 'exact', 'block', 'none', got 'maybe'"),
        ({"arrivals": "open"}, "arrivals: expected one of 'closed', 'trace', got 'open'"),
        ({"long_prefill_tokens": 0}, "long_prefill_token_threshold: expected an integer in"),
        ({"decode_tokens": -1}, "decode_tokens: expected an integer in"),
        ({"tokens_per_second": 0}, "tokens_per_second: expected an integer in"),
        ({"step_ms": -1}, "step_ms: expected an integer in"),
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
