"""Run, or where running would install things, check the shell commands that a document shows."""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The command under test is the checkout's, whether or not it is installed here.
MAIN = "from numba_ckpt.cli import main; raise SystemExit(main())"
# Files that commands read lie where a reader in the checkout finds them.
PRELUDE = (
    f'numba-ckpt() {{ {shlex.quote(sys.executable)} -c "{MAIN}" "$@"; }}\n'
    f"mkdir -p docs; ln -sfn {shlex.quote(str(ROOT / 'docs' / 'examples'))} docs/examples\n"
)
COMMAND_AND_OUTPUT = re.compile(r"^\$ (.*(?:\\\n.*)*)\n?((?:(?!\$ ).*\n?)*)", re.MULTILINE)
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _run(command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", PRELUDE + command], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_session(source: str) -> None:
    """Run the `$ ` lines of a console block and compare the output shown under them; "..." stands for anything."""
    for command, expected in COMMAND_AND_OUTPUT.findall(source):
        got = _run(command)
        shown, printed = (re.sub("─+", "─", text) for text in (expected, got))  # a table's width is its own business
        same = not expected.strip() or doctest.OutputChecker().check_output(shown, printed, LENIENT)
        assert same, f"{command}\nexpected:\n{expected}\ngot:\n{got}"


def _check_install(arguments: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for argument in (word for word in arguments if not word.startswith("-")):
        name, _, extras = argument.rstrip("]").partition("[")
        assert name in {project["name"], "."}, f"{argument} is not this package"
        for extra in filter(None, extras.split(",")):
            assert extra in project["optional-dependencies"], f"pyproject.toml has no extra {extra}"


def check_command(command: str) -> None:
    """Run a command; one that installs, or one of scripts/ (which install too), is checked instead."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["pip", "install"]:
        _check_install(words[2:])
    elif words[0].removeprefix("./").startswith(("scripts/", ".ci/")):
        script = ROOT / words[0]
        assert os.access(script, os.X_OK), f"{script} cannot be executed"
        subprocess.run(["sh", "-n", script], check=True)
    else:
        _run(command)
