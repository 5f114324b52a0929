"""Branches, ends and barriers: where a thread goes next."""

from tests.ptx.interpreter.errors import ParseError
from tests.ptx.interpreter.instructions.table import Labels, Step, instruction
from tests.ptx.interpreter.program import Immediate, Instruction, Symbol
from tests.ptx.interpreter.threads import Threads


@instruction(r"bra(?:\.uni)?")
def branch(parsed: Instruction, labels: Labels) -> Step:
    (label,) = parsed.operands
    if not isinstance(label, Symbol) or label.name not in labels:
        raise ParseError(f"{parsed}: no such label")
    target = labels[label.name]

    def step(threads: Threads) -> None:
        threads.position[threads.lanes] = target

    return step


@instruction(r"ret|exit")
def end(parsed: Instruction, labels: Labels) -> Step:
    def step(threads: Threads) -> None:
        threads.position[threads.lanes] = len(threads.launch.kernel.blocks)

    return step


@instruction(r"bar\.sync|barrier\.sync(?:\.aligned)?")
def barrier(parsed: Instruction, labels: Labels) -> Step:
    (number,) = parsed.operands
    if not isinstance(number, Immediate):
        raise ParseError(f"{parsed}: expected the number of a barrier that all threads of the block take part in")

    def step(threads: Threads) -> None:
        threads.waiting[threads.lanes] = number.bits

    return step
