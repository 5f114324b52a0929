"""Runs against NumPy, at any alignment and size; each item is written by one thread, and nothing beside the run."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numba_ckpt.kernels._runs import cast_run, copy_run, zero_run
from numba_ckpt.rules import CAST_BFLOAT16, CAST_FLOAT16, cast_bits

GUARD = 64
ITEMS = st.sampled_from([1, 2, 4, 8])
SIZES = st.integers(0, 300)
OFFSETS = st.integers(0, 40)
THREADS = st.integers(1, 9)


def memory(num_bytes, offset):
    """Return bytes from 1 to 255, and those of them that begin `offset` bytes behind a multiple of 16."""
    whole = np.random.default_rng(num_bytes).integers(1, 256, num_bytes + offset + 2 * GUARD, np.uint8)
    start = GUARD + -(whole.ctypes.data + GUARD) % 16 + offset
    return whole, whole[start : start + num_bytes]


def check(run, written, whole, answer):
    """Run each thread alone; together they must have written every byte of `written` once, and no other."""
    before = whole.copy()
    writers = np.zeros(whole.size, int)
    for thread in range(run.num_threads):
        whole[:] = before
        run(thread)
        writers += whole != before
    whole[:] = before
    for thread in range(run.num_threads):
        run(thread)
    assert (written == answer).all()
    start = written.ctypes.data - whole.ctypes.data
    inside = np.zeros(whole.size, bool)
    inside[start : start + written.size] = True
    assert (whole == before)[~inside].all()
    assert writers.max(initial=0) <= 1
    assert (whole != before).sum() == writers.sum()


class Run:
    def __init__(self, function, num_threads, *arguments):
        self.function, self.num_threads, self.arguments = function, num_threads, arguments

    def __call__(self, thread):
        self.function(*self.arguments, thread, self.num_threads)


@given(ITEMS, SIZES, OFFSETS, OFFSETS, THREADS)
@example(1, 300, 0, 0, 1)
@example(1, 16, 15, 15, 2)
@example(8, 300, 1, 0, 3)
def test_copy(item, size, to, at, num_threads):
    whole, written = memory(size * item, to * item)
    _, source = memory(size * item, at * item)
    written[:] = 0
    check(
        Run(copy_run, num_threads, written.ctypes.data, source.ctypes.data, size, item),
        written,
        whole,
        source,
    )


@given(ITEMS, SIZES, OFFSETS, THREADS)
def test_zero(item, size, to, num_threads):
    whole, written = memory(size * item, to * item)
    check(Run(zero_run, num_threads, written.ctypes.data, size, item), written, whole, 0)


@pytest.mark.parametrize("cast", [CAST_FLOAT16, CAST_BFLOAT16])
@given(SIZES, OFFSETS, OFFSETS, THREADS)
@example(64, 3, 3, 2)
@example(64, 3, 2, 2)
def test_cast(cast, size, to, at, num_threads):
    whole, written = memory(size * 2, to * 2)
    _, source = memory(size * 4, at * 4)
    written[:] = 0
    answer = np.array([cast_bits(bits, cast) for bits in source.view(np.uint32)], np.uint16).view(np.uint8)
    run = Run(cast_run, num_threads, written.ctypes.data, source.ctypes.data, size, cast)
    before = whole.copy()
    for thread in range(num_threads):
        run(thread)
    assert (written == answer).all()
    written[:] = 0
    assert (whole == before).all()
