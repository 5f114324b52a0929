"""A recorded trace, where there is one beside the checkout or in the directory that NUMBA_CKPT_TRACES names."""

import os
from pathlib import Path

import pytest

from numba_ckpt.replay.engine import ReplayEngine
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.read_trace import read_trace
from numba_ckpt.replay.trace import reuse_ceiling
from tests.replay.prompts import expected_hits

ROOT = Path(__file__).parents[2]
NAME = "mooncake/conversation_trace.jsonl"
PLACES = [os.environ.get("NUMBA_CKPT_TRACES", ""), ROOT / "shared" / "traces", ROOT.parent / "shared" / "traces"]
TRACE = next((Path(place) / NAME for place in PLACES if place and (Path(place) / NAME).exists()), None)
CLAUDE_CODE = TRACE and TRACE.parents[1] / "claude_code_71.rle.jsonl.gz"

pytestmark = pytest.mark.skipif(TRACE is None, reason="no recorded trace; name a directory in NUMBA_CKPT_TRACES")


def test_the_whole_trace_can_be_read():
    requests = read_trace(TRACE).requests
    assert len(requests) == 12_031
    assert sum(request.num_input_tokens for request in requests) == 144_793_823


def test_the_claude_code_trace_can_be_read():
    requests = read_trace(CLAUDE_CODE).requests
    assert len(requests) == 3878
    assert sum(request.num_input_tokens for request in requests) == 565_515_277
    assert reuse_ceiling(requests).sum() / 565_515_277 == pytest.approx(0.963, abs=0.002)


def test_one_after_the_other_hits_are_those_of_the_oracle():
    requests, options = read_trace(TRACE, 300).requests, ReplayOptions(max_running=1, verify_sample=20)
    result = ReplayEngine(requests, options).run()
    hits = {timeline.number: timeline.num_hit_tokens for timeline in result.timelines}
    assert [hits[number] for number in range(300)] == expected_hits(requests, options)
    assert result.counts.verified_requests == 20


@pytest.mark.parametrize(("num_blocks", "max_running"), [(65_536, 16), (400, 8)])
@pytest.mark.parametrize("name", ["mooncake", "claude code"])
def test_batches_and_a_pool_that_evicts_serve_right_states(num_blocks, max_running, name):
    options = ReplayOptions(num_blocks=num_blocks, max_running=max_running, verify_sample=10)
    requests = read_trace(TRACE, 200).requests if name == "mooncake" else read_trace(CLAUDE_CODE, 60).requests
    counts = ReplayEngine(requests, options).run().counts
    assert counts.requests == len(requests)
    assert counts.verified_requests == 10
    assert (counts.blocks_evicted > 0) == (num_blocks == 400)
