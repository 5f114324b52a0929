"""What the simulator's tests share: a device made of host memory, and grids that small inputs outgrow."""

import numpy as np
import pytest

from numba_ckpt.kernels import _launch
from numba_ckpt.kernels._registry import OPS
from numba_ckpt.testing import SimulatedDevice
from tests.compile.signatures import SIGNATURES

OP_OF = {op.kernel: name for name, op in OPS.items()}


def spelled(argument):
    """Spell an argument's type as `tests.compile.signatures` does."""
    if not isinstance(argument, np.ndarray):
        return "i8"
    name = "?" if argument.dtype == np.bool_ else f"{argument.dtype.kind}{argument.dtype.itemsize}"
    return f"{name}[{argument.ndim}]"


@pytest.fixture(scope="session", autouse=True)
def launches_have_signatures():
    """Let no kernel be launched with types that `tests/compile` does not compile it for."""
    launch = SimulatedDevice.launch

    def checked(self, kernel, grid, block, arguments):
        signatures = [signature.arguments for signature in SIGNATURES if signature.op == OP_OF.get(kernel)]
        for argument, kinds in zip(arguments, zip(*signatures, strict=True), strict=bool(signatures)):
            assert spelled(argument) in kinds, f"{OP_OF[kernel]} is compiled for {set(kinds)}"
        launch(self, kernel, grid, block, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedDevice, "launch", checked)
        yield


def shrink_grids(patch):
    """Few threads and fewer blocks, so that small inputs cross block edges and stride over the grid."""
    patch.setattr(_launch, "THREADS_PER_BLOCK", 4)
    patch.setattr(_launch, "MAX_GRID_ROWS", 3)
    patch.setattr(_launch, "MAX_GRID_COLS", 2)


@pytest.fixture(scope="module")
def tiny_grids():
    """Launch on few threads."""
    with pytest.MonkeyPatch.context() as patch:
        shrink_grids(patch)
        yield


@pytest.fixture
def device():
    with SimulatedDevice.attached() as device:
        yield device
