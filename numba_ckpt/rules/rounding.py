"""float32 to float16 and bfloat16, round to nearest even, on bit patterns.

Bits in, bits out, so that one definition serves hosts without half-precision types, kernels and the simulator. NaNs
keep their sign and their leading payload bits and become quiet; overflow gives infinity; subnormals are kept.
"""

from numba_ckpt._jit import int64, rule

CAST_NONE = 0
"""Copy bit patterns unchanged."""
CAST_FLOAT16 = 1
"""float32 bits to IEEE float16 bits."""
CAST_BFLOAT16 = 2
"""float32 bits to bfloat16 bits."""


@rule
def _round_shift(value, shift):  # type: ignore[no-untyped-def]
    # Drops `shift` low bits, to nearest, ties to even.
    return (value + (int64(1) << (shift - 1)) - 1 + ((value >> shift) & 1)) >> shift


@rule
def float16_bits(bits: int) -> int:
    """Return the float16 bit pattern nearest to a float32 bit pattern, ties to even.

    Parameters
    ----------
    bits : int
        float32 bit pattern, 0 to 2^32 - 1.

    Returns
    -------
    int
        int64 in [0, 2^16).

    Examples
    --------
    >>> hex(float16_bits(0x3F800000)), hex(float16_bits(0x7F7FFFFF)), hex(float16_bits(0x33000001))
    ('0x3c00', '0x7c00', '0x1')
    """
    magnitude = int64(bits) & 0x7FFFFFFF
    exponent = magnitude >> 23
    significand = (magnitude & 0x7FFFFF) | 0x800000
    # The exponent is rebiased by 112; below 2^-14 the significand moves right until its exponent is float16's least.
    normal = _round_shift(magnitude - (int64(112) << 23), int64(13))
    subnormal = _round_shift(significand, min(max(int64(126) - exponent, int64(1)), int64(40)))
    rounded = normal if exponent >= 113 else subnormal
    half = min(rounded, int64(0x7C00))
    if magnitude > 0x7F800000:
        half = int64(0x7E00) | ((magnitude >> 13) & 0x3FF)
    return half | ((int64(bits) >> 16) & 0x8000)


@rule
def bfloat16_bits(bits: int) -> int:
    """Return the bfloat16 bit pattern nearest to a float32 bit pattern, ties to even.

    Parameters
    ----------
    bits : int
        float32 bit pattern, 0 to 2^32 - 1.

    Returns
    -------
    int
        int64 in [0, 2^16).

    Examples
    --------
    >>> hex(bfloat16_bits(0x3F808000)), hex(bfloat16_bits(0x3F818000)), hex(bfloat16_bits(0xFF800001))
    ('0x3f80', '0x3f82', '0xffc0')
    """
    pattern = int64(bits)
    if (pattern & 0x7FFFFFFF) > 0x7F800000:
        return (pattern >> 16) | 0x40
    return _round_shift(pattern, int64(16))


@rule
def cast_bits(bits: int, cast: int) -> int:
    """Return a bit pattern as `cast` (`CAST_NONE`, `CAST_FLOAT16`, `CAST_BFLOAT16`) stores it.

    Parameters
    ----------
    bits : int
        Bit pattern of the source element; float32 unless `cast` is `CAST_NONE`.
    cast : int
        One of the CAST constants.

    Examples
    --------
    >>> cast_bits(7, CAST_NONE), cast_bits(0x3F800000, CAST_BFLOAT16) == 0x3F80
    (7, True)
    """
    pattern = int64(bits)
    if cast == CAST_FLOAT16:
        pattern = float16_bits(pattern)
    elif cast == CAST_BFLOAT16:
        pattern = bfloat16_bits(pattern)
    return pattern
