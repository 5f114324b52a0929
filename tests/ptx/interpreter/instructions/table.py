"""The table of instructions: patterns of opcodes, and what runs where one matches whole.

An opcode that no pattern matches is an error that names it, and so is one with a modifier that its pattern does not
list: nothing is ever ignored.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.ptx.interpreter.errors import ParseError, PtxError, UnknownInstructionError
from tests.ptx.interpreter.program import Instruction
from tests.ptx.interpreter.threads import Threads

__all__ = ["Labels", "Operation", "Step", "decode", "instruction", "operation"]

Step = Callable[[Threads], None]
"""Runs one instruction on the threads' lanes."""
Labels = dict[str, int]
"""Basic blocks by label."""


class Operation(NamedTuple):
    """An instruction without side effects.

    Attributes
    ----------
    function : callable
        From arrays, one for each source, to an array.
    sources : tuple of str
        PTX types of the sources.
    result : str
        PTX type of the result.
    """

    function: Callable[..., np.ndarray]
    sources: tuple[str, ...]
    result: str


_TABLE: list[tuple[re.Pattern[str], Callable[..., Step]]] = []


def instruction(pattern: str) -> Callable[[Callable[..., Step]], Callable[..., Step]]:
    """Let a function make the step of each instruction whose opcode matches.

    It is called with the `Instruction`, the `Labels` and the pattern's groups.
    """

    def add(make: Callable[..., Step]) -> Callable[..., Step]:
        _TABLE.append((re.compile(pattern), make))
        return make

    return add


def operation(pattern: str) -> Callable[[Callable[..., Operation]], Callable[..., Operation]]:
    """Let a function, called with the pattern's groups, say what operation an opcode is."""

    def add(make: Callable[..., Operation]) -> Callable[..., Operation]:
        def step_of(parsed: Instruction, labels: Labels, *groups: Any) -> Step:
            return _operate(parsed, make(*groups))

        _TABLE.append((re.compile(pattern), step_of))
        return make

    return add


def _operate(parsed: Instruction, what: Operation) -> Step:
    function, kinds, result = what
    if len(parsed.operands) != len(kinds) + 1:
        raise ParseError(f"{parsed}: expected {len(kinds) + 1} operands, got {len(parsed.operands)}")
    target, sources = parsed.operands[0], tuple(zip(parsed.operands[1:], kinds, strict=True))

    def step(threads: Threads) -> None:
        threads.write(target, function(*(threads.read(source, kind) for source, kind in sources)), result)

    return step


def decode(parsed: Instruction, labels: Labels) -> Step:
    """Return what runs an instruction.

    Raises
    ------
    UnknownInstructionError
        No pattern matches its opcode.
    """
    for pattern, make in _TABLE:
        if match := pattern.fullmatch(parsed.opcode):
            return _with_place(parsed, _with_guard(parsed, make(parsed, labels, *match.groups())))
    raise UnknownInstructionError(
        f"{parsed}\n  {parsed.opcode} is unknown: add it to tests/ptx/interpreter/instructions"
    )


def _with_guard(parsed: Instruction, step: Step) -> Step:
    """Run a step only for the threads whose guard has the wanted value."""
    guard = parsed.guard
    if guard is None:
        return step

    def guarded(threads: Threads) -> None:
        chosen = threads.read(guard, "pred") == parsed.wanted
        if chosen.all():
            step(threads)
        elif chosen.any():
            before = threads.lanes
            threads.lanes = np.flatnonzero(chosen) if isinstance(before, slice) else before[chosen]
            step(threads)
            threads.lanes = before

    return guarded


def _with_place(parsed: Instruction, step: Step) -> Step:
    """Name the instruction in errors that do not."""

    def placed(threads: Threads) -> None:
        try:
            step(threads)
        except PtxError as error:
            if str(parsed) in str(error):
                raise
            raise type(error)(f"{parsed}\n  {error}") from None

    return placed
