"""The table in the docs has the figures of the kernels as they are."""

import pytest

from tests.compile.table import table, table_on_page, toolchain


def test_the_table_is_fresh(compiled):
    if toolchain() not in table_on_page():
        pytest.skip(f"the table was made by other compilers than {toolchain()}")
    assert table_on_page() == table(compiled), "write it again: python -m tests.compile.table"
