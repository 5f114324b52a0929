"""Grids and launches: the one place that decides how many threads a kernel gets."""

from typing import Any

from numba_ckpt._array import DeviceBackend
from numba_ckpt.rules import ceil_div

__all__ = ["launch_grid"]

THREADS_PER_BLOCK = 256
# CUDA's limit on the second grid axis; kernels stride over what does not fit.
MAX_GRID_ROWS = 65_535
MAX_GRID_COLS = 65_535


def launch_grid(backend: DeviceBackend, kernel: Any, shape: tuple[int, int], arguments: tuple[Any, ...]) -> None:
    """Launch `kernel` over `shape` = (rows, items per row) on the current stream; does not synchronise.

    Both axes are bounded, so kernels stride over them. Nothing is launched for an empty shape.
    """
    num_rows, num_items = shape
    if num_rows == 0 or num_items == 0:
        return
    num_blocks = min(ceil_div(num_items, THREADS_PER_BLOCK), MAX_GRID_COLS)
    backend.launch(kernel, (num_blocks, min(num_rows, MAX_GRID_ROWS)), THREADS_PER_BLOCK, arguments)
