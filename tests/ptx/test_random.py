"""Every kernel of the registry, compiled, on arrays in any place: it writes what its host loop does, no byte more."""

import pytest

from numba_ckpt.kernels._registry import OPS
from tests.ptx import needs_compiler  # noqa: F401
from tests.ptx.abi import COMPACT, ORDINARY
from tests.ptx.calls import CALLS
from tests.ptx.device import PtxDevice
from tests.ptx.placing import Places

EVERY_CALL = pytest.mark.parametrize("name", CALLS)


def check(name, seed, **compiled):
    """Call a launcher on the host and on the device, with the same arrays in the same places; return the device."""
    with PtxDevice.attached() as device:
        device.__dict__.update(compiled)
        on_host, on_device = Places(seed), Places(seed, device)
        results = [CALLS[name](places) for places in (on_host, on_device)]
        assert on_device.contents() == on_host.contents(), f"{name} with seed {seed}: bytes differ"
        if results[0] is not None:
            assert results[0].tobytes() == device.get(results[1]).tobytes(), f"{name} with seed {seed}"
        return device


@EVERY_CALL
def test_the_host_twin_writes_the_same_bytes(name, tiny_grids):
    for seed in range(30):
        check(name, seed)


# The compiler has another optimiser for Blackwell than for what came before it.
@pytest.mark.parametrize(("capability", "abi"), [((10, 0), COMPACT), ((9, 0), ORDINARY)], ids=["sm_100", "ordinary"])
@EVERY_CALL
def test_other_compilers_and_the_ordinary_launch(name, capability, abi):
    check(name, 3, capability=capability, abi=abi)


def test_every_kernel_runs():
    launched = set().union(*(check(name, seed).launched for name in CALLS for seed in (1, 3)))
    assert launched == {op.kernel for op in OPS.values()}
