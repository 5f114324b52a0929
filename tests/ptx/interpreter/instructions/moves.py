"""Moves between registers, packing and unpacking, and conversions of addresses."""

import numpy as np

from tests.ptx.interpreter.errors import ParseError
from tests.ptx.interpreter.instructions.table import Labels, Operation, Step, instruction, operation
from tests.ptx.interpreter.program import DTYPES, Instruction, Operand, Vector
from tests.ptx.interpreter.threads import Threads


@instruction(r"mov\.(pred|[usb](?:16|32|64)|f32|f64)")
def move(parsed: Instruction, labels: Labels, kind: str) -> Step:
    target, source = parsed.operands
    if isinstance(source, Vector):
        return _pack(target, source, kind)
    if isinstance(target, Vector):
        return _unpack(target, source, kind)

    def step(threads: Threads) -> None:
        threads.write(target, threads.read(source, kind), kind)

    return step


def _part_kind(vector: Vector, kind: str) -> str:
    bits = int(kind[1:]) // len(vector.parts)
    if f"b{bits}" not in DTYPES:
        raise ParseError(f"{len(vector.parts)} parts of .{kind}")
    return f"b{bits}"


def _pack(target: Operand, source: Vector, kind: str) -> Step:
    part = _part_kind(source, kind)

    def step(threads: Threads) -> None:
        columns = np.broadcast_arrays(*(threads.read(each, part) for each in source.parts))
        threads.write(target, np.stack(columns, axis=1).view(DTYPES[kind])[:, 0], kind)

    return step


def _unpack(target: Vector, source: Operand, kind: str) -> Step:
    part = _part_kind(target, kind)

    def step(threads: Threads) -> None:
        columns = threads.read(source, kind).reshape(-1, 1).copy().view(DTYPES[part])
        for index, each in enumerate(target.parts):
            threads.write(each, columns[:, index], part)

    return step


@operation(r"cvta(?:\.to)?\.global\.u64")
def convert_global() -> Operation:
    # Global memory lies in the generic address space at its own addresses.
    return Operation(lambda address: address, ("u64",), "u64")


@instruction(r"cvta(\.to)?\.shared\.u64")
def convert_shared(parsed: Instruction, labels: Labels, back: str | None) -> Step:
    target, source = parsed.operands

    def step(threads: Threads) -> None:
        address, base = threads.read(source, "u64"), threads.shared_base()
        threads.write(target, address - base if back else address + base, "u64")

    return step
