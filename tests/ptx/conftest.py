"""The device that runs machine code, and grids that small inputs outgrow."""

import pytest

from tests.conftest import SIMULATED
from tests.simulator.conftest import tiny_grids

__all__ = ["device", "tiny_grids"]

# The simulator compiles nothing.
collect_ignore_glob = ["test_*.py"] if SIMULATED else []


@pytest.fixture
def device():
    from tests.ptx.device import PtxDevice

    with PtxDevice.attached() as device:
        yield device
