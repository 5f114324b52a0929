"""Control flow: threads that part and meet, wait, end early, or never end."""

import numpy as np
import pytest

from tests.ptx.interpreter import (
    DeadlockError,
    LaunchError,
    Memory,
    RunawayError,
    UnknownInstructionError,
    machine,
    parse_kernel,
    run,
)
from tests.ptx.snippets import program, run_on

COLLATZ = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %d1, %r4, 4; add.s64 %a0, %a0, %d1; ld.global.u32 %r5, [%a0]; mov.u32 %r6, 0;
LOOP:
    setp.eq.u32 %p1, %r5, 1; @%p1 bra DONE;
    add.s32 %r6, %r6, 1; and.b32 %r7, %r5, 1; setp.eq.s32 %p2, %r7, 0; @%p2 bra EVEN;
    mad.lo.s32 %r5, %r5, 3, 1; bra.uni LOOP;
EVEN:
    shr.u32 %r5, %r5, 1; bra LOOP;
DONE:
    st.global.u32 [%a0], %r6;
"""


def steps_to_one(n):
    return 0 if n == 1 else 1 + steps_to_one(n // 2 if n % 2 == 0 else 3 * n + 1)


@pytest.mark.parametrize("per_batch", [1, 7, 65_536])
def test_every_thread_takes_its_own_path(monkeypatch, per_batch):
    monkeypatch.setattr(machine, "_MAX_THREADS", per_batch)
    numbers = np.arange(1, 41, dtype=np.uint32)
    run_on({"numbers": numbers}, COLLATZ, grid=(8,), block=(5,))
    assert numbers.tolist() == [steps_to_one(n) for n in range(1, 41)]


def test_guards_inside_of_paths():
    out = np.zeros(6, np.uint32)
    body = (
        "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.s64 %a0, %a0, %d1; setp.gt.u32 %p1, %r1, 1; @!%p1 ret;"
        "setp.gt.u32 %p2, %r1, 3; @%p2 st.global.u32 [%a0], 2; @!%p2 st.global.u32 [%a0], 1;"
    )
    run_on({"out": out}, body, block=(6,))
    assert out.tolist() == [0, 0, 1, 1, 2, 2]


def test_grids_and_blocks_of_three_axes():
    grid, block = (2, 3, 2), (4, 2, 3)
    out = np.zeros(np.multiply(grid, block)[::-1], np.uint32)
    lines = [
        "mov.u32 %r{0}, %ctaid.{1}; mov.u32 %r5, %ntid.{1}; mov.u32 %r6, %tid.{1}; mad.lo.s32 %r{0}, %r{0}, %r5, %r6;",
        "mov.u32 %r7, %nctaid.{1}; mul.lo.s32 %r7, %r7, %r5; mad.lo.s32 %r4, %r4, %r7, %r{0};",
    ]
    # Horner's scheme from the slowest axis to the fastest.
    body = "".join("".join(lines).format(axis + 1, "xyz"[axis]) for axis in (2, 1, 0))
    store = "mul.wide.u32 %d1, %r4, 4; add.s64 %a0, %a0, %d1; st.global.u32 [%a0], %r4;"
    run_on({"out": out}, "mov.u32 %r4, 0;" + body + store, grid, block)
    assert out.ravel().tolist() == list(range(out.size))


def test_threads_that_have_ended_hold_up_no_barrier():
    out = np.zeros(1, np.uint32)
    body = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 ret; bar.sync 0; st.global.u32 [%a0], 1;"
    run_on({"out": out}, body, block=(3,))
    assert out == 1


def test_different_barriers():
    body = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bra A; bar.sync 1; ret; A: bar.sync 0;"
    with pytest.raises(DeadlockError, match="snippet: threads of block 0 wait at barriers 0, 1"):
        run_on({"out": np.zeros(1, np.uint32)}, body, block=(2,))


def test_loops_without_end(monkeypatch):
    monkeypatch.setattr(machine, "MAX_STEPS", 50)
    with pytest.raises(RunawayError, match="snippet still runs after 50 basic blocks"):
        run_on({}, "A: bra A;")


def test_blocks_that_are_too_large():
    kernel = parse_kernel(".visible .entry k() .maxntid 8, 2, 1 .minnctapersm 1 { ret; }")
    run(kernel, [1], [4, 4], [], Memory())
    with pytest.raises(LaunchError, match="k: expected at most 16 threads in a block, got 17"):
        run(kernel, [1], [17], [], Memory())


UNKNOWN = [
    "add.u8 %h1, %h2, %h3",
    "add.sat.s32 %r1, %r2, %r3",
    "atom.global.add.u32 %r1, [%a0], 1",
    "st.local.u32 [%a0], %r1",
    "call.uni (%r1), f, (%r2, %r3)",
    "setp.lt.and.s32 %p1, %r1, %r2, %p2",
    "ld.volatile.global.u32 %r1, [%a0]",
    "vote.sync.all.pred %p1, %p2, -1",
]


@pytest.mark.parametrize("instruction", UNKNOWN)
def test_unknown_instructions_are_named(instruction):
    opcode = instruction.split()[0]
    with pytest.raises(UnknownInstructionError) as failure:
        run(program(instruction + ";"), [1], [1], [], Memory())
    assert str(failure.value).startswith(f"line 4: {instruction}\n  {opcode} is unknown: add it to ")


def test_unknown_registers_are_named():
    with pytest.raises(UnknownInstructionError, match=r"line 4: mov.u32 %r1, %laneid\n  unknown register %laneid"):
        run(program("mov.u32 %r1, %laneid;"), [1], [1], [], Memory())


def test_packing_and_unpacking():
    out = np.array([0x1122334455667788, 0], np.uint64)
    body = (
        "ld.global.u64 %d1, [%a0]; mov.b64 {%r1, %r2}, %d1; mov.b32 {%h1, %h2}, %r2; mov.b64 %d2, {%r1, %r1};"
        "mov.b32 %r3, {%h2, %h1}; mov.b64 %d1, {%r3, %r1}; st.global.v2.b64 [%a0], {%d1, %d2};"
    )
    run_on({"out": out}, body)
    assert [hex(value) for value in out.tolist()] == ["0x5566778833441122", "0x5566778855667788"]


def test_constants():
    out = np.zeros(5, np.uint64)
    values = "-1", "0xFFFFFFFF00000000", "0d3FF0000000000000", "18446744073709551615U"
    body = "".join(f"mov.b64 %d1, {value}; st.global.b64 [%a0+{8 * i}], %d1;" for i, value in enumerate(values))
    run_on({"out": out}, body + "mov.b32 %r1, 0f40490FDB; st.global.b32 [%a0+32], %r1;")
    assert out.tolist() == [2**64 - 1, 2**64 - 2**32, 1023 << 52, 2**64 - 1, 0x40490FDB]
