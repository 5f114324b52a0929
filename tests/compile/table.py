"""The table of docs/machine-code.md; ``python -m tests.compile.table`` writes it again."""

import importlib.metadata
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from tests.compile.compile_kernels import ARCHITECTURES, Compiled, compile_all
from tests.compile.machine_code import main_loop, num_registers, shared_bytes
from tests.compile.signatures import Signature

PAGE = Path(__file__).parents[2] / "docs" / "machine-code.md"
COMPILERS = "numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-cuda-nvcc"
_TABLE = re.compile(r"Made with [^\n]*\n\n(?:\|[^\n]*\n)+")

Compilations = dict[tuple[Signature, str], Compiled]


def toolchain() -> str:
    """Return what the figures depend on."""
    versions = (f"{name} {importlib.metadata.version(name)}" for name in COMPILERS)
    return ", ".join((f"Python {'.'.join(platform.python_version_tuple()[:2])}", *versions))


def _cells(codes: list[Compiled]) -> Iterator[str]:
    loops = [main_loop(code) for code in codes]
    yield str(max(map(num_registers, codes)))
    yield str(max(map(shared_bytes, codes)))
    yield str(min(max(loop.widest("LDG"), loop.widest("STG")) for loop in loops) // 8)
    lengths = sorted(len(loop.instructions) for loop in loops)
    yield str(lengths[0]) if lengths[0] == lengths[-1] else f"{lengths[0]}–{lengths[-1]}"


def table(compiled: Compilations) -> str:
    """Return the table, below a line that says what compiled."""
    lines = ["| kernel | GPU | registers | shared memory (B) | widest access (B) | instructions in the loop |"]
    lines += ["| --- | --- | --: | --: | --: | --: |"]
    for op in sorted({signature.op for signature, _ in compiled}):
        for name in ARCHITECTURES:
            codes = [code for (signature, other), code in compiled.items() if (signature.op, other) == (op, name)]
            lines.append(f"| `{op}` | {name} | {' | '.join(_cells(codes))} |")
    return f"Made with {toolchain()}:\n\n" + "\n".join(lines) + "\n"


def table_on_page() -> str:
    """Return the table as the page has it."""
    found = _TABLE.search(PAGE.read_text())
    assert found, f"{PAGE.name} has a table below a line that begins with Made with"
    return found.group(0)


def main() -> None:
    """Write the page's table again."""
    new = table(compile_all())
    PAGE.write_text(_TABLE.sub(lambda _: new, PAGE.read_text()))


if __name__ == "__main__":
    main()
