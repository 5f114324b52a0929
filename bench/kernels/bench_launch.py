"""What a launch costs on the host, up to the driver's call, which is left out: there need not be a GPU."""

import os
import statistics
import tempfile
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np

from bench.registry import budget
from numba_ckpt._launcher import Launcher

LAUNCHES, ROUNDS = 2_000, 15


class NoDriver:
    """Takes every launch and does nothing."""

    def current_device(self):
        return 0

    def capability(self):
        return 9, 0

    def load(self, code, name):
        return name

    def launch(self, function, grid, num_threads, parameters):
        self.last = function, grid, num_threads

    def synchronize(self):
        """Nothing is under way."""


class Array:
    """What a launch reads of a CuPy array."""

    def __init__(self, address, shape, dtype):
        self.data, self.shape, self.dtype = SimpleNamespace(ptr=address), shape, np.dtype(dtype)
        self.strides = np.empty(shape, dtype).strides


def launch_seconds(arguments):
    """Return the median seconds of a launch."""
    driver = NoDriver()
    launcher = Launcher(driver, lambda *_: "code")
    kernel = type("Kernel", (), {"py_func": type("kernel", (), {})})
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, NUMBA_CKPT_CACHE_DIR=folder):
        launcher.launch(kernel, (4, 2), 256, arguments)
    assert driver.last == ("kernel", (4, 2, 1), 256)
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            launcher.launch(kernel, (4, 2), 256, arguments)
        seconds.append((time.perf_counter() - start) / LAUNCHES)
    return statistics.median(seconds)


TABLE, ROWS, OUT = Array(2**40, (256, 512), np.int32), Array(2**41, (256,), np.int64), Array(2**42, (256,), np.int32)

for arguments, inputs in (
    ((TABLE, ROWS, OUT), "three arrays"),
    ((TABLE, ROWS, ROWS, ROWS, TABLE, OUT, OUT, OUT, 7, 9), "eight arrays and two numbers"),
):
    budget("a launch on the host, up to the driver's call", inputs, 10e-6)(
        lambda arguments=arguments: launch_seconds(arguments)
    )
