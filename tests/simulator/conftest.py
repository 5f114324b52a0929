"""What the simulator's tests share: a device made of host memory, and grids that small inputs outgrow."""

import pytest

from numba_ckpt.kernels import _launch
from numba_ckpt.testing import SimulatedDevice


@pytest.fixture(scope="module")
def tiny_grids():
    """Few threads and fewer blocks, so that small inputs cross block edges and stride over the grid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_launch, "THREADS_PER_BLOCK", 4)
        patch.setattr(_launch, "MAX_GRID_ROWS", 3)
        patch.setattr(_launch, "MAX_GRID_COLS", 2)
        yield


@pytest.fixture
def device():
    with SimulatedDevice.attached() as device:
        yield device
