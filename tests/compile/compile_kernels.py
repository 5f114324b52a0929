"""Kernels compiled to PTX and SASS without a GPU, once per run."""

import functools
import importlib.metadata
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from numba import types

from numba_ckpt._device import CompactArray, compile_ptx
from numba_ckpt.kernels._launch import THREADS_PER_BLOCK
from numba_ckpt.kernels._registry import OPS
from tests.compile.signatures import Signature

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_SCALARS = {"i4": types.int32, "i8": types.int64, "u1": types.uint8, "u2": types.uint16, "u4": types.uint32}
_SCALARS |= {"?": types.boolean}


class Compiled(NamedTuple):
    """What the compilers say of a kernel: its PTX, the machine code as text, and what ptxas reports about it."""

    ptx: str
    sass: str
    report: str

    def figure(self, pattern: str) -> int:
        """Return the number in front of a phrase of the report, 0 where there is none."""
        found = re.search(rf"(\d+) {pattern}", self.report)
        return int(found.group(1)) if found else 0

    @property
    def num_registers(self) -> int:
        return int(re.search(r"Used (\d+) registers", self.report).group(1))


def argument_type(text: str) -> types.Type:
    """Return numba's type of an argument that a signature spells."""
    name, _, ndim = text.rstrip("]").partition("[")
    return CompactArray(_SCALARS[name], int(ndim)) if ndim else _SCALARS[name]


def capability_of(architecture: str) -> tuple[int, int]:
    """Return (major, minor) of ``sm_90``."""
    digits = architecture.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


@functools.cache
def tool(name: str) -> str:
    """Return the path of a program that a compiler wheel brought."""
    for distribution in ("nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm"):
        for file in importlib.metadata.files(distribution) or ():
            if file.name == name:
                return str(file.locate())
    raise FileNotFoundError(f"{name}: expected it in the wheels of the extra compile; install it")


def assemble(ptx: str, architecture: str, folder: Path) -> tuple[str, str]:
    """Return the machine code of PTX as text, and what ptxas reports."""
    source, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    command = [tool("ptxas"), "-v", f"-arch={architecture}", source, "-o", cubin]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sass = subprocess.run([tool("nvdisasm"), "-c", cubin], capture_output=True, text=True, check=True)
    return sass.stdout, done.stderr


def compile_kernel(signature: Signature, architecture: str, folder: Path) -> Compiled:
    """Compile a kernel of the registry for one list of argument types."""
    arguments = tuple(map(argument_type, signature.arguments))
    ptx = compile_ptx(OPS[signature.op].kernel, arguments, capability_of(architecture), THREADS_PER_BLOCK)
    return Compiled(ptx, *assemble(ptx, architecture, folder))
