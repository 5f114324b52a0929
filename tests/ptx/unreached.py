"""Print the instructions that random calls never run: ``python -m tests.ptx.unreached copy_blocks``.

They are where a case is missing, or where the compiler prepares for numbers that never come.
"""

import sys

import pytest

from tests.ptx.twins import unreached
from tests.simulator.conftest import shrink_grids

if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        shrink_grids(patch)
        for (kernel, signature), instructions in unreached(sys.argv[1], 30).items():
            print(f"{kernel.py_func.__name__}{signature}", *instructions, sep="\n  ")  # noqa: T201
