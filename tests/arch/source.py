"""The package's source as syntax trees, and the questions that the tests of the house ask about it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "numba_ckpt"
FILES = sorted(PACKAGE.rglob("*.py"))
COMPILED = {"rule", "host_loop", "atomic_loop", "fused_loop", "inlined_loop", "closed_loop", "strided_loop", "routine"}
COMPILED |= {"kernel"}


def name_of(path: Path) -> str:
    """Path of a file inside the package, for test ids."""
    return path.relative_to(PACKAGE).as_posix()


def tree_of(path: Path) -> ast.Module:
    """Parse a file."""
    return ast.parse(path.read_text(), path)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """All functions, methods and inner functions."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def decorators(function: ast.FunctionDef) -> set[str]:
    """Names of a function's decorators, without modules and arguments."""
    return {ast.unparse(node).partition("(")[0].rpartition(".")[2] for node in function.decorator_list}


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each imported (module, name); the name is "" for a plain import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def module_level(tree: ast.Module) -> ast.Module:
    """What importing a file executes: the tree without function bodies."""

    class Stripper(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

    return Stripper().visit(tree)


def code_lines(function: ast.FunctionDef) -> int:
    """Lines of a function from `def` to its end, without its docstring, its decorators and blank lines."""
    lines = set(range(function.lineno, (function.end_lineno or function.lineno) + 1))
    if ast.get_docstring(function) is not None:
        lines -= set(range(function.body[0].lineno, function.body[0].end_lineno + 1))
    return len(lines)


def num_arguments(function: ast.FunctionDef) -> int:
    """Arguments of a function, `self` not counted."""
    arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return sum(argument.arg not in {"self", "cls"} for argument in arguments)
