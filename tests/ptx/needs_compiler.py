"""Imported first by tests that compile kernels: skips them where nothing can.

numba's own CUDA compiles with the libraries of an installed toolkit; numba-cuda brings its own.
"""

import pytest
from numba.core import config

pytest.importorskip("numba_cuda", reason='compiles kernels: pip install -e ".[compile]"')
if config.DISABLE_JIT:
    pytest.skip("compiles kernels: unset NUMBA_DISABLE_JIT", allow_module_level=True)
