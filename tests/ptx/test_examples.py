"""The examples in the interpreter's docstrings give what they show."""

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

from tests.ptx import interpreter

HERE = Path(__file__).parent
MODULES = [path for path in sorted(HERE.rglob("*.py")) if path != Path(__file__) and ">>> " in path.read_text()]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples(path):
    name = path.relative_to(HERE).with_suffix("").as_posix().replace("/", ".")
    module = importlib.import_module(f"tests.ptx.{name}")
    found = doctest.testmod(module, extraglobs=vars(interpreter) | vars(module) | {"np": np})
    assert found.attempted > 0
    assert found.failed == 0
