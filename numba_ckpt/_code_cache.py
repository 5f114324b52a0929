"""Compiled kernels on disk, so that a process need not compile what an earlier one did.

An entry is a text and, before it, its digest. It is written under another name and then renamed: a reader finds all of
it or nothing, whoever else is writing. What does not fit its digest is made anew.
"""

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["cache_folder", "cached_code", "stamp"]

_PACKAGE = Path(__file__).parent
_COMPILED = "_device.py", "_jit.py", "_primitives.py", "kernels", "rules"


def cache_folder() -> Path:
    """Return where entries lie: ``NUMBA_CKPT_CACHE_DIR``, or ``numba_ckpt`` in the user's folder of caches."""
    chosen = os.environ.get("NUMBA_CKPT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba_ckpt"


def _sources(names: Iterable[str]) -> Iterable[Path]:
    for name in names:
        path = _PACKAGE / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


@functools.cache
def stamp() -> str:
    """Return a text that changes with whatever compiled code depends on: compilers, and the package's own source."""
    digest = hashlib.sha256()
    for path in _sources(_COMPILED):
        digest.update(path.read_bytes())
    versions = (f"{name} {_version(name)}" for name in ("numba", "numba-cuda", "nvidia-nvvm"))
    return " ".join((*versions, digest.hexdigest()))


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _read(path: Path) -> str | None:
    try:
        digest, _, code = path.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return code if digest == _digest(code) else None


def _write(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{_digest(code)}\n{code}")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def cached_code(key: object, make: Callable[[], str]) -> str:
    """Return the code of `key`, made now unless a process has kept it; where none can write, each makes its own."""
    path = cache_folder() / f"{_digest(repr((stamp(), key)))}.ptx"
    code = _read(path)
    if code is None:
        code = make()
        with contextlib.suppress(OSError):
            _write(path, code)
    return code
