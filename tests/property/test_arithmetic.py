"""Division rules over all of int64 against Python ints."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numba_ckpt._jit import host_loop
from numba_ckpt.rules import ceil_div, floor_div, floor_to, is_multiple

INT64 = np.iinfo(np.int64)
DIVISORS = st.one_of(
    st.integers(1, 9),
    st.integers(1, 8192),
    st.integers(2**31 - 9, 2**31 + 9),
    st.integers(2**49, 2**51),
    st.integers(1, 2**62),
)


@st.composite
def fractions(draw):
    """A divisor, and a number anywhere or right beside a multiple of it, where rounding has to be right."""
    divisor = draw(DIVISORS)
    anywhere = st.one_of(st.integers(INT64.min, INT64.max), st.integers(2**50 - 9, 2**50 + 9))
    largest = INT64.max // divisor - 1
    beside = st.builds(
        lambda factor, step: factor * divisor + step, st.integers(-largest, largest), st.sampled_from([-1, 0, 1])
    )
    near_limit = st.integers(-(2**50) // divisor - 2, 2**50 // divisor + 2).map(lambda factor: factor * divisor)
    number = draw(st.one_of(anywhere, beside, near_limit))
    return max(INT64.min, min(number, INT64.max)), divisor


@settings(max_examples=1000, deadline=None)
@given(fractions())
@example((-1, 2**31 - 1))
@example((INT64.min, 1))
@example((INT64.max, 1))
def test_division_equals_python_ints(fraction):
    n, divisor = fraction
    assert floor_div(n, divisor) == n // divisor
    assert is_multiple(n, divisor) == (n % divisor == 0)
    if n // divisor * divisor >= INT64.min:
        assert floor_to(n, divisor) == n // divisor * divisor
    if n > INT64.min:
        assert ceil_div(n, divisor) == -(-n // divisor)


@host_loop
def _divide_all(numbers, divisor, quotients, multiples):
    for row in range(numbers.size):
        quotients[row] = floor_div(numbers[row], divisor)
        multiples[row] = is_multiple(numbers[row], divisor)


@settings(max_examples=100, deadline=None)
@given(divisor=DIVISORS, seed=st.integers(0, 2**32 - 1), bits=st.integers(1, 63))
def test_a_compiled_loop_divides_as_numpy_does(divisor, seed, bits):
    numbers = np.random.default_rng(seed).integers(-(2**bits), 2**bits, 1000, dtype=np.int64)
    numbers[::3] = numbers[::3] // divisor * divisor
    quotients, multiples = np.empty_like(numbers), np.empty(numbers.size, np.bool_)
    _divide_all(numbers, divisor, quotients, multiples)
    assert np.array_equal(quotients, numbers // divisor)
    assert np.array_equal(multiples, numbers % divisor == 0)
