"""A call of a launcher on the host and, with the same arrays in the same places, on machine code."""

from collections import defaultdict
from typing import Any

import numpy as np

from tests.ptx.calls import CALLS
from tests.ptx.device import PtxDevice
from tests.ptx.interpreter import Kernel
from tests.ptx.placing import Places

__all__ = ["check", "unreached"]


def check(name: str, seed: int, **options: Any) -> PtxDevice:
    """Compare what both places hold afterwards, byte for byte; `options` are the device's."""
    with PtxDevice.attached(**options) as device:
        on_host, on_device = Places(seed), Places(seed, device)
        results = [CALLS[name](places) for places in (on_host, on_device)]
        held = [places.contents() for places in (on_host, on_device)]
        if results[0] is not None:
            held[0].append(results[0].tobytes())
            held[1].append(device.get(results[1]).tobytes())
        assert held[0] == held[1], f"{name} with seed {seed}: {_first_difference(*held)}"
    return device


def _first_difference(on_host: list[bytes], on_device: list[bytes]) -> str:
    """Say where buffers differ; they are numbered as the call placed them, what it returned last."""
    number = next(number for number, pair in enumerate(zip(on_host, on_device, strict=True)) if pair[0] != pair[1])
    host, device = np.frombuffer(on_host[number], np.uint8), np.frombuffer(on_device[number], np.uint8)
    byte = int(np.argmax(host != device))
    values = f"{host[byte]:#04x} on the host, {device[byte]:#04x} on the device"
    return f"buffer {number} of {host.size} bytes differs at byte {byte}: {values}"


def unreached(name: str, num_seeds: int) -> list[list[str]]:
    """Check random calls; return, for each kernel as compiled, the instructions that no thread ever ran."""
    reached: dict[Kernel, set[int]] = defaultdict(set)
    for seed in range(num_seeds):
        for kernel, blocks in check(name, seed).driver.reached.items():
            reached[kernel] |= blocks
    return [_others(kernel, blocks) for kernel, blocks in reached.items()]


def _others(kernel: Kernel, reached: set[int]) -> list[str]:
    return [str(each) for index, block in enumerate(kernel.blocks) if index not in reached for each in block]
