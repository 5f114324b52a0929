"""What memory refuses, and what its messages say."""

import numpy as np
import pytest

from tests.ptx.interpreter import (
    GAP,
    AlignmentError,
    LaunchError,
    Memory,
    OutOfBoundsError,
    RaceError,
    UnwrittenError,
    Window,
    run,
)
from tests.ptx.snippets import program, run_on

THREAD = "mov.u32 %r1, %tid.x; cvt.u64.u32 %d1, %r1;"
COPY = THREAD + "mad.lo.s64 %a0, %d1, 4, %a0; ld.global.u32 %r2, [%a0{from_}]; st.global.u32 [%a0{to}], %r2;"


def words(*values):
    return np.array(values, np.uint32)


@pytest.mark.parametrize(
    ("offset", "where"), [("+8", "byte 16"), ("+-4", "byte -4"), ("+8796093022208", "byte 8796093022216")]
)
def test_reads_out_of_bounds(offset, where):
    with pytest.raises(OutOfBoundsError) as failure:
        run_on({"table": words(1, 2, 3, 4)}, COPY.format(from_=offset, to=""), block=(3,))
    message = str(failure.value)
    assert f"ld.global.u32 %r2, [%a0{offset}]" in message
    assert "(block 0)" in message
    assert "is outside all allocations; the nearest is: table of 16 bytes at byte" in message
    assert where in message or "byte" in where


def test_an_access_across_the_end():
    with pytest.raises(OutOfBoundsError, match="table of 12 bytes at byte 8"):
        run_on({"table": words(1, 2, 3)}, "ld.global.u64 %d1, [%a0+8];")


def test_null_pointers():
    with pytest.raises(OutOfBoundsError, match="at address 0x0, 4 bytes"):
        run_on({"table": words(1)}, "mov.u64 %d1, 0; st.global.u32 [%d1], 1;")


@pytest.mark.parametrize(
    ("access", "width"), [("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a0+8];", 16), ("st.global.u16 [%a0+3], %h1;", 2)]
)
def test_misaligned_accesses(access, width):
    with pytest.raises(AlignmentError, match=rf"{width} bytes\n  is not aligned to its width, in table of 32 bytes"):
        run_on({"table": np.zeros(8, np.uint32)}, access)


def test_vectors():
    table = np.arange(12, dtype=np.uint32)
    run_on({"table": table}, "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a0+16]; st.global.v2.b32 [%a0+8], {%r4, %r1};")
    assert table.tolist() == [0, 1, 7, 4, 4, 5, 6, 7, 8, 9, 10, 11]


def test_unwritten_bytes():
    table, written = words(5, 6, 7), np.zeros(12, bool)
    written[:8] = True
    run_on({"table": table}, COPY.format(from_="", to="+4"), written=written)
    with pytest.raises(
        UnwrittenError, match=r"thread 2 .*\n  reads what nothing has written, in table of 12 bytes at byte 8"
    ):
        run_on({"table": table}, COPY.format(from_="", to=""), block=(3,), written=written)
    run_on({"table": table}, "st.global.u32 [%a0+8], 9; ld.global.u32 %r1, [%a0+8];", written=written)
    assert (written.all(), table.tolist()) == (True, [5, 5, 9])


def test_a_huge_allocation_has_bytes_only_where_they_are_backed():
    memory, first, last = Memory(), np.zeros(16, np.uint8), np.arange(16, dtype=np.uint8)
    base = memory.declare_sparse("cache", 2**33, Window(0, first), Window(2**33 - 16, last)).base
    copy = "ld.global.u64 %d1, [%a0+8589934584]; st.global.u64 [%a0+8], %d1;"
    run(program(copy, ("cache",)), [1], [1], [base], memory)
    assert first.tolist() == [0] * 8 + list(range(8, 16))
    with pytest.raises(
        OutOfBoundsError, match="is in a part that nothing backs: cache of 8589934592 bytes at byte 4096"
    ):
        run(program("ld.global.u8 %h1, [%a0+4096];", ("cache",)), [1], [1], [base], memory)


def test_allocations_lie_far_apart():
    memory = Memory()
    bases = [memory.declare(name, np.zeros(8, np.uint8)).base for name in "ab"]
    assert bases[1] - bases[0] == GAP > 2**32 * 64


def test_two_values_at_one_address():
    with pytest.raises(RaceError) as failure:
        run_on({"out": words(0)}, "mov.u32 %r1, %tid.x; st.global.u32 [%a0], %r1;", block=(2,))
    message = str(failure.value)
    assert "thread 0 (block 0) stores 0x00" in message
    assert "thread 1 (block 0) stores 0x01" in message


