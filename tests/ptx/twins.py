"""A call of a launcher on the host and, with the same arrays in the same places, on machine code."""

from collections import defaultdict
from typing import Any

from tests.ptx.abi import COMPACT, compiled
from tests.ptx.calls import CALLS
from tests.ptx.device import PtxDevice
from tests.ptx.interpreter import Kernel
from tests.ptx.placing import Places

__all__ = ["check", "unreached"]


def check(name: str, seed: int, **options: Any) -> PtxDevice:
    """Compare what both places hold afterwards, byte for byte; `options` are the device's."""
    with PtxDevice.attached() as device:
        vars(device).update(options)
        on_host, on_device = Places(seed), Places(seed, device)
        results = [CALLS[name](places) for places in (on_host, on_device)]
        assert on_device.contents() == on_host.contents(), f"{name} with seed {seed}: bytes differ"
        if results[0] is not None:
            assert results[0].tobytes() == device.get(results[1]).tobytes(), f"{name} with seed {seed}"
    return device


def unreached(name: str, num_seeds: int) -> dict[tuple[Any, Any], list[str]]:
    """Check random calls; return, by kernel and argument types, the instructions that no thread ever ran."""
    reached: dict[Any, set[int]] = defaultdict(set)
    for seed in range(num_seeds):
        for key, blocks in check(name, seed).reached.items():
            reached[key] |= blocks
    return {key: _others(compiled(COMPACT, *key, (9, 0)), blocks) for key, blocks in reached.items()}


def _others(kernel: Kernel, reached: set[int]) -> list[str]:
    return [str(each) for index, block in enumerate(kernel.blocks) if index not in reached for each in block]
