"""Grids and launches: the one place that decides how many threads a kernel gets."""

from typing import Any

from numba_ckpt._array import DeviceBackend
from numba_ckpt.rules import ceil_div

__all__ = ["launch_grid", "num_run_threads"]

THREADS_PER_BLOCK = 256
# So many bytes a thread has under way at a time when it copies (see `copy_run`).
RUN_BYTES_PER_THREAD = 64
# CUDA's limit on the second and third grid axis; kernels stride over what does not fit.
MAX_GRID_ROWS = 65_535
MAX_GRID_COLS = 65_535


def num_run_threads(num_items: int, item_bytes: int) -> int:
    """Return how many threads share a run of items."""
    return int(ceil_div(num_items * item_bytes, RUN_BYTES_PER_THREAD))


def launch_grid(backend: DeviceBackend, kernel: Any, shape: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    """Launch `kernel` over `shape` = ([planes,] rows, threads per row) on the current stream; does not synchronise.

    All axes are bounded, so kernels stride over them. Nothing is launched for an empty shape.
    """
    *rows, num_threads = shape
    if 0 in shape:
        return
    num_blocks = min(ceil_div(num_threads, THREADS_PER_BLOCK), MAX_GRID_COLS)
    grid = num_blocks, *(min(num_rows, MAX_GRID_ROWS) for num_rows in reversed(rows))
    backend.launch(kernel, grid, THREADS_PER_BLOCK, arguments)
