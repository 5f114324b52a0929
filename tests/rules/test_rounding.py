"""NaNs keep their sign and leading payload bits, and become quiet."""

import pytest

from numba_ckpt.rules import bfloat16_bits, float16_bits


@pytest.mark.parametrize(
    ("bits", "half", "brain"),
    [
        (0x7FC00000, 0x7E00, 0x7FC0),
        (0xFFC00000, 0xFE00, 0xFFC0),
        (0x7F800001, 0x7E00, 0x7FC0),
        (0x7FA02000, 0x7F01, 0x7FE0),
        (0x7F800000, 0x7C00, 0x7F80),
        (0xFF800000, 0xFC00, 0xFF80),
    ],
)
def test_nans_and_infinities(bits, half, brain):
    assert float16_bits(bits) == half
    assert bfloat16_bits(bits) == brain
