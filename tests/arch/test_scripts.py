"""Scripts stay short, portable and known to contributors; CI and people run the same ones."""

import os
import subprocess

import pytest

from tests.arch.source import ROOT

SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.suffix == "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script(script):
    lines = script.read_text().splitlines()
    assert os.access(script, os.X_OK)
    assert lines[0] == "#!/bin/sh"
    assert len(lines) <= 15
    subprocess.run(["sh", "-n", script], check=True)
    assert f"scripts/{script.name}" in (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
