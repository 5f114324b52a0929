"""The device that runs machine code, for each way in which a kernel is compiled; skipped where nothing compiles."""

import importlib.util

# numba's own CUDA compiles with libraries of an installed toolkit; numba-cuda brings its own.
HAS_COMPILER = importlib.util.find_spec("numba_cuda") is not None
NEEDS_COMPILER = ["test_planted.py", "test_registry.py", "test_recordings.py", "test_random.py"]

collect_ignore = [] if HAS_COMPILER else NEEDS_COMPILER
