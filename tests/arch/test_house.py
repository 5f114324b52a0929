"""The rules of the house that import-linter (in pyproject.toml) cannot say."""

import ast
import builtins
from pathlib import Path

import pytest

from tests.arch.source import (
    COMPILED,
    FILES,
    PACKAGE,
    ROOT,
    code_lines,
    decorators,
    functions,
    imports,
    module_level,
    name_of,
    num_arguments,
    tree_of,
)

EVERY_FILE = pytest.mark.parametrize("path", FILES, ids=name_of)
FLOORS = [
    "rules",
    "planning",
    "kernels",
    "cache",
    "checkpoint",
    "attention",
    "prefix_cache",
    "models",
    "replay",
    "cli",
]


def _floor(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _roots(tree: ast.AST) -> set[str]:
    return {module.partition(".")[0] for module, _ in imports(tree)}


@EVERY_FILE
def test_no_framework_and_numba_behind_jit(path):
    roots = _roots(tree_of(path))
    assert not roots & {"torch", "triton", "vllm", "sglang"}
    knows_numba = path.name in {"_jit.py", "_primitives.py", "_device.py"}
    assert knows_numba or not roots & {"numba", "llvmlite"}, "take decorators and `cuda` from numba_ckpt._jit"


@EVERY_FILE
def test_importing_loads_no_gpu_or_display_library(path):
    heavy = {"cupy", "matplotlib", "msgspec", "rich"}
    assert not _roots(module_level(tree_of(path))) & heavy, "import it in the function that needs it"


@EVERY_FILE
def test_only_replay_and_the_command_print(path):
    calls = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))
    prints = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert not prints or _floor(path) in {"replay", "cli"}


@pytest.mark.parametrize("path", [path for path in FILES if _floor(path) == "rules"], ids=name_of)
def test_rules_import_nothing_but_the_decorator_and_math(path):
    modules = {module for module, _ in imports(tree_of(path))}
    assert all(module in {"numba_ckpt._jit", "math"} or module.startswith("numba_ckpt.rules") for module in modules)
    assert not [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Raise)]


@EVERY_FILE
def test_private_names_stay_on_their_floor(path):
    for module, name in imports(tree_of(path)):
        floor = module.removeprefix("numba_ckpt.").partition(".")[0]
        if floor in FLOORS and floor != _floor(path):
            assert not name.startswith("_"), f"{module}.{name} is private to {floor}"
            assert not name.endswith(("_kernel", "_host")), f"call the launcher of {name} instead"


def _rules_and_casts(tree: ast.Module) -> set[str]:
    """Names that a kernel may use: rules, runs, casts, `cuda`, and the file's own rules and constants."""
    allowed = {name for module, name in imports(tree) if module.startswith("numba_ckpt.rules")}
    shared = {"numba_ckpt._jit", "numba_ckpt.kernels._runs"}
    allowed |= {name for module, name in imports(tree) if module in shared}
    allowed |= {function.name for function in functions(tree) if "rule" in decorators(function)}
    constants = (node for node in tree.body if isinstance(node, ast.Assign))
    return allowed | {name.id for node in constants for name in node.targets if isinstance(name, ast.Name)}


def _foreign_names(kernel: ast.FunctionDef) -> set[str]:
    names = [node for node in ast.walk(kernel) if isinstance(node, ast.Name) and node not in kernel.decorator_list]
    own = {argument.arg for argument in kernel.args.args} | {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return {name.id for name in names} - own - set(dir(builtins))


KERNELS = [
    pytest.param(path, function, id=f"{name_of(path)}:{function.name}")
    for path in FILES
    for function in functions(tree_of(path))
    if "kernel" in decorators(function)
]


@pytest.mark.parametrize(("path", "kernel"), KERNELS)
def test_a_kernel_names_only_rules_and_cuda(path, kernel):
    assert _floor(path) == "kernels"
    assert _foreign_names(kernel) <= _rules_and_casts(tree_of(path))
    assert code_lines(kernel) <= 26, "move arithmetic into rules"


@EVERY_FILE
def test_sizes(path):
    num_lines = path.read_text().count("\n")
    assert num_lines <= 300, "it is two files"
    for function in functions(tree_of(path)):
        assert code_lines(function) <= 40, f"{function.name} is too long"
        if not decorators(function) & COMPILED:
            assert num_arguments(function) <= 6, f"{function.name} wants a record"


def test_the_suite_looks_at_the_checkout():
    assert PACKAGE / "_jit.py" in FILES
    assert (ROOT / "pyproject.toml").exists()
