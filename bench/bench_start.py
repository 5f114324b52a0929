"""What a new process waits for: the import, and the first call from a warm code cache."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.registry import BUDGETS, budget

ROOT = Path(__file__).parents[1]
FIRST_CALL = """
import numpy as np
from numba_ckpt.planning import CheckpointGeometry, compute_prefill_checkpoints
geometry = CheckpointGeometry(16, 2048, 16, checkpoint_alignment=64)
lengths = np.full(64, 8193)
start = perf_counter()
plan = compute_prefill_checkpoints(lengths, lengths, geometry)
end = perf_counter()
assert plan.offsets.tolist() == [8192] * 64
"""
IMPORT = """
import numba
start = perf_counter()
import numba_ckpt
end = perf_counter()
import sys
assert "cupy" not in sys.modules
"""


def seconds_of(program):
    """Run a program in a process of its own; return the seconds between its `start` and its `end`."""
    code = f"from time import perf_counter\n{program}\nprint(end - start)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


@budget("`import numba_ckpt`, after `import numba`", "a process of its own", limit=0.35)
def import_seconds():
    return seconds_of(IMPORT)


@budget("first `compute_prefill_checkpoints`, warm code cache", "a process of its own, 64 rows", limit=1.5)
def first_call_seconds():
    return seconds_of(FIRST_CALL)


@pytest.mark.parametrize("bench", BUDGETS, ids=str)
def test_start(benchmark, bench):
    benchmark.pedantic(bench.measure, rounds=3, warmup_rounds=1)
