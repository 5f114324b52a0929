"""Launches without a GPU: what reaches the driver, what is compiled when, and what is said when it fails."""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from numba_ckpt._launcher import Launcher
from numba_ckpt.errors import DeviceError


class FakeDriver:
    """A driver that reads each launch's parameters as CUDA would, by their addresses."""

    def __init__(self):
        self.device, self.loaded, self.launches, self.num_waits = 0, [], [], 0
        self.error = None

    def current_device(self):
        return self.device

    def capability(self):
        return 9, 0

    def load(self, code, name):
        if self.error:
            raise self.error
        self.loaded.append((name, code))
        return code

    def launch(self, function, grid, num_threads, parameters):
        if self.error:
            raise self.error
        sizes = [int(size) for size in function.split()]
        addresses = (ctypes.c_void_p * len(sizes)).from_address(parameters)
        words = [list((ctypes.c_int64 * n).from_address(at)) for n, at in zip(sizes, addresses, strict=True)]
        self.launches.append((grid, num_threads, words))

    def synchronize(self):
        self.num_waits += 1


class FakeArray:
    """What a launch reads of a CuPy array."""

    def __init__(self, address, shape, strides, dtype=np.int32):
        self.data, self.shape, self.strides, self.dtype = SimpleNamespace(ptr=address), shape, strides, np.dtype(dtype)


class FakeKernel:
    """A kernel's name."""

    def __init__(self, name):
        self.py_func = type(name, (), {})


KERNEL = FakeKernel("kernel")
ARRAY = FakeArray(2**47 + 256, (3, 5), (20, -4))


@pytest.fixture
def compiled():
    return []


@pytest.fixture
def launcher(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CKPT_CACHE_DIR", str(tmp_path))

    def compiler(kernel, kinds, capability, num_threads):
        compiled.append((kernel.py_func.__name__, kinds, capability, num_threads))
        return " ".join(str(1 if kind is None else 1 + 2 * kind[1]) for kind in kinds)

    return Launcher(FakeDriver(), compiler)


def test_each_argument_is_one_parameter(launcher, compiled):
    launcher.launch(KERNEL, (4, 2), 256, (ARRAY, 7, FakeArray(0, (0,), (8,), np.int64), -(2**62)))
    assert launcher._driver.launches == [((4, 2, 1), 256, [[2**47 + 256, 3, 5, 20, -4], [7], [0, 0, 8], [-(2**62)]])]
    assert compiled == [("kernel", (("i", 2), None, (np.dtype(np.int64).char, 1), None), (9, 0), 256)]


def test_a_kernel_is_compiled_once_for_each_kind_and_loaded_on_each_device(launcher, compiled):
    wide = FakeArray(64, (3, 5), (20, 4), np.int64)
    for array in (ARRAY, wide, ARRAY, wide):
        launcher.launch(KERNEL, (1,), 32, (array, 1))
    launcher.launch(KERNEL, (1,), 32, (array, np.int64(9)))
    assert [kinds[0][0] for _, kinds, *_ in compiled] == ["i", np.dtype(np.int64).char]
    launcher._driver.device = 1
    launcher.launch(KERNEL, (1,), 32, (ARRAY, 1))
    assert (len(compiled), len(launcher._driver.loaded)) == (2, 3)  # the second device's code came from disk


def test_another_process_finds_what_was_compiled(launcher, compiled):
    launcher.launch(KERNEL, (1,), 32, (ARRAY,))
    other = Launcher(FakeDriver(), launcher._compiler)
    other.launch(KERNEL, (1,), 32, (ARRAY,))
    other.launch(FakeKernel("other"), (1,), 32, (ARRAY,))
    assert [name for name, *_ in compiled] == ["kernel", "other"]


def test_threads_keep_their_own_parameters(launcher):
    driver = launcher._driver

    def launch_all(number):
        for index in range(200):
            launcher.launch(KERNEL, (1,), 32, (number, index, number))

    threads = [threading.Thread(target=launch_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launches) == 800
    assert all(words[0] == words[2] for _, _, words in driver.launches)


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX was compiled", "the driver is older than the compiler"),
        ("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image", "not supported by the compiler"),
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", "give the caches fewer blocks"),
        ("cudaErrorInsufficientDriver: driver is too old", "update the driver"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access", "NUMBA_CKPT_DEBUG=1"),
        ("something else", "run numba-ckpt doctor"),
    ],
)
def test_failures_name_the_kernel_the_cause_and_what_mends_it(launcher, cause, remedy):
    launcher._driver.error = RuntimeError(cause)
    with pytest.raises(DeviceError, match=r"kernel: could not load it on sm_90 \(RuntimeError: ") as raised:
        launcher.launch(KERNEL, (1,), 32, (ARRAY,))
    assert cause in str(raised.value)
    assert remedy in str(raised.value)
    launcher._driver.error = None
    launcher.launch(KERNEL, (1,), 32, (ARRAY,))  # nothing was kept of the failure
    launcher._driver.error = RuntimeError(cause)
    with pytest.raises(DeviceError, match="kernel: could not launch it"):
        launcher.launch(KERNEL, (1,), 32, (ARRAY,))


def test_debugging_waits_for_every_launch(launcher, monkeypatch):
    launcher.launch(KERNEL, (1,), 32, (ARRAY,))
    assert launcher._driver.num_waits == 0
    monkeypatch.setenv("NUMBA_CKPT_DEBUG", "1")
    careful = Launcher(FakeDriver(), launcher._compiler)
    careful.launch(KERNEL, (1,), 32, (ARRAY,))
    assert careful._driver.num_waits == 1
