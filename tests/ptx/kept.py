"""PTX of earlier runs, kept beside numba's own cache: compiling takes most of these tests' time."""

import hashlib
import importlib.metadata
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["kept"]

_TOOLS = "numba", "numba-cuda", "nvidia-nvvm"


def kept(what: tuple[Any, ...], compile_it: Callable[[], str]) -> str:
    """Return the PTX of (abi, kernel, signature, capability), compiled by an earlier run or now.

    The directory changes with the package's sources (see tests/conftest.py), the name with the rest.
    """
    abi, kernel, signature, capability = what
    source = Path(inspect.getfile(kernel.py_func)).read_text()
    parts = source, abi.name, str(signature), str(capability)
    versions = ",".join(importlib.metadata.version(tool) for tool in _TOOLS)
    digest = hashlib.sha256("\0".join((*parts, versions)).encode()).hexdigest()[:32]
    path = Path(os.environ["NUMBA_CACHE_DIR"]) / "ptx" / f"{kernel.py_func.__name__}-{digest}.ptx"
    if path.exists():
        return path.read_text()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(ptx := compile_it())
    unfinished.replace(path)
    return ptx
