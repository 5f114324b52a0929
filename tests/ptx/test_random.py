"""Every kernel of the registry, compiled, on arrays in any place: it writes what its host loop does, no byte more."""

import pytest

from numba_ckpt.kernels._registry import OPS
from tests.ptx import needs_compiler  # noqa: F401
from tests.ptx.calls import CALLS
from tests.ptx.launching import by_dispatcher
from tests.ptx.twins import check, unreached


@pytest.mark.parametrize("name", CALLS)
def test_the_host_twin_writes_the_same_bytes(name, tiny_grids):
    for instructions in unreached(name, 45):
        assert not [each for each in instructions if ".v4." in each], "no call was large enough for these"


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"export-bytes", "export-words", "export-doubles"}))
def test_blackwell(name, tiny_grids):
    """The compiler has another optimiser for it than for what came before."""
    check(name, 3, capability=(10, 0))


@pytest.mark.parametrize("name", ["copy_blocks", "export-rounded", "slot_mapping"])
def test_the_ordinary_launch(name, tiny_grids):
    check(name, 3, way=by_dispatcher)


def test_every_kernel_runs(tiny_grids):
    launched = set().union(*(check(name, 3).launched for name in CALLS))
    assert launched == {op.kernel for op in OPS.values()}
