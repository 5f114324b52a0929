"""Print the instructions that the random calls never run: ``python -m tests.ptx.unreached copy_blocks``.

They are where a case is missing, or where the compiler prepares for numbers that never come.
"""

import sys
from collections import defaultdict
from typing import Any

import pytest

from numba_ckpt.kernels import _launch
from tests.ptx.abi import COMPACT, compiled
from tests.ptx.test_random import check

__all__ = ["unreached"]


def unreached(name: str, num_seeds: int = 30) -> dict[Any, list[str]]:
    """Return, for each kernel and argument types that a call launches, the instructions that no thread runs."""
    reached: dict[Any, set[int]] = defaultdict(set)
    with pytest.MonkeyPatch.context() as patch:
        for limit, value in (("THREADS_PER_BLOCK", 4), ("MAX_GRID_ROWS", 3), ("MAX_GRID_COLS", 2)):
            patch.setattr(_launch, limit, value)
        for seed in range(num_seeds):
            for key, blocks in check(name, seed).reached.items():
                reached[key] |= blocks
    return {key: _others(compiled(COMPACT, *key, (9, 0)).blocks, blocks) for key, blocks in reached.items()}


def _others(blocks: Any, reached: set[int]) -> list[str]:
    return [str(each) for index, block in enumerate(blocks) if index not in reached for each in block]


if __name__ == "__main__":
    for (kernel, signature), instructions in unreached(sys.argv[1]).items():
        print(f"{kernel.py_func.__name__}{signature}", *instructions, sep="\n  ")  # noqa: T201
