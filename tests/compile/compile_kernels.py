"""Kernels compiled to PTX and machine code, without a GPU."""

import functools
import importlib.metadata
import multiprocessing
import os
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from numba import types
from numba.core.errors import NumbaError
from numba.cuda.compiler import _compile_pyfunc_with_fixup

from numba_ckpt._device import CompactArray, launch_bounds, with_entry
from numba_ckpt.kernels._launch import THREADS_PER_BLOCK
from numba_ckpt.kernels._registry import OPS
from tests.compile.signatures import SIGNATURES, Signature

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_SCALARS = {"i4": types.int32, "i8": types.int64, "u1": types.uint8, "u2": types.uint16, "u4": types.uint32}
_SCALARS |= {"?": types.boolean}


class Compiled(NamedTuple):
    """A kernel's PTX, its machine code as text and ptxas' report; or why it does not compile."""

    ptx: str = ""
    sass: str = ""
    report: str = ""
    error: str = ""


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
    raise FileNotFoundError(f"{name}: expected it in the compiler wheels; install the extra dev")


def assemble(ptx: str, architecture: str) -> tuple[str, str]:
    """Return the machine code of PTX as text, and what ptxas reports of it."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [tool("ptxas"), "-v", f"-arch={architecture}", source, "-o", cubin]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        sass = subprocess.run([tool("nvdisasm"), "-c", cubin], capture_output=True, text=True, check=True)
    return sass.stdout, done.stderr


def _compile_ptx(kernel: Any, arguments: tuple[str, ...], architectures: tuple[str, ...]) -> list[str]:
    """Do what `compile_ptx` does, but work out once for all what the kernel means: that takes longest."""
    first, *_ = capabilities = [capability_of(name) for name in architectures]
    library, _ = _compile_pyfunc_with_fixup(
        kernel.py_func,
        tuple(map(argument_type, arguments)),
        device=False,
        abi="numba",
        cc=first,
        launch_bounds=launch_bounds(THREADS_PER_BLOCK),
    )
    return [with_entry(library.get_asm_strs(cc=cc)[0], kernel.py_func.__name__) for cc in capabilities]


def compile_function(kernel: Any, arguments: tuple[str, ...], *architectures: str) -> list[Compiled]:
    """Compile a kernel for argument types as a signature spells them, once for each architecture."""
    try:
        codes = _compile_ptx(kernel, arguments, architectures)
    except (NumbaError, TypeError) as error:
        return [Compiled(error=str(error)) for _ in architectures]
    return [Compiled(ptx, *assemble(ptx, name)) for ptx, name in zip(codes, architectures, strict=True)]


def compile_kernel(signature: Signature, *architectures: str) -> list[Compiled]:
    """Compile a kernel of the registry."""
    return compile_function(OPS[signature.op].kernel, signature.arguments, *architectures)


def _compile_everywhere(signature: Signature) -> list[Compiled]:
    return compile_kernel(signature, *ARCHITECTURES)


def compile_all() -> dict[tuple[Signature, str], Compiled]:
    """Compile every kernel for every architecture, on all cores."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        codes = pool.map(_compile_everywhere, SIGNATURES, chunksize=2)
        rows = list(zip(SIGNATURES, codes, strict=True))
    return {(signature, name): code for signature, row in rows for name, code in zip(ARCHITECTURES, row, strict=True)}
