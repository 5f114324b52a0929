"""The device that runs machine code, and grids that small inputs outgrow."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.conftest import SIMULATED
from tests.simulator.conftest import tiny_grids

__all__ = ["device", "tiny_grids"]

# PTX of earlier runs is used again, unless these tests' own kernels have changed.
_kernels = (Path(__file__).parent / name for name in ("test_planted.py", "test_rules.py"))
_digest = hashlib.sha256(b"".join(path.read_bytes() for path in _kernels)).hexdigest()
os.environ.setdefault("NUMBA_CKPT_CACHE_DIR", f"{os.environ['NUMBA_CACHE_DIR']}/ptx-{_digest[:8]}")

# The simulator compiles nothing.
collect_ignore_glob = ["test_*.py"] if SIMULATED else []


@pytest.fixture
def device():
    from tests.ptx.device import PtxDevice

    with PtxDevice.attached() as device:
        yield device
