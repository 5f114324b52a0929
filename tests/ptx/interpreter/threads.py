"""The threads of some blocks of a grid: their registers, and which of them run now."""

from typing import NamedTuple

import numpy as np

from tests.ptx.interpreter.errors import LaunchError, ParseError, UnknownInstructionError
from tests.ptx.interpreter.memory import Access, Allocation, Memory
from tests.ptx.interpreter.program import (
    DTYPES,
    Immediate,
    Instruction,
    Kernel,
    Operand,
    Register,
    Special,
    Symbol,
)

__all__ = ["NOT_WAITING", "Launch", "Threads"]

NOT_WAITING = -1
# What a register holds before it is written: nothing that a result could be mistaken for.
_POISON = 0xA5A5A5A5A5A5A5A5


class Launch(NamedTuple):
    """A kernel, where it runs, and on what.

    Attributes
    ----------
    kernel : Kernel
        The code.
    grid, block : tuple of int
        Blocks of the grid and threads of a block, x first, three numbers each.
    arguments : dict
        Bytes of each parameter, by name.
    memory : Memory
        What pointers point to.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: dict[str, bytes]
    memory: Memory


class Threads:
    """Threads in lockstep, as NumPy arrays; each has a place of its own in the code.

    Attributes
    ----------
    launch : Launch
        What they belong to.
    lanes : ndarray or slice
        Which of them run the current instruction.
    position : ndarray
        Basic block that each runs next; one past the last when it has ended.
    waiting : ndarray
        Barrier at which each waits, or `NOT_WAITING`.
    index, block, epoch : ndarray
        Number of the thread and of its block in the grid, and how many barriers the block has passed.
    """

    def __init__(self, launch: Launch, blocks: range) -> None:
        self.launch = launch
        size = int(np.prod(launch.block))
        self.lanes: np.ndarray | slice = slice(None)
        self.index = np.arange(blocks.start * size, blocks.stop * size)
        self.block = self.index // size
        self.count = self.index.size
        self.epoch = np.zeros(self.count, np.int64)
        self.position = np.zeros(self.count, np.int64)
        self.waiting = np.full(self.count, NOT_WAITING)
        self._registers: dict[str, np.ndarray] = {}
        self._special = _special_registers(launch, self.block, self.index % size)
        self._shared = [_declare_shared(launch, block) for block in blocks]
        self._first_block = blocks.start

    @property
    def num_lanes(self) -> int:
        """How many threads run the current instruction."""
        return self.count if isinstance(self.lanes, slice) else self.lanes.size

    def read(self, operand: Operand, kind: str) -> np.ndarray:
        """Return the running threads' values of an operand, of PTX type `kind`: one for each, or one for all."""
        if isinstance(operand, Register):
            return _as_kind(self._register(operand.name)[self.lanes], kind)
        if isinstance(operand, Special):
            if operand.name not in self._special:
                raise UnknownInstructionError(f"unknown register {operand.name}")
            return _as_kind(self._special[operand.name][self.lanes], kind)
        if isinstance(operand, Immediate):
            return _constant(operand, kind)
        if isinstance(operand, Symbol) and operand.name in self.launch.kernel.shared:
            return np.array([self.launch.kernel.shared[operand.name][0]], DTYPES[kind])
        raise UnknownInstructionError(f"no value: {operand}")

    def write(self, register: Operand, values: np.ndarray, kind: str) -> None:
        """Set a register of the running threads; values of a narrower signed type are extended by their sign."""
        if not isinstance(register, Register):
            raise UnknownInstructionError(f"no register to write: {register}")
        held = self._register(register.name)
        values = values.astype(DTYPES[kind], copy=False)
        if kind.startswith("f"):
            values = values.view(f"u{values.itemsize}")
        if values.itemsize > held.itemsize:
            raise ParseError(f"{register.name} is narrower than .{kind}")
        held[self.lanes] = values

    def access(self, addresses: np.ndarray, width: int, instruction: Instruction) -> Access:
        """Describe what the running threads do to memory."""
        threads, blocks, epochs = (np.array(part[self.lanes]) for part in (self.index, self.block, self.epoch))
        return Access(np.broadcast_to(addresses, self.num_lanes), width, threads, blocks, epochs, instruction)

    def shared_base(self) -> np.ndarray:
        """Return the address at which the shared memory of each running thread's block begins."""
        if self._shared[0] is None:
            raise LaunchError("the kernel has no shared memory")
        bases = np.array([shared.base for shared in self._shared if shared], np.uint64)
        return bases[self.block[self.lanes] - self._first_block]

    def _register(self, name: str) -> np.ndarray:
        if name not in self._registers:
            dtype = DTYPES[self.launch.kernel.registers[name]]
            dtype = dtype if dtype.kind == "b" else np.dtype(f"u{dtype.itemsize}")
            self._registers[name] = np.full(self.count, np.uint64(_POISON).astype(dtype))
        return self._registers[name]


def _as_kind(values: np.ndarray, kind: str) -> np.ndarray:
    """Reinterpret a register's bits, or the low ones of them."""
    dtype = DTYPES[kind]
    if dtype.itemsize > values.itemsize:
        raise ParseError(f"a register of {values.itemsize} bytes is narrower than .{kind}")
    if dtype.itemsize < values.itemsize:
        values = values.astype(f"u{dtype.itemsize}")
    return values.view(dtype)


def _constant(operand: Immediate, kind: str) -> np.ndarray:
    dtype = DTYPES[kind]
    if kind == "pred":
        return np.array([operand.bits != 0])
    if operand.kind != "int" and not (operand.kind == kind or kind == f"b{operand.kind[1:]}"):
        raise ParseError(f"a constant of type {operand.kind} where .{kind} is wanted")
    bits = operand.bits & (2 ** (8 * dtype.itemsize) - 1)
    return np.array([bits], f"u{dtype.itemsize}").view(dtype)


def _special_registers(launch: Launch, block: np.ndarray, thread: np.ndarray) -> dict[str, np.ndarray]:
    special = {}
    for axis, name in enumerate("xyz"):
        below_grid, below_block = (int(np.prod(shape[:axis])) for shape in (launch.grid, launch.block))
        special[f"%ctaid.{name}"] = block // below_grid % launch.grid[axis]
        special[f"%tid.{name}"] = thread // below_block % launch.block[axis]
        special[f"%nctaid.{name}"] = np.full(block.size, launch.grid[axis])
        special[f"%ntid.{name}"] = np.full(block.size, launch.block[axis])
    return {name: values.astype(np.uint32) for name, values in special.items()}


def _declare_shared(launch: Launch, block: int) -> Allocation | None:
    size = launch.kernel.shared_bytes
    data = np.zeros(size, np.uint8)
    return launch.memory.declare(f"shared memory of block {block}", data, np.zeros(size, bool)) if size else None
