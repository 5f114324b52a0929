"""Bugs that the simulator cannot see, planted in kernels that a compiler has compiled: each is caught, and named."""

import numpy as np
import pytest
from llvmlite import ir
from numba import cuda, types
from numba.core import cgutils
from numba.cuda.extending import intrinsic

from numba_ckpt.kernels._registry import OPS
from numba_ckpt.kernels.checkpoint_export import no_conv
from numba_ckpt.rules import CAST_NONE
from tests.ptx import needs_compiler  # noqa: F401
from tests.ptx.device import PtxDevice
from tests.ptx.interpreter import AlignmentError, OutOfBoundsError, RaceError, UnwrittenError
from tests.ptx.launching import by_dispatcher, by_launcher
from tests.ptx.sparse import SparseArray

EVERY_WAY = pytest.mark.parametrize("way", [by_launcher, by_dispatcher], ids=lambda way: way.__name__)


@cuda.jit
def copy(source, target, shift):
    index = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if index < target.size:
        target[index] = source[index + shift]


@EVERY_WAY
def test_a_read_out_of_bounds(way):
    device, source, target = PtxDevice(way), np.arange(6, dtype=np.int64), np.zeros(6, np.int64)
    device.launch(copy, (2, 1), 4, (source, target, 0))
    assert target.tolist() == source.tolist()
    with pytest.raises(
        OutOfBoundsError, match=r"ld\.global.*\n.*thread 5 \(block 1\)(.|\n)*source of 48 bytes at byte 48"
    ):
        device.launch(copy, (2, 1), 4, (source, target, 1))


@EVERY_WAY
def test_a_read_of_what_nothing_has_written(way):
    device, target = PtxDevice(way), np.zeros(4, np.int64)
    rows = device.empty((5,), np.int64)
    device.mark_written(rows[:4])
    device.launch(copy, (1, 1), 4, (rows, target, 0))
    with pytest.raises(UnwrittenError, match="in source of 40 bytes at byte 32"):
        device.launch(copy, (1, 1), 4, (rows, target, 1))
    device.launch(copy, (1, 1), 4, (target, rows[1:], 0))
    device.launch(copy, (1, 1), 4, (rows, target, 1))


@EVERY_WAY
def test_padding_is_not_read(way):
    device, target = PtxDevice(way), np.zeros(4, np.int64)
    padded = np.zeros((4, 2), np.int64)
    device.poison(padded)
    device.mark_written(padded[:, 0])
    device.launch(copy, (1, 1), 4, (padded[:, 0], target, 0))
    with pytest.raises(UnwrittenError, match=r"thread 0 .*\n.*at byte 8"):
        device.launch(copy, (1, 1), 4, (padded[:, 1], target, 0))


@intrinsic
def move16(typing_context, target, source, index):
    """Move 16 bytes between two arrays of bytes, as an engine's hand-written copy would."""
    vector = ir.VectorType(ir.IntType(32), 4)

    def pointer(context, builder, array_type, array, index):
        data = context.make_array(array_type)(context, builder, array).data
        return builder.bitcast(cgutils.gep(builder, data, index), ir.PointerType(vector))

    def generate(context, builder, signature, arguments):
        moved = builder.load(pointer(context, builder, source, arguments[1], arguments[2]), align=16)
        builder.store(moved, pointer(context, builder, target, arguments[0], arguments[2]), align=16)
        return context.get_dummy_value()

    return types.void(target, source, index), generate


@cuda.jit
def copy16(source, target):
    index = cuda.threadIdx.x * 16
    if index < target.size:
        move16(target, source, index)


@EVERY_WAY
def test_a_misaligned_store_of_16_bytes(way):
    device, source, target = PtxDevice(way), np.arange(64, dtype=np.uint8), np.zeros(72, np.uint8)
    device.launch(copy16, (1, 1), 4, (source, target[:64]))
    assert (target[:64] == source).all()
    with pytest.raises(
        AlignmentError, match=r"st\S*\.v4\.(.|\n)* 16 bytes\n  is not aligned .* in target of 72 bytes at byte 8"
    ):
        device.launch(copy16, (1, 1), 4, (source, target[8:]))


BLOCK_WORDS = 2**12 + 8
LAST = 2**20 + 5


def huge_cache():
    """More than 2^32 words, of which two blocks exist."""
    rng = np.random.default_rng(5)
    parts = {block * BLOCK_WORDS: rng.integers(0, 2**16, BLOCK_WORDS, np.uint16) for block in (7, LAST)}
    return SparseArray(((LAST + 1) * BLOCK_WORDS,), parts), *parts.values()


@cuda.jit
def copy_wrapped(words, block_words, source, target):
    # What C does with two ints.
    index = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    words[types.int32(target * block_words + index)] = words[types.int32(source * block_words + index)]


def test_an_index_that_overflows():
    words, *_ = huge_cache()
    with pytest.raises(OutOfBoundsError, match=r"is in a part that nothing backs: words of 8606761056 bytes at byte"):
        PtxDevice().launch(copy_wrapped, (1, 1), 4, (words, BLOCK_WORDS, LAST, 7))


def test_our_index_does_not_overflow():
    words, target, source = huge_cache()
    pieces = np.array([[3, BLOCK_WORDS, 4096]])
    PtxDevice().launch(
        OPS["copy_blocks"].kernel, (4, 1), 256, (words, pieces, LAST + 1, np.array([LAST]), np.array([7]))
    )
    assert (target[3:4099] == source[3:4099]).all()
    assert (target[4099:] != source[4099:]).any()


def test_our_export_does_not_overflow():
    cache, other, block = huge_cache()
    pages, states = SparseArray((LAST + 1, BLOCK_WORDS), cache.parts), np.roll(block, 1)[None]
    targets = [np.array(values) for values in ([0, 0], [4, 0], [LAST, 7])]
    before = other.copy()
    arguments = *targets, *no_conv(), pages, states, np.array([0, 0]), CAST_NONE
    PtxDevice().launch(OPS["checkpoint_export"].kernel, (9, 2), 256, arguments)
    assert (block == states[0]).all()
    assert (other == before).all()


@cuda.jit
def last_one_wins(target):
    target[cuda.threadIdx.x // 2] = cuda.threadIdx.x


@EVERY_WAY
def test_a_race(way):
    with pytest.raises(
        RaceError,
        match=r"thread 0 .* stores 0x00(.|\n)*thread 1 .* stores 0x01\n  race in target of 16 bytes at byte 0",
    ):
        PtxDevice(way).launch(last_one_wins, (1, 1), 4, (np.zeros(2, np.int64),))


@cuda.jit
def reverse(target):
    line = cuda.shared.array(8, types.int64)
    line[cuda.threadIdx.x] = target[cuda.threadIdx.x]
    cuda.syncthreads()
    target[cuda.threadIdx.x] = line[7 - cuda.threadIdx.x]


@cuda.jit
def reverse_at_once(target):
    line = cuda.shared.array(8, types.int64)
    line[cuda.threadIdx.x] = target[cuda.threadIdx.x]
    target[cuda.threadIdx.x] = line[7 - cuda.threadIdx.x]


@EVERY_WAY
def test_a_missing_barrier(way):
    values = np.arange(8)
    PtxDevice(way).launch(reverse, (1, 1), 8, (values,))
    assert values.tolist() == list(range(7, -1, -1))
    with pytest.raises(RaceError, match=r"ld\.shared"):
        PtxDevice(way).launch(reverse_at_once, (1, 1), 8, (values,))
