"""The pictures in docs are what the rules draw today."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
PICTURES = runpy.run_path(str(FOLDER / "draw.py"))["PICTURES"]


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_picture_is_current(name):
    assert (FOLDER / f"{name}.svg").read_text() == PICTURES[name]().svg(), "run: python docs/pictures/draw.py"


def test_every_picture_has_a_drawing():
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(PICTURES)
