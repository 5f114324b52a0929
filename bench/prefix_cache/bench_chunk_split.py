"""One call of the chunk split, as a scheduler makes it for every chunk."""

import time

import pytest

from bench.registry import BUDGETS, budget
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.prefix_cache import PrefillProgress, SplitPolicy, split_prefill

CALLS = 2000


@budget("`split_prefill`, one call", f"mean of {CALLS:,} calls: first, middle and last chunks of 30,000 tokens", 3e-6)
def split_seconds():
    policy = SplitPolicy(CheckpointGeometry(16, 528, 16, checkpoint_alignment=16), 8192)
    chunks = [(PrefillProgress(start, 30_000, 30_000), min(8192, 30_000 - start)) for start in (0, 7920, 23_760)]
    assert [split_prefill(progress, asked, policy) for progress, asked in chunks] == [7920, 7920, 6240]
    began = time.perf_counter()
    for call in range(CALLS):
        progress, asked = chunks[call % 3]
        split_prefill(progress, asked, policy)
    return (time.perf_counter() - began) / CALLS


@pytest.mark.parametrize("bench", [bench for bench in BUDGETS if bench.module == __name__], ids=str)
def test_chunk_split(bench):
    assert bench.run() <= bench.limit
