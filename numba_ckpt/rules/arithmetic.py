"""Exact integer division, 64 bits wide, that vectorises.

A hardware 64-bit division costs about 10 ns on a host and a subroutine on a GPU. Every rule divides by a block size
that does not change from row to row, so the reciprocal is hoisted out of the loop and a multiplication remains. For
magnitudes below 2^50 a float64 quotient misses the true one by less than half a unit at the place where it is rounded,
so the result is exact; larger numbers take the hardware division. A loop that has shown its values to be small (by a
mask) loses that branch to the compiler.

On a GPU float64 is as dear as the division: there all rules divide in 32 bits where the numbers fit, which they do.
"""

from numba_ckpt._jit import device_quotient, float64, int64, on_device, rule, uint64

FLOAT_EXACT_LIMIT = 2**50
# Adding and taking away 1.5 * 2^52 rounds a float64 below 2^51 in magnitude to the nearest integer.
_ROUNDER = 1.5 * 2.0**52


@rule
def _round_to_integer(x):  # type: ignore[no-untyped-def]
    return (x + _ROUNDER) - _ROUNDER


@rule
def _fits_float(n, divisor):  # type: ignore[no-untyped-def]
    return (n > -FLOAT_EXACT_LIMIT) & (n < FLOAT_EXACT_LIMIT) & (divisor < FLOAT_EXACT_LIMIT)


@rule
def _float_quotient(n, divisor):  # type: ignore[no-untyped-def]
    # floor(n / divisor) = nearest((n + 1/2) / divisor - 1/2): never a tie, since n + 1/2 is no multiple of divisor.
    reciprocal = 1.0 / float64(divisor)
    return _round_to_integer(float64(n) * reciprocal + (0.5 * reciprocal - 0.5))


@rule
def _device_floor_div(n, divisor):  # type: ignore[no-untyped-def]
    # floor(n / d) = ~floor(~n / d) for negative n.
    sign = n >> 63
    return int64(device_quotient(uint64(n ^ sign), uint64(divisor))) ^ sign


@rule
def floor_div(n: int, divisor: int) -> int:
    """Return the largest integer not above ``n / divisor``.

    Parameters
    ----------
    n : int
        Any int64; negative numbers round down, not towards zero.
    divisor : int
        At least 1.

    Returns
    -------
    int
        int64.

    Examples
    --------
    >>> floor_div(7, 4), floor_div(-1, 4), floor_div(2**62, 3)
    (1, -1, 1537228672809129301)
    """
    number = int64(n)
    if on_device():
        return _device_floor_div(number, int64(divisor))
    if _fits_float(number, divisor):
        return int64(_float_quotient(number, divisor))
    return number // int64(divisor)


@rule
def ceil_div(n: int, divisor: int) -> int:
    """Return the smallest integer not below ``n / divisor``.

    Parameters
    ----------
    n : int
        Any int64 but the least.
    divisor : int
        At least 1.

    Examples
    --------
    >>> ceil_div(8, 4), ceil_div(9, 4), ceil_div(-3, 4)
    (2, 3, 0)
    """
    return -floor_div(-int64(n), divisor)


@rule
def floor_to(n: int, unit: int) -> int:
    """Return the largest multiple of `unit` not above `n`.

    Parameters
    ----------
    n : int
        Any int64.
    unit : int
        At least 1.

    Examples
    --------
    >>> floor_to(4999, 8), floor_to(-1, 8)
    (4992, -8)
    """
    number = int64(n)
    if on_device():
        return _device_floor_div(number, int64(unit)) * int64(unit)
    if _fits_float(number, unit):
        return int64(_float_quotient(number, unit) * float64(unit))
    return number // int64(unit) * int64(unit)


@rule
def ceil_to(n: int, unit: int) -> int:
    """Return the smallest multiple of `unit` not below `n`.

    Parameters
    ----------
    n : int
        Any int64 but the least.
    unit : int
        At least 1.

    Examples
    --------
    >>> ceil_to(4999, 8), ceil_to(-9, 8)
    (5000, -8)
    """
    return -floor_to(-int64(n), unit)


@rule
def is_multiple(n: int, unit: int) -> bool:
    """Say whether `n` is a multiple of `unit`.

    Parameters
    ----------
    n : int
        Any int64.
    unit : int
        At least 1.

    Examples
    --------
    >>> bool(is_multiple(4984, 16)), bool(is_multiple(-32, 16))
    (False, True)
    """
    number = int64(n)
    if on_device():
        return _device_floor_div(number, int64(unit)) * int64(unit) == number
    if _fits_float(number, unit):
        return _round_to_integer(float64(number) * (1.0 / float64(unit))) * float64(unit) == float64(number)
    return number % int64(unit) == 0
