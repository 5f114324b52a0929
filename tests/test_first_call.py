"""First calls: from several threads at once, in a process that has compiled nothing."""

import subprocess
import sys

PLAN_FROM_THREADS = """
import threading
import numpy as np
from numba_ckpt import CheckpointGeometry, compute_prefill_checkpoints
geometry = CheckpointGeometry(16, 512, 16, checkpoint_alignment=16)
failures = []
def plan(dtype):
    try:
        lens = np.array([2000, 900, 41], dtype)
        barrier.wait()
        assert compute_prefill_checkpoints(lens, lens, geometry).offsets.tolist() == [1984, 896, 0]
    except BaseException as failure:
        failures.append(failure)
dtypes = [np.int32, np.int64] * 4
barrier = threading.Barrier(len(dtypes))
threads = [threading.Thread(target=plan, args=(dtype,)) for dtype in dtypes]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failures, failures
try:
    compute_prefill_checkpoints(np.ones(3), np.ones(3), geometry)
except TypeError:
    pass
else:
    raise AssertionError("floats were taken")
"""


def test_plans_from_eight_threads():
    result = subprocess.run([sys.executable, "-W", "error", "-c", PLAN_FROM_THREADS], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
