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
        for number, instructions in enumerate(unreached(sys.argv[1], 45)):
            print(f"{sys.argv[1]}, argument types {number}", *instructions, sep="\n  ")  # noqa: T201
