"""Hits on real traces, request by request, against those recorded from vLLM's cache manager.

Needs data that lie beside the checkout. A part of each trace by default, all of it with NUMBA_CKPT_LONG_TESTS=1.
"""

import gzip
import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from numba_ckpt.prefix_cache import (
    CacheConfig,
    CacheGroup,
    HybridPrefixCache,
    PrefillProgress,
    SplitPolicy,
    split_prefill,
)

SHARED = Path(__file__).parents[3] / "shared"
LONG = os.environ.get("NUMBA_CKPT_LONG_TESTS") == "1"
BUDGET = 8192
TOKEN_LIMIT = 2**31 - 1
pytestmark = pytest.mark.skipif(not (SHARED / "golden" / "hits").is_dir(), reason="needs the recorded hits")


def tokens_of(ids, tokens_per_id):
    """Equal ids are equal tokens; the modulus shifts what would coincide."""
    tokens = ids.astype(np.int64)[:, None] * tokens_per_id + np.arange(tokens_per_id)
    return (tokens % TOKEN_LIMIT).astype(np.int32).reshape(-1)


def mooncake(name):
    for line in (SHARED / "traces" / "mooncake" / f"{name}_trace.jsonl").read_text().splitlines():
        record = json.loads(line)
        yield tokens_of(np.array(record["hash_ids"]), 512)[: record["input_length"]]


def claude():
    """Ids of 64 tokens count within a session; what is left of a prompt is its own."""
    first_ids, next_id = {}, 0
    with gzip.open(SHARED / "traces" / "claude_code_71.rle.jsonl.gz", "rt") as lines:
        for number, line in enumerate(lines):
            record = json.loads(line)
            ids = np.concatenate([np.arange(first, first + count) for first, count in record["h"]] or [np.arange(0)])
            first_ids.setdefault(record["s"], next_id)
            ids = ids[: record["in"] // 64] + first_ids[record["s"]]
            next_id = max(next_id, int(ids.max(initial=0)) + 1)
            rest = TOKEN_LIMIT - 1 - number * 64 - np.arange(record["in"] - 64 * ids.size, dtype=np.int32)
            yield np.concatenate([tokens_of(ids, 64), rest])


TRACES = {
    "conversation": lambda: mooncake("conversation"),
    "synthetic": lambda: mooncake("synthetic"),
    "claude71": claude,
}


def replay(prompts, num_blocks, attention_block=512, state_block=512, unit=512, **options):
    """Serve prompts one after another; returns the hit tokens of each."""
    groups = CacheGroup("full", attention_block), CacheGroup("state", state_block, checkpoint_alignment=16)
    config = CacheConfig(groups, unit)
    cache = HybridPrefixCache(config, num_blocks, **options)
    policy = SplitPolicy(config.geometry_of(config.groups[1]), BUDGET)
    hits = [_serve(cache, policy, str(number), prompt) for number, prompt in enumerate(prompts)]
    cache.pool.check_integrity()
    assert cache.pool.num_available == num_blocks - 1
    return hits


def _serve(cache, policy, name, prompt):
    request = cache.add(name, prompt)
    hit, total = cache.look_up(request).num_tokens, request.num_tokens
    while (done := request.num_computed_tokens) < total:
        length = split_prefill(PrefillProgress(done, total, total, request.junction), min(BUDGET, total - done), policy)
        step = cache.begin_step()
        assert cache.reserve(step, request, length) is not None
        cache.commit(step)
    cache.finish(request)
    return hit


@pytest.mark.parametrize(
    ("trace", "pool", "part", "share"),
    [
        ("conversation", "inf", 1500, 0.3586),
        ("synthetic", "inf", 400, 0.5820),
        ("claude71", "inf", 150, 0.9610),
        ("conversation", "mid", 1500, 0.1667),
    ],
)
def test_no_fewer_hits_than_recorded(trace, pool, part, share):
    recorded = json.loads((SHARED / "golden" / "hits" / f"{trace}_a_{pool}_r0_e0.json").read_text())
    lengths = []

    def prompts():
        for prompt in islice(TRACES[trace](), None if LONG else part):
            lengths.append(prompt.size)
            yield prompt

    hits = replay(prompts(), recorded["config"]["num_blocks"])
    assert lengths == recorded["n_in"][: len(lengths)]
    if pool == "inf":
        pairs = enumerate(zip(hits, recorded["hit"][: len(hits)], strict=True))
        assert not {number: pair for number, pair in pairs if pair[0] < pair[1]}
    else:
        assert sum(hits) >= sum(recorded["hit"][: len(hits)])
    if LONG:
        assert len(hits) == len(recorded["hit"])
        assert round(sum(hits) / sum(lengths), 4) >= share
