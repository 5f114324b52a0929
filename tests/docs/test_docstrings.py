"""The examples in the package's docstrings give what they show."""

import doctest
from pathlib import Path

import pytest
from sybil.document import PythonDocStringDocument
from sybil.parsers.rest import DocTestParser

ROOT = Path(__file__).parents[2]
MODULES = [path for path in sorted((ROOT / "numba_ckpt").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in PythonDocStringDocument.parse(str(path), DocTestParser(doctest.ELLIPSIS)).examples():
        example.evaluate()