def test_one_value_at_one_address_is_no_race():
    out = words(0)
    run_on({"out": out}, "st.global.u32 [%a0], 7;", grid=(2,), block=(40,))
    assert out == 7


def test_a_thread_may_change_its_mind():
    out = words(0)
    run_on({"out": out}, "st.global.u32 [%a0], 7; st.global.u32 [%a0], 8;")
    assert out == 8


NEIGHBOUR = (
    THREAD + "mad.lo.s64 %a1, %d1, 4, %a0; st.global.u32 [%a1], %r1; {} xor.b64 %d1, %d1, 1;"
    "mad.lo.s64 %a1, %d1, 4, %a0; ld.global.u32 %r2, [%a1];"
)


def test_a_read_of_what_another_thread_writes():
    with pytest.raises(RaceError, match="a read of it"):
        run_on({"out": words(5, 5)}, NEIGHBOUR.format(""), block=(2,))
    run_on({"out": words(5, 5)}, NEIGHBOUR.format("bar.sync 0;"), block=(2,))


def test_a_barrier_does_not_order_blocks():
    write = "mov.u32 %r1, %ctaid.x; bar.sync 0; st.global.u32 [%a0], %r1;"
    with pytest.raises(RaceError):
        run_on({"out": words(9)}, write, grid=(2,), block=(1,))


def test_overlapping_stores_of_different_widths():
    split = (
        "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;@%p1 st.global.u32 [%a0], 258; @!%p1 st.global.u8 [%a0+1], {};"
    )
    run_on({"out": words(0)}, split.format(1), block=(2,))
    with pytest.raises(RaceError, match=r"race in out of 4 bytes at byte 1"):
        run_on({"out": words(0)}, split.format(2), block=(2,))


def test_what_was_written_is_known_afterwards():
    memory = run_on({"out": words(0, 0, 0)}, "st.global.u16 [%a0+2], 1; st.global.u8 [%a0+9], 1;")
    assert (memory.ledger.written() - np.uint64(GAP)).tolist() == [2, 3, 9]


REVERSE = """
    .shared .align 4 .b8 line[16];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.s32 %r3, %r2, 4, %r1;
    setp.lt.u32 %p1, %r2, {blocks};
    mov.u32 %r4, line; mad.lo.s32 %r5, %r1, 4, %r4; @%p1 st.shared.u32 [%r5], %r3; {barrier}
    sub.s32 %r6, 3, %r1; mad.lo.s32 %r6, %r6, 4, %r4; ld.shared.u32 %r7, [%r6];
    mul.wide.u32 %d1, %r3, 4; add.s64 %a0, %a0, %d1; st.global.u32 [%a0], %r7;
"""


def reverse(blocks=2, barrier="bar.sync 0;", block=(4,)):
    """Number eight threads, and turn each block's numbers round through shared memory."""
    out = np.zeros(8, np.uint32)
    run_on({"out": out}, REVERSE.format(blocks=blocks, barrier=barrier), grid=(2,), block=block)
    return out.tolist()


def test_shared_memory_belongs_to_a_block():
    assert reverse() == [3, 2, 1, 0, 7, 6, 5, 4]
    with pytest.raises(RaceError, match=r"ld\.shared\.u32"):
        reverse(barrier="")
    with pytest.raises(UnwrittenError, match="in shared memory of block 1"):
        reverse(blocks=1)
    with pytest.raises(OutOfBoundsError, match="shared memory of block 0 of 16 bytes at byte 16"):
        reverse(block=(5,))


def test_generic_addresses_of_shared_memory():
    out = words(0)
    body = (
        ".shared .align 8 .b8 line[8]; mov.u64 %d1, line; cvta.shared.u64 %d2, %d1; st.u32 [%d2+4], 3;"
        "cvta.to.shared.u64 %d3, %d2; ld.shared.u32 %r1, [%d3+4]; st.global.u32 [%a0], %r1;"
    )
    run_on({"out": out}, body)
    assert out == 3


def test_parameters_that_do_not_fit():
    kernel = program("ret;", ("a", "b"))
    with pytest.raises(LaunchError, match="snippet: expected 2 arguments, got 1"):
        run(kernel, [1], [1], [0], Memory())
    with pytest.raises(LaunchError, match="a: expected 8 bytes, got 3"):
        run(kernel, [1], [1], [b"abc", 0], Memory())
    with pytest.raises(OutOfBoundsError, match="reads beyond the parameter's 8 bytes"):
        run(program("ld.param.u64 %d1, [a+4];", ("a",)), [1], [1], [0], Memory())
