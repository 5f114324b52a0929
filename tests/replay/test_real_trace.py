"""A recorded trace, where there is one beside the checkout or in the directory that NUMBA_CKPT_TRACES names."""

import os
from pathlib import Path

import pytest

from numba_ckpt.replay.engine import ReplayEngine
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.trace import read_mooncake
from tests.replay.prompts import expected_hits

ROOT = Path(__file__).parents[2]
NAME = "mooncake/conversation_trace.jsonl"
PLACES = [os.environ.get("NUMBA_CKPT_TRACES", ""), ROOT / "shared" / "traces", ROOT.parent / "shared" / "traces"]
TRACE = next((Path(place) / NAME for place in PLACES if place and (Path(place) / NAME).exists()), None)

pytestmark = pytest.mark.skipif(TRACE is None, reason="no recorded trace; name a directory in NUMBA_CKPT_TRACES")


def test_the_whole_trace_can_be_read():
    requests = read_mooncake(TRACE)
    assert len(requests) == 12_031
    assert sum(request.num_input_tokens for request in requests) == 144_793_823


def test_one_after_the_other_hits_are_those_of_the_oracle():
    requests, options = read_mooncake(TRACE, 300), ReplayOptions(max_rows=1, verify_sample=20)
    result = ReplayEngine(requests, options).run()
    hits = {timeline.number: timeline.num_hit_tokens for timeline in result.timelines}
    assert [hits[number] for number in range(300)] == expected_hits(requests, options.geometry, options.budget_tokens)
    assert result.counts.verified_requests == 20


@pytest.mark.parametrize(("num_blocks", "max_rows"), [(65_536, 16), (200, 8)])
def test_batches_and_a_pool_that_evicts_serve_right_states(num_blocks, max_rows):
    options = ReplayOptions(num_blocks=num_blocks, max_rows=max_rows, verify_sample=40)
    counts = ReplayEngine(read_mooncake(TRACE, 300), options).run().counts
    assert counts.requests == 300
    assert counts.verified_requests == 40
    assert (counts.states_evicted > 0) == (num_blocks == 200)
