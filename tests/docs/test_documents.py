"""Every fenced block of README and docs does what it says, and none can be added that is not looked at."""

import doctest
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sybil import Document
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from tests.docs.shell import check_command, run_session

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ALL_FENCES = RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)\n"))
CODE_LINE = re.compile(r"^\s*(>>> |\$ |import |from \w[\w.]* import |<pre)", re.MULTILINE)


def _run_python(source: str, namespace: dict[str, Any]) -> None:
    if not source.startswith(">>>"):
        exec(source, namespace)
        return
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(source, namespace, "block", None, 0)
    test.globs = namespace  # doctest copies it; later blocks need what this one defines
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    runner.run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)


def _run_commands(source: str, _: dict[str, Any]) -> None:
    for command in source.replace("\\\n", " ").splitlines():
        if command.strip() and not command.startswith("#"):
            check_command(command)


def _check_picture(source: str, _: dict[str, Any]) -> None:
    assert not CODE_LINE.search(source), "code has to say its language, to be executed"


CHECKS: dict[str, Callable[[str, dict[str, Any]], None]] = {
    "console": lambda source, _: run_session(source),
    "json": lambda source, _: json.loads(source),
    "python": _run_python,
    "sh": _run_commands,
    "text": _check_picture,
}


def _blocks(document: Document) -> Iterator[tuple[int, str, str]]:
    for region in ALL_FENCES(document):
        line = document.text.count("\n", 0, region.start) + 1
        yield line, region.lexemes["language"].strip(), str(region.lexemes["source"])


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request):
    return Document.parse(str(request.param))


def test_every_block_does_what_it_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, language, source in _blocks(document):
        assert language in CHECKS, f"{document.path}:{line}: {language!r} blocks are not executed"
        try:
            CHECKS[language](source, namespace)
        except Exception as failure:
            failure.add_note(f"in the block at {document.path}:{line}")
            raise


def test_no_code_outside_of_fences(document):
    prose = document.text
    for region in reversed(list(ALL_FENCES(document))):
        prose = prose[: region.start] + prose[region.end :]
    assert not CODE_LINE.search(prose)


@pytest.mark.parametrize("block", ["```\nx = 1\n```\n", "```pycon\n>>> 1\n2\n```\n"])
def test_a_block_without_a_known_language_is_refused(block, tmp_path, monkeypatch):
    with pytest.raises(AssertionError, match="are not executed"):
        test_every_block_does_what_it_says(Document(block, "page.md"), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "block",
    [
        "```python\n>>> 1 + 1\n3\n```\n",
        "```python\nassert 1 + 1 == 3\n```\n",
        "```console\n$ echo two\nthree\n```\n",
        "```sh\nfalse\n```\n",
        '```sh\npip install "numba-ckpt[nothing]"\n```\n',
        "```text\n>>> import os\n```\n",
    ],
)
def test_a_wrong_block_fails(block, tmp_path, monkeypatch):
    with pytest.raises(AssertionError):
        test_every_block_does_what_it_says(Document(block, "page.md"), tmp_path, monkeypatch)
