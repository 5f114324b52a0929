"""The scheduler's whole path: hash, look up, split, reserve, commit and free, one request after another.

A recorded conversation trace is used where NUMBA_CKPT_TRACES names the directory that holds it, a generated one of the
same length and geometry otherwise.
"""

import functools
import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.prefix_cache.bench_prefix_hashes import sha256_chain
from bench.registry import SIDES, Sides, budget, comparison, of_module
from numba_ckpt.prefix_cache import (
    CacheConfig,
    CacheGroup,
    HybridPrefixCache,
    PrefillProgress,
    SplitPolicy,
    split_prefill,
)
from numba_ckpt.replay.generate import generate_trace
from numba_ckpt.replay.read_trace import read_trace
from numba_ckpt.replay.trace import prompt_tokens, reuse_ceiling

BUDGET_TOKENS = 8192
NUM_REQUESTS = 12_031


class Sizes(NamedTuple):
    """Tokens of an attention block, a state block and a hash block."""

    attention: int
    state: int
    unit: int


@functools.cache
def requests():
    folder = os.environ.get("NUMBA_CKPT_TRACES", "")
    path = next(iter(sorted(Path(folder).rglob("conversation_trace.jsonl"))), None) if folder else None
    return read_trace(path).requests if path else generate_trace(NUM_REQUESTS)


@functools.cache
def prompts(count):
    return [prompt_tokens(request) for request in requests()[:count]]


def new_cache(sizes, tokens):
    config = CacheConfig(
        (CacheGroup("full", sizes.attention), CacheGroup("state", sizes.state, checkpoint_alignment=16)), sizes.unit
    )
    # Nothing is evicted: a block for each of all prompts' tokens, and two states for each chunk.
    num_blocks = sum(4 + prompt.size // sizes.attention + prompt.size // 1024 for prompt in tokens)
    return HybridPrefixCache(config, num_blocks), SplitPolicy(config.geometry_of(config.groups[1]), BUDGET_TOKENS)


def serve(cache, policy, tokens):
    """Serve all prompts; return the hit tokens of each."""
    hits = []
    for number, prompt in enumerate(tokens):
        request = cache.add(str(number), prompt)
        hits.append(cache.look_up(request).num_tokens)
        total = request.num_tokens
        while (done := request.num_computed_tokens) < total:
            progress = PrefillProgress(done, total, total, request.junction)
            step = cache.begin_step()
            cache.reserve(step, request, split_prefill(progress, min(BUDGET_TOKENS, total - done), policy))
            cache.commit(step)
        cache.finish(request)
    return hits


def sides(sizes, count):
    tokens = prompts(count)

    def check():
        """No prompt is served more than earlier ones had in common with it, and a repeated one all but its end."""
        cache, policy = new_cache(sizes, tokens)
        hits = serve(cache, policy, tokens)
        cache.pool.check_integrity()
        ceilings = reuse_ceiling(requests()[:count]).tolist()
        assert all(hit <= ceiling for hit, ceiling in zip(hits, ceilings, strict=True))
        again = cache.add("again", tokens[-1])
        assert cache.look_up(again).num_tokens == again.last_boundary

    def ours():
        return serve(*new_cache(sizes, tokens), tokens)

    return Sides(lambda: [sha256_chain(prompt, sizes.unit) for prompt in tokens], ours, check)


PART = 500
for sizes in (Sizes(512, 512, 512), Sizes(528, 528, 16)):
    comparison(
        f"the scheduler's whole path, geometry {'/'.join(map(str, sizes))}",
        f"{PART} prompts of a trace, against `hashlib.sha256` over parent digest and token bytes alone",
    )(lambda sizes=sizes: sides(sizes, PART))


def whole_trace(sizes):
    tokens = prompts(NUM_REQUESTS)
    cache, policy = new_cache(sizes, tokens)
    start = time.perf_counter()
    serve(cache, policy, tokens)
    return time.perf_counter() - start


for sizes, limit in ((Sizes(512, 512, 512), 0.5), (Sizes(528, 528, 16), 2.0)):
    budget(
        f"the scheduler's whole path, geometry {'/'.join(map(str, sizes))}",
        f"a trace of {NUM_REQUESTS:,} prompts, one after another",
        limit,
    )(lambda sizes=sizes: whole_trace(sizes))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_whole_path(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
