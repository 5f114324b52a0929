"""A compiled kernel as records: what the parser makes and the machine runs."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = [
    "DTYPES",
    "Address",
    "Immediate",
    "Instruction",
    "Kernel",
    "Operand",
    "Parameter",
    "Register",
    "Special",
    "Symbol",
    "Vector",
]

DTYPES = {
    "pred": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "bf16": np.dtype(np.uint16),
}
"""NumPy's type of each PTX type; bfloat16 travels as bits."""


class Register(NamedTuple):
    """A register, by its name with the percent sign."""

    name: str


class Special(NamedTuple):
    """A read-only register of the hardware, such as ``%tid.x``."""

    name: str


class Symbol(NamedTuple):
    """A label, a parameter or a variable."""

    name: str


class Immediate(NamedTuple):
    """A constant; floats are given by their bits.

    Attributes
    ----------
    bits : int
        Value of an integer, bits of a float.
    kind : str
        "int", "f32" or "f64".
    """

    bits: int
    kind: str


class Address(NamedTuple):
    """``[base+offset]``; the offset counts bytes."""

    base: Register | Symbol | Immediate
    offset: int


class Vector(NamedTuple):
    """``{a, b, ...}``."""

    parts: tuple["Operand", ...]


Operand = Register | Special | Symbol | Immediate | Address | Vector


class Instruction(NamedTuple):
    """One instruction.

    Attributes
    ----------
    opcode : str
        With all modifiers, such as "ld.global.v4.u32".
    operands : tuple of Operand
        Destination first, as written.
    guard : Register or None
        Predicate under which it runs.
    wanted : bool
        Value of the guard with which it runs.
    line : int
        Line of the text, from 1.
    text : str
        As written, for messages.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    wanted: bool
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


class Parameter(NamedTuple):
    """A parameter of a kernel: a scalar, or an array of bytes.

    Attributes
    ----------
    name : str
        As the program loads it.
    size : int
        Bytes.
    """

    name: str
    size: int


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel's code, cut into basic blocks; equal to itself only.

    Attributes
    ----------
    name : str
        Name of the entry.
    parameters : tuple of Parameter
        In order.
    registers : dict
        Type of each declared register, by name; a bare bit width or "pred".
    shared : dict
        (offset, size) in bytes of each variable in shared memory.
    blocks : tuple of tuple of Instruction
        Control enters a block at its start and leaves it at its end.
    labels : dict
        Index of the block that each label begins.
    max_threads : int
        Threads of the largest block that it may be launched with.
    """

    name: str
    parameters: tuple[Parameter, ...]
    registers: dict[str, str]
    shared: dict[str, tuple[int, int]]
    blocks: tuple[tuple[Instruction, ...], ...]
    labels: dict[str, int]
    max_threads: int = 1024

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a block of threads needs."""
        return max((offset + size for offset, size in self.shared.values()), default=0)
