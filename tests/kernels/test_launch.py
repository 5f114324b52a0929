"""Grids of launches: bounded, so that no thread's index leaves 32 bits where a kernel would not look."""

import pytest

from numba_ckpt.kernels._launch import launch_grid, num_run_threads
from numba_ckpt.rules import global_index


class RecordingDevice:
    def __init__(self):
        self.grids = []

    def launch(self, kernel, grid, block, arguments):
        self.grids.append((grid, block))


@pytest.mark.parametrize("shape", [(1, 22_121_216 * 256), (22_121_216, 1), (2**40, 2**40)])
def test_b73_grids_stay_within_cudas_limits(shape):
    device = RecordingDevice()
    launch_grid(device, None, shape, ())
    ((cols, rows), block) = device.grids[0]
    assert 1 <= cols <= 2**31 - 1
    assert 1 <= rows <= 65_535
    assert cols * block < 2**31


def test_b73_an_index_of_a_grid_that_is_not_bounded():
    assert global_index(22_121_215, 256, 255) == 22_121_216 * 256 - 1


def test_planes_are_the_third_axis_and_bounded():
    device = RecordingDevice()
    launch_grid(device, None, (70_000, 3, 257), ())
    assert device.grids == [((2, 3, 65_535), 256)]


def test_threads_of_a_run():
    assert [num_run_threads(size, 4) for size in (0, 1, 16, 17)] == [0, 1, 1, 2]


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 5, 5)])
def test_nothing_to_do_launches_nothing(shape):
    device = RecordingDevice()
    launch_grid(device, None, shape, ())
    assert device.grids == []
