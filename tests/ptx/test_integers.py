"""Integer instructions against Python's integers, which have no width."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ptx.interpreter import DivisionError
from tests.ptx.interpreter.program import DTYPES
from tests.ptx.snippets import evaluate

KINDS = ["u16", "s16", "u32", "s32", "u64", "s64"]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def wrapped(values, kind):
    """Integers as the type holds them: modulo its range."""
    bits = 8 * DTYPES[kind].itemsize
    return np.array([value % 2**bits for value in values], f"u{bits // 8}").view(DTYPES[kind])


def edges(kind):
    limits = np.iinfo(DTYPES[kind])
    near = [0, 1, 2, 3, 7, limits.max, limits.max - 1, limits.min, limits.min + 1, limits.max // 2, limits.max // 2 + 1]
    return sorted({*near, *([-1, -2, -7] if limits.min else [])})


def pairs(kind, seed=1):
    """All pairs of edges, and random ones."""
    rng, limits = np.random.default_rng(seed), np.iinfo(DTYPES[kind])
    values = [(a, b) for a in edges(kind) for b in edges(kind)]
    values += rng.integers(limits.min, limits.max, (60, 2), DTYPES[kind], endpoint=True).tolist()
    return [list(column) for column in zip(*values, strict=True)]


def check(opcode, kind, expected, *columns, result=None):
    arrays = [wrapped(column, kind) for column in columns]
    want = wrapped([expected(*values) for values in zip(*columns, strict=True)], result or kind)
    assert evaluate(opcode, np.zeros_like(want), *arrays).tolist() == want.tolist()


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {"add": operator.add, "sub": operator.sub, "mul.lo": operator.mul, "min": min, "max": max}


@EVERY_KIND
@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_wraps_around(name, kind):
    check(f"{name}.{kind}", kind, BINARY[name], *pairs(kind))


@EVERY_KIND
def test_division_truncates(kind):
    columns = zip(*((a, b) for a, b in zip(*pairs(kind), strict=True) if b), strict=True)
    a, b = map(list, columns)
    check(f"div.{kind}", kind, truncated, a, b)
    check(f"rem.{kind}", kind, lambda x, y: x - y * truncated(x, y), a, b)


@EVERY_KIND
def test_division_by_zero_is_an_error(kind):
    a, b = wrapped([4, 5], kind), wrapped([1, 0], kind)
    with pytest.raises(DivisionError, match=rf"line 10: div\.{kind} .*\n  divides by zero"):
        evaluate(f"div.{kind}", a.copy(), a, b)


@EVERY_KIND
def test_wide_and_high_products(kind):
    bits, (a, b) = 8 * DTYPES[kind].itemsize, pairs(kind)
    check(f"mul.hi.{kind}", kind, lambda x, y: (x * y) >> bits, a, b)
    check(f"mad.lo.{kind}", kind, lambda x, y, z: x * y + z, a, b, b)
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        check(f"mul.wide.{kind}", kind, operator.mul, a, b, result=wide)


def test_multiply_add_with_a_wide_sum():
    columns = [values[:120] for values in (*pairs("s32"), pairs("s64")[0])]
    arrays = [wrapped(column, kind) for column, kind in zip(columns, ("s32", "s32", "s64"), strict=True)]
    expected = wrapped([x * y + z for x, y, z in zip(*columns, strict=True)], "s64")
    assert evaluate("mad.wide.s32", np.zeros_like(expected), *arrays).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_signs(kind):
    values = edges(kind)
    check(f"neg.{kind}", kind, operator.neg, values)
    check(f"abs.{kind}", kind, abs, values)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic_and_shifts(bits):
    kind, (a, b) = f"u{bits}", pairs(f"u{bits}")
    for name, function in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        check(f"{name}.b{bits}", kind, function, a, b)
    check(f"not.b{bits}", kind, operator.invert, a)
    for by in (0, 1, bits - 1, bits, bits + 1, 2**31):
        shift = np.full(len(a), by, np.uint32)
        for opcode, signed, function in (
            (f"shl.b{bits}", kind, lambda x, by=by: x << by if by < bits else 0),
            (f"shr.u{bits}", kind, lambda x, by=by: x >> by),
            (f"shr.s{bits}", f"s{bits}", lambda x, by=by: x >> by),
        ):
            values = wrapped(a, signed)
            want = wrapped([function(int(value)) for value in values], signed)
            assert evaluate(opcode, np.zeros_like(values), values, shift).tolist() == want.tolist()


@pytest.mark.parametrize("bits", [32, 64])
def test_ones(bits):
    values = wrapped(pairs(f"u{bits}")[0], f"u{bits}")
    counts = evaluate(f"popc.b{bits}", np.zeros(values.size, np.uint32), values)
    assert counts.tolist() == [int(value).bit_count() for value in values]


COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


@EVERY_KIND
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name, kind):
    a, b = pairs(kind)
    expected = [COMPARISONS[name](x, y) for x, y in zip(a, b, strict=True)]
    arrays = wrapped(a, kind), wrapped(b, kind)
    assert evaluate(f"setp.{name}.{kind}", np.zeros(len(a), bool), *arrays).tolist() == expected
    chosen = evaluate(f"selp.b{kind[1:]}", np.zeros_like(arrays[0]), *arrays, np.array(expected))
    assert chosen.tolist() == np.where(expected, *arrays).tolist()


@settings(max_examples=40)
@given(st.integers(0, 2**64 - 1), st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_conversions_between_widths(bits, source, result):
    value = wrapped([bits], source)
    assert evaluate(f"cvt.{result}.{source}", wrapped([0], result), value) == wrapped([int(value[0])], result)
    limits = np.iinfo(DTYPES[result])
    clamped = min(max(int(value[0]), int(limits.min)), int(limits.max))
    assert evaluate(f"cvt.sat.{result}.{source}", wrapped([0], result), value).tolist() == [clamped]


@pytest.mark.parametrize(("kind", "expected"), [("u8", 0xFE), ("s8", 0xFFFE)])
def test_narrow_conversions_fill_the_register(kind, expected):
    assert evaluate(f"cvt.{kind}.u32", np.zeros(1, np.uint16), np.array([0x12345FE], np.uint32)) == expected
