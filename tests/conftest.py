"""What every test needs before numba is imported: a cache that follows the sources, and hypothesis profiles."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"

# The simulator replaces numba.cuda for a whole process, so its tests have one of their own (see scripts/test).
collect_ignore = [] if SIMULATED else ["simulator"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Compile kernels only in a process that was asked to: it takes its time, and cannot be the simulator's."""
    if collection_path != ROOT / "tests" / "compile":
        return None
    asked = any("compile" in argument for argument in config.invocation_params.args)
    return True if SIMULATED or not asked else None


def _compiled_sources() -> str:
    """Return a digest of the files that hold compiled code.

    numba notices a change of a cached function's own file, not of a rule that was inlined into it from another. Such
    files import `_jit`; it, and what lies below it, import numba.
    """
    digest = hashlib.sha256()
    for path in sorted((ROOT / "numba_ckpt").rglob("*.py")):
        source = path.read_bytes()
        if b"_jit" in source or re.search(rb"^(from|import) numba\b", source, re.MULTILINE):
            digest.update(source)
    return digest.hexdigest()[:16]


os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".numba_cache" / _compiled_sources()))

# The first example compiles, which no deadline fits.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
