"""Random schedules: requests that share prefixes, cut into random steps, batched at random, resumed where possible."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.engine import Engine, cold_run
from tests.models.test_hybrid import SCAN_TOLERANCE

MAX_TOKENS = 60


class Schedule:
    """Runs requests of one family of prompts (prompt i is common up to a point) and keeps the checkpoints it gets."""

    def __init__(self, data):
        self.data, self.engine = data, Engine()
        self.checkpoints = []  # (request, position, block)

    def arrive(self, seed):
        """Start a request, from a checkpoint of an earlier one if hypothesis says so."""
        prompt = np.random.default_rng(seed).integers(0, 64, self.data.draw(st.integers(1, MAX_TOKENS)))
        usable = [found for found in self.checkpoints if found[1] < len(prompt)]
        if usable and self.data.draw(st.booleans()):
            prefix, position, block = self.data.draw(st.sampled_from(usable))
            prompt = np.concatenate([prefix.prompt[:position], prompt[position:]])
            return self.engine.new_request(prompt, prefix, position, block)
        return self.engine.new_request(prompt)

    def step(self, requests):
        """Advance all unfinished requests by a drawn number of tokens each."""
        left = [len(request.prompt) - request.num_computed for request in requests]
        work = [(request, self.data.draw(st.integers(1, n))) for request, n in zip(requests, left, strict=True) if n]
        starts = [request.num_computed for request, _ in work]
        outputs, checkpoint = self.engine.step(*work)
        assert not any(np.isnan(output).any() for output in outputs)
        if checkpoint is not None:
            for row, offset, block in zip(
                checkpoint.request_rows, checkpoint.offsets_cpu, checkpoint.state_indices, strict=True
            ):
                if offset:
                    self.checkpoints.append((work[row][0], starts[row] + int(offset), int(block)))
        return [(request, output[-1]) for (request, _), output in zip(work, outputs, strict=True)]


@settings(max_examples=25)
@given(st.data(), st.integers(1, 3))
def test_every_request_ends_as_if_it_had_run_alone(data, num_waves):
    schedule = Schedule(data)
    for wave in range(num_waves):
        active = [schedule.arrive(seed) for seed in range(10 * wave, 10 * wave + data.draw(st.integers(1, 3)))]
        last = {}
        while any(request.num_computed < len(request.prompt) for request in active):
            last |= {id(request): output for request, output in schedule.step(active)}
        for request in active:
            cold_states, cold_outputs, _ = cold_run(request.prompt, plan=False)
            assert schedule.engine.running_states(request)[0] == cold_states[0]
            np.testing.assert_allclose(last[id(request)], cold_outputs[-1], **SCAN_TOLERANCE)


@settings(max_examples=25)
@given(st.data())
def test_stored_checkpoints_are_never_written_again(data):
    schedule, kept = Schedule(data), {}
    for seed in range(3):
        active = [schedule.arrive(seed)]
        while active[0].num_computed < len(active[0].prompt):
            schedule.step(active)
            kept = {block: schedule.engine.block_bytes(block) for _, _, block in schedule.checkpoints} | kept
    assert kept == {block: schedule.engine.block_bytes(block) for block in kept}
