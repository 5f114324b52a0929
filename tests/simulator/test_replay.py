"""The replay's step loop with its caches on a device: the same states, written by the kernels."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_ckpt.kernels import _launch
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.replay import engine
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.testing import SimulatedDevice
from tests.replay.prompts import prompt

OPTIONS = ReplayOptions(
    CheckpointGeometry(16, 64, 16, checkpoint_alignment=16),
    num_blocks=100,
    budget_tokens=512,
    max_running=3,
    verify_sample=9,
)
REQUESTS = [prompt([1], 300), prompt([2], 90), prompt([1, 3], 520), prompt([2], 140)]


def _array_module(device: SimulatedDevice) -> SimpleNamespace:
    """What a replay takes from CuPy."""
    return SimpleNamespace(
        full=lambda shape, value, dtype: device.put(np.full(shape, value, dtype)),
        asarray=device.put,
        asnumpy=device.get,
    )


# Hashes wrap around; where they are interpreted, NumPy warns of it.
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_device_serves_what_the_host_serves(monkeypatch):
    monkeypatch.setattr(_launch, "THREADS_PER_BLOCK", 8)
    host = engine.ReplayEngine(REQUESTS, OPTIONS)
    expected = host.run()
    with SimulatedDevice.attached() as device:
        monkeypatch.setattr(engine, "array_module", lambda name: _array_module(device))
        replay = engine.ReplayEngine(REQUESTS, OPTIONS)
        result = replay.run()
        assert result.counts == expected.counts
        assert result.counts.verified_requests == result.counts.resumed_requests > 0
        assert result.timelines == expected.timelines
        for name in ("windows", "states"):
            on_device, on_host = device.get(getattr(replay.store, name)), getattr(host.store, name)
            np.testing.assert_array_equal(on_device, on_host)
        # One launch gathers and one exports checkpoints where a step has any; one writes the running states.
        assert device.num_launches <= 3 * result.counts.steps
        assert device.num_copies <= result.counts.steps
