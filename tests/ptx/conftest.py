"""The device that runs machine code, and grids that small inputs outgrow; skipped where nothing compiles."""

import importlib.util

import pytest

from tests.simulator.conftest import tiny_grids

__all__ = ["device", "tiny_grids"]

# numba's own CUDA compiles with libraries of an installed toolkit; numba-cuda brings its own.
HAS_COMPILER = importlib.util.find_spec("numba_cuda") is not None
collect_ignore = [] if HAS_COMPILER else ["test_planted.py", "test_recordings.py", "test_random.py"]


@pytest.fixture
def device():
    from tests.ptx.device import PtxDevice

    with PtxDevice.attached() as device:
        yield device
