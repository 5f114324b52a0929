"""Loads and stores: of parameters, of global, generic and shared memory, scalar and vector."""

import numpy as np

from tests.ptx.interpreter.errors import LaunchError, OutOfBoundsError, ParseError
from tests.ptx.interpreter.instructions.table import Labels, Step, instruction
from tests.ptx.interpreter.program import DTYPES, Address, Instruction, Operand, Symbol, Vector
from tests.ptx.interpreter.threads import Threads

_TYPE = r"(?:\.v([248]))?\.([usb](?:8|16|32|64)|f32|f64)"
# Hints about caches: they change how fast an access is, not what it does.
_HINTS = r"(?:\.(?:ca|cg|cs|lu|cv|wb|wt))?(?:\.L1::\w+)?(?:\.L2::\w+)?"


@instruction(rf"ld\.param{_TYPE}")
def load_parameter(parsed: Instruction, labels: Labels, count: str | None, kind: str) -> Step:
    target, source = parsed.operands
    name, offset = _parameter(parsed, source)
    targets, dtype = _registers(parsed, target, count), DTYPES[kind]

    def step(threads: Threads) -> None:
        passed = threads.launch.arguments.get(name)
        if passed is None:
            raise LaunchError(f"{parsed}: the kernel has no such parameter")
        if offset < 0 or offset + len(targets) * dtype.itemsize > len(passed):
            raise OutOfBoundsError(f"{parsed}\n  reads beyond the parameter's {len(passed)} bytes")
        values = np.frombuffer(passed, dtype, len(targets), offset)
        for index, register in enumerate(targets):
            threads.write(register, values[index : index + 1], kind)

    return step


@instruction(rf"ld(\.global|\.shared)?(?:\.nc)?{_HINTS}{_TYPE}")
def load(parsed: Instruction, labels: Labels, space: str | None, count: str | None, kind: str) -> Step:
    target, source = parsed.operands
    targets, dtype = _registers(parsed, target, count), DTYPES[kind]
    width = len(targets) * dtype.itemsize

    def step(threads: Threads) -> None:
        access = threads.access(_addresses(threads, source, space), width, parsed)
        values = threads.launch.memory.load(access).view(dtype)
        for index, register in enumerate(targets):
            threads.write(register, values[:, index], kind)

    return step


@instruction(rf"st(\.global|\.shared)?{_HINTS}{_TYPE}")
def store(parsed: Instruction, labels: Labels, space: str | None, count: str | None, kind: str) -> Step:
    target, source = parsed.operands
    sources, dtype = _registers(parsed, source, count), DTYPES[kind]
    width = len(sources) * dtype.itemsize

    def step(threads: Threads) -> None:
        access = threads.access(_addresses(threads, target, space), width, parsed)
        values = np.empty((threads.num_lanes, len(sources)), dtype)
        for index, register in enumerate(sources):
            values[:, index] = threads.read(register, kind)
        threads.launch.memory.store(access, values.view(np.uint8))

    return step


def _registers(parsed: Instruction, operand: Operand, count: str | None) -> tuple[Operand, ...]:
    registers = operand.parts if isinstance(operand, Vector) else (operand,)
    if len(registers) != int(count or 1):
        raise ParseError(f"{parsed}: expected {count or 1} registers, got {len(registers)}")
    return registers


def _parameter(parsed: Instruction, source: Operand) -> tuple[str, int]:
    if not isinstance(source, Address) or not isinstance(source.base, Symbol):
        raise ParseError(f"{parsed}: expected the name of a parameter")
    return source.base.name, source.offset


def _addresses(threads: Threads, operand: Operand, space: str | None) -> np.ndarray:
    if not isinstance(operand, Address):
        raise ParseError(f"no address: {operand}")
    # A register with an address in shared memory may have 32 bits.
    declared = threads.launch.kernel.registers.get(getattr(operand.base, "name", ""))
    base = threads.read(operand.base, "u32" if declared == "b32" and space == ".shared" else "u64").astype(np.uint64)
    addresses = base + np.array([operand.offset]).astype(np.uint64)
    return addresses + threads.shared_base() if space == ".shared" else addresses
