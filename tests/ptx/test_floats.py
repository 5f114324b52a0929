"""Floating-point instructions against exact fractions, rounded by an independent rule."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ptx.interpreter import UnknownInstructionError
from tests.ptx.interpreter.rounding import bfloat16_to_float
from tests.ptx.snippets import evaluate

# Of a format: bits after the point, least exponent of a normal number, bits of the exponent.
FORMATS = {"f16": (10, -14, 5), "bf16": (7, -126, 8), "f32": (23, -126, 8), "f64": (52, -1022, 11)}
STORED = {"f16": np.uint16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
MODES = ["rn", "rz", "rm", "rp"]


def value_of(stored, kind):
    """A finite stored number, exactly."""
    number = {"f16": lambda: stored.view(np.float16), "bf16": lambda: bfloat16_to_float(np.atleast_1d(stored))[0]}
    return Fraction(float(number.get(kind, lambda: stored)()))


def rounded(exact, kind, mode):
    """Bits of a fraction, rounded to a format: an integer number of units at its exponent."""
    digits, least, width = FORMATS[kind]
    size, sign = abs(exact), exact < 0
    exponent = least
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - digits)
    units, rest = divmod(size, unit)
    nearest = rest * 2 > unit or (rest * 2 == unit and units % 2 == 1)
    units += {"rn": nearest, "rz": False, "rm": sign and rest > 0, "rp": not sign and rest > 0}[mode]
    bits = int(units) + ((exponent - least) << digits)
    infinity = (2**width - 1) << digits
    if bits >= infinity:
        away = mode == "rn" or (mode == "rm" and sign) or (mode == "rp" and not sign)
        bits = infinity if away else infinity - 1
    return bits | (int(sign) << (digits + width))


def bits_of(array):
    return array.view(f"u{array.itemsize}").tolist()


def floats(width):
    """Finite floats of a width, by their bits, so that all exponents are equally likely."""
    kind, exponent = (np.float32, 0x7F800000) if width == 32 else (np.float64, 0x7FF0000000000000)
    bits = st.integers(0, 2**width - 1).filter(lambda b: b & exponent != exponent)
    return bits.map(lambda b: np.array([b], f"u{width // 8}").view(kind)[0])


@settings(max_examples=100)
@given(floats(64), st.sampled_from(["f16", "bf16", "f32"]), st.sampled_from(MODES), st.integers(-160, 160))
def test_narrowing(number, kind, mode, exponent):
    # Most random doubles are out of the narrow formats' range; their digits at another exponent are not.
    with np.errstate(all="ignore"):
        number = np.ldexp(np.frexp(number)[0], exponent)
    got = evaluate(f"cvt.{mode}.{kind}.f64", np.zeros(1, STORED[kind]), np.array([number]))
    assert bits_of(got) == [rounded(Fraction(float(number)), kind, mode) | (int(np.signbit(number)) * sign_of(kind))]


def sign_of(kind):
    return 1 << sum(FORMATS[kind][::2])


@settings(max_examples=100)
@given(floats(32), st.sampled_from(["f16", "bf16"]), st.sampled_from(MODES), st.integers(-30, 20))
def test_halves_from_float32(number, kind, mode, exponent):
    with np.errstate(all="ignore"):
        scaled = np.ldexp(np.frexp(number)[0], exponent).astype(np.float32)
    for value in (number, scaled):
        got = evaluate(f"cvt.{mode}.{kind}.f32", np.zeros(1, np.uint16), np.array([value]))
        want = rounded(Fraction(float(value)), kind, mode) | (int(np.signbit(value)) * sign_of(kind))
        assert bits_of(got) == [want]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_survive_a_round_trip(kind):
    halves = np.arange(2**16, dtype=np.uint32).astype(np.uint16)[::7]
    singles = evaluate(f"cvt.f32.{kind}", np.zeros(halves.size, np.float32), halves)
    back = evaluate(f"cvt.rn.{kind}.f32", np.zeros_like(halves), singles)
    assert (np.where(np.isnan(singles), 0x7FFF, halves) == back).all()


def test_ties_and_ends():
    singles = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, -3.4e38, np.inf, np.nan, -0.0, 2.0**-133], np.float32)
    nearest = evaluate("cvt.rn.bf16.f32", np.zeros(8, np.uint16), singles)
    assert nearest.tolist() == [0x3F80, 0x3F82, 0x7F80, 0xFF80, 0x7F80, 0x7FFF, 0x8000, 1]
    towards = evaluate("cvt.rz.bf16.f32", np.zeros(8, np.uint16), singles)
    assert towards.tolist() == [0x3F80, 0x3F81, 0x7F7F, 0xFF7F, 0x7F80, 0x7FFF, 0x8000, 1]
    packed = evaluate("cvt.rn.bf16x2.f32", np.zeros(1, np.uint32), singles[:1], singles[1:2])
    assert packed.tolist() == [0x3F803F82]


@settings(max_examples=150)
@given(floats(64), floats(64), floats(64), st.integers(-70, 70), st.integers(-60, 60))
def test_fused_multiply_add(a, b, c, product, distance):
    with np.errstate(all="ignore"):
        near = [np.ldexp(np.frexp(x)[0], e) for x, e in ((a, product), (b, 0), (c, product + distance))]
        cancelled = [near[0], near[1], -near[0] * near[1]]
    for numbers in ((a, b, c), near, cancelled):
        exact = Fraction(float(numbers[0])) * Fraction(float(numbers[1])) + Fraction(float(numbers[2]))
        got = evaluate("fma.rn.f64", np.zeros(1), *(np.array([number]) for number in numbers))
        assert exact == got[0] == 0 or bits_of(got) == [rounded(exact, "f64", "rn")]


@settings(max_examples=100)
@given(floats(32), floats(32), floats(32))
def test_fused_multiply_add_of_float32(a, b, c):
    with np.errstate(all="ignore"):
        cancelling = np.float32(-a * b)
    for number in (c, cancelling if np.isfinite(cancelling) else c):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(number))
        got = evaluate("fma.rn.f32", np.zeros(1, np.float32), *(np.array([x]) for x in (a, b, number)))
        assert exact == got[0] == 0 or bits_of(got) == [rounded(exact, "f32", "rn")]


def test_products_are_rounded_once_or_twice():
    x = np.array([1 + 2.0**-30])
    assert evaluate("fma.rn.f64", np.zeros(1), x, x, -x * x).tolist() == [2.0**-60]
    assert evaluate("sub.rn.f64", np.zeros(1), evaluate("mul.rn.f64", np.zeros(1), x, x), x * x).tolist() == [0]


@settings(max_examples=60)
@given(floats(64), floats(64), st.sampled_from(["add", "sub", "mul", "div.rn", "rcp.rn"]))
def test_arithmetic(a, b, name):
    if name in {"div.rn", "rcp.rn"} and b == 0:
        return
    x, y = Fraction(float(a)), Fraction(float(b))
    exact = {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "div.rn": lambda: x / y}
    sources = [np.array([b])] if name == "rcp.rn" else [np.array([a]), np.array([b])]
    got = evaluate(f"{name}.f64", np.zeros(1), *sources)
    wanted = exact.get(name, lambda: 1 / y)()
    assert (wanted == got[0] == 0) or bits_of(got)[0] & ~(1 << 63) == rounded(abs(wanted), "f64", "rn")


@settings(max_examples=60)
@given(floats(64), st.integers(-4, 70), st.sampled_from(["rni", "rzi", "rmi", "rpi"]))
def test_to_integers(number, exponent, mode):
    with np.errstate(all="ignore"):
        number = np.ldexp(np.frexp(number)[0], exponent)
    exact = Fraction(float(number))
    integer = {"rni": round, "rzi": int, "rmi": lambda x: x.__floor__(), "rpi": lambda x: x.__ceil__()}[mode](exact)
    for dtype, kind in ((np.int32, "s32"), (np.uint32, "u32"), (np.int64, "s64"), (np.uint64, "u64")):
        limits = np.iinfo(dtype)
        got = evaluate(f"cvt.{mode}.{kind}.f64", np.zeros(1, dtype), np.array([number]))
        assert got.tolist() == [min(max(integer, int(limits.min)), int(limits.max))]
    assert evaluate(f"cvt.{mode}.f64.f64", np.zeros(1), np.array([number])) == integer


@pytest.mark.parametrize(("kind", "expected"), [("s32", 0), ("u32", 0), ("s64", -(2**63)), ("u64", 2**63)])
def test_not_a_number_to_integers(kind, expected):
    dtype = np.dtype({"s": "i", "u": "u"}[kind[0]] + str(int(kind[1:]) // 8))
    assert evaluate(f"cvt.rzi.{kind}.f64", np.zeros(1, dtype), np.array([np.nan])).tolist() == [expected]


@settings(max_examples=60)
@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(MODES))
def test_from_integers(number, mode):
    wide = np.array([number])
    assert evaluate("cvt.rn.f64.s64", np.zeros(1), wide).tolist() == [float(number)]
    narrow = wide.astype(np.int32)
    got = evaluate(f"cvt.{mode}.f32.s32", np.zeros(1, np.float32), narrow)
    assert bits_of(got) == [rounded(Fraction(int(narrow[0])), "f32", mode)]


def test_a_conversion_that_would_round_twice_is_unknown():
    with pytest.raises(UnknownInstructionError, match=r"cvt\.rz\.f64\.s64"):
        evaluate("cvt.rz.f64.s64", np.zeros(1), np.zeros(1, np.int64))


def test_comparisons_with_nan():
    a, b = np.array([1.0, np.nan, 2.0, np.nan]), np.array([2.0, 1.0, 2.0, np.nan])
    results = {
        name: evaluate(f"setp.{name}.f64", np.zeros(4, bool), a, b).tolist() for name in ("lt", "geu", "nan", "ne")
    }
    assert results == {
        "lt": [True, False, False, False],
        "geu": [False, True, True, True],
        "nan": [False, True, False, True],
        "ne": [True, False, False, False],
    }


def test_extremes_and_signs():
    a, b = np.array([0.0, np.nan, -1.0, 3.0]), np.array([-0.0, 5.0, np.nan, 2.0])
    assert bits_of(evaluate("min.f64", np.zeros(4), a, b)) == bits_of(np.array([-0.0, 5.0, -1.0, 2.0]))
    assert bits_of(evaluate("max.f64", np.zeros(4), a, b)) == bits_of(np.array([0.0, 5.0, -1.0, 3.0]))
    assert evaluate("neg.f64", np.zeros(2), np.array([0.0, -3.0])).tolist() == [-0.0, 3.0]
    assert evaluate("abs.f32", np.zeros(1, np.float32), np.array([-2.5], np.float32)).tolist() == [2.5]
