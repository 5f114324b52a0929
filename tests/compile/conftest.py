"""All kernels, compiled once per run."""

import pytest

from tests.compile.compile_kernels import compile_all


@pytest.fixture(scope="session")
def compiled():
    return compile_all()
