"""Helpers for the tests of this package and of engines that use it: poisoned memory and a simulated device."""

from numba_ckpt.testing.poison import poison, poisoned
from numba_ckpt.testing.simulated_device import SimulatedArray, SimulatedDevice

__all__ = ["SimulatedArray", "SimulatedDevice", "poison", "poisoned"]
