"""Importing the package is cheap, and touches neither a GPU nor the libraries of the command."""

import subprocess
import sys
from pathlib import Path

import pytest

LISTING = "import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
MAPS = Path("/proc/self/maps")


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["numba_ckpt", "numba_ckpt.cli"])
def test_import_loads_no_extra(module):
    loaded = set(_run(LISTING.format(module=module)).split())
    assert "numba" in loaded
    assert not loaded & {"cupy", "matplotlib", "msgspec", "rich", "torch", "triton", "vllm"}


@pytest.mark.skipif(not MAPS.exists(), reason="reads the memory map that Linux gives a process")
def test_import_does_not_load_the_driver():
    assert "libcuda.so" not in _run(f"import numba_ckpt; print(open({str(MAPS)!r}).read())")
