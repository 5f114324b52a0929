"""Integer division is exact over all of int64, from Python and from compiled loops."""

import numpy as np
import pytest

from numba_ckpt._jit import host_loop
from numba_ckpt.rules import ceil_div, ceil_to, floor_div, floor_to, is_multiple

INT64 = np.iinfo(np.int64)
SMALL = [-9, -8, -7, -1, 0, 1, 7, 8, 9]
# A float64 quotient is trusted below 2^50, and float64 itself stops being exact at 2^53.
EDGES = [
    sign * 2**power + step for power in (31, 32, 49, 50, 51, 52, 53, 62) for sign in (-1, 1) for step in (-1, 0, 1)
]
NUMBERS = [*SMALL, *EDGES, INT64.min, INT64.max]
DIVISORS = [1, 2, 3, 7, 16, 528, 2096, 2**31 - 1, 2**31, 2**32 + 1, 2**49 - 1, 2**50 - 1, 2**50, 2**53 + 1, 2**62]


@host_loop
def _divide_rows(numbers, divisor, quotients, floors, multiples):
    for row in range(numbers.size):
        quotients[row] = floor_div(numbers[row], divisor)
        floors[row] = floor_to(numbers[row], divisor)
        multiples[row] = is_multiple(numbers[row], divisor)


@host_loop
def _ceil_rows(numbers, divisor, quotients):
    for row in range(numbers.size):
        quotients[row] = ceil_div(numbers[row], divisor)


def near_multiples(divisor):
    """Numbers just below, on and above multiples of `divisor`, where a rounded quotient would slip."""
    factors = [-(2**49) // divisor, -3, -1, 0, 1, 3, 2**49 // divisor, 2**50 // divisor, 2**62 // divisor]
    numbers = [factor * divisor + step for factor in factors for step in (-1, 0, 1)]
    return [number for number in numbers if INT64.min <= number <= INT64.max]


def floor_of(number, divisor):
    """The largest multiple of `divisor` not above `number`, if it is an int64."""
    return number // divisor * divisor


@pytest.mark.parametrize("divisor", DIVISORS)
def test_floor_ceil_and_multiple_equal_python_ints(divisor):
    for n in NUMBERS + near_multiples(divisor):
        assert floor_div(n, divisor) == n // divisor, (n, divisor)
        assert is_multiple(n, divisor) == (n % divisor == 0), (n, divisor)
        if floor_of(n, divisor) >= INT64.min:
            assert floor_to(n, divisor) == floor_of(n, divisor), (n, divisor)
        if n > INT64.min:
            assert ceil_div(n, divisor) == -(-n // divisor), (n, divisor)
            if -floor_of(-n, divisor) <= INT64.max:
                assert ceil_to(n, divisor) == -(-n // divisor) * divisor, (n, divisor)


@pytest.mark.parametrize("divisor", DIVISORS)
def test_a_compiled_loop_divides_alike(divisor):
    numbers = np.array([n for n in NUMBERS + near_multiples(divisor) if floor_of(n, divisor) >= INT64.min], np.int64)
    quotients, floors, multiples = np.empty_like(numbers), np.empty_like(numbers), np.empty(numbers.size, np.bool_)
    _divide_rows(numbers, divisor, quotients, floors, multiples)
    assert quotients.tolist() == [int(n) // divisor for n in numbers]
    assert floors.tolist() == [floor_of(int(n), divisor) for n in numbers]
    assert multiples.tolist() == [int(n) % divisor == 0 for n in numbers]
    in_domain = numbers[numbers > INT64.min]
    _ceil_rows(in_domain, divisor, quotients)
    assert quotients[: in_domain.size].tolist() == [-(-int(n) // divisor) for n in in_domain]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.uint64])
def test_narrow_numbers_are_widened_before_they_are_used(dtype):
    info = np.iinfo(dtype)
    numbers = np.array([info.min, info.min + 1, 0, 1, min(info.max, INT64.max) - 1, min(info.max, INT64.max)], dtype)
    quotients, floors, multiples = (np.empty(numbers.size, t) for t in (np.int64, np.int64, np.bool_))
    _divide_rows(numbers, 7, quotients, floors, multiples)
    assert quotients.tolist() == [int(n) // 7 for n in numbers]
    assert floors.tolist() == [floor_of(int(n), 7) for n in numbers]
    _ceil_rows(numbers, np.int32(7), quotients)
    assert quotients.tolist() == [-(-int(n) // 7) for n in numbers]
