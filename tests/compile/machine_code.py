"""What compiled kernels are read for: faults that cost a GPU its speed, and the figures of the table in the docs."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.compile.compile_kernels import Compiled

MAX_REGISTERS = 64
CHUNK_BITS = 128
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH = re.compile(r"BRA[\w.]* .*`\((\.L_x_\d+)\)")
_DIVISION = re.compile(r"\s((?:div|rem)\.[su]64|(?:div|rcp)\.[\w.]*f64)\s")
_ACCESS = re.compile(r"\s((?:ld|st|atom|red)[\w.]*)\s[^;]*\[([^\]]*)\]")


class Loop(NamedTuple):
    """The instructions between a label and a branch back to it."""

    instructions: tuple[str, ...]

    def widest(self, name: str) -> int:
        """Return the bits of the widest access (`LDG`, `STG`) to global memory."""
        return max((bits_of(i) for i in self.instructions if i.startswith(f"{name}.")), default=0)


def bits_of(instruction: str) -> int:
    """Return how many bits a load or store moves."""
    sizes = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
    return next((sizes[part] for part in reversed(instruction.split(".")) if part in sizes), 32)


def figure(compiled: Compiled, pattern: str) -> int:
    """Return a figure of ptxas' report, 0 where it has none."""
    found = re.search(pattern, compiled.report)
    return int(found.group(1)) if found else 0


def num_registers(compiled: Compiled) -> int:
    return figure(compiled, r"Used (\d+) registers")


def shared_bytes(compiled: Compiled) -> int:
    return figure(compiled, r"(\d+) bytes smem")


def _loops(sass: str) -> Iterator[tuple[int, int, Loop]]:
    """Yield (start, end, loop) of every loop."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label.group(1)] = len(instructions)
        if instruction := _INSTRUCTION.search(line):
            instructions.append(instruction.group(1))
            target = _BRANCH.search(line)
            start = labels.get(target.group(1), len(instructions)) if target else len(instructions)
            # The last instruction of a program branches to itself.
            if start < len(instructions) - 1:
                yield start, len(instructions), Loop(tuple(instructions[start:]))


def main_loop(compiled: Compiled) -> Loop:
    """Return the innermost loop that stores, and of several the one that moves most at a time."""
    storing = [found for found in _loops(compiled.sass) if found[2].widest("STG")]
    inner = [
        loop
        for start, end, loop in storing
        if not any(start <= first and last <= end and (start, end) != (first, last) for first, last, _ in storing)
    ]
    return max(inner, key=lambda loop: (loop.widest("STG"), loop.widest("LDG"), len(loop.instructions)))


def _code_faults(compiled: Compiled) -> Iterator[str]:
    for pattern in (r"(\d+) bytes stack frame", r"(\d+) bytes spill stores", r"(\d+) bytes spill loads"):
        if num_bytes := figure(compiled, pattern):
            yield pattern.replace(r"(\d+)", str(num_bytes))
    if (registers := num_registers(compiled)) > MAX_REGISTERS:
        yield f"{registers} registers"
    yield from {f"divides by {name}" for name in _DIVISION.findall(compiled.ptx)}
    # ptxas writes some jumps as CALL: only what returns was called.
    if re.search(r"\scall[\s.]", compiled.ptx) or re.search(r"\sRET[\s.]", compiled.sass):
        yield "calls a function"


def _address_faults(compiled: Compiled) -> Iterator[str]:
    if ".address_size 64" not in compiled.ptx:
        yield "addresses of other than 64 bits"
    for access, address in set(_ACCESS.findall(compiled.ptx)):
        if ".param" not in access and (".global" not in access or not address.startswith("%rd")):
            yield f"{access} [{address}] is not known to be a 64-bit address of global memory"


def faults(compiled: Compiled, num_arguments: int, is_bulk: bool = False, reads: bool = True) -> list[str]:
    """Return what is wrong with a kernel; `is_bulk`: its main loop must store, and if it `reads` load, 16 bytes."""
    if compiled.error:
        return [f"does not compile: {compiled.error}"]
    found = [*_code_faults(compiled), *_address_faults(compiled)]
    entry = compiled.ptx.partition(".entry ")[2].partition("{")[0]
    if (num_parameters := entry.count(".param ")) != num_arguments:
        found.append(f"{num_parameters} launch parameters for {num_arguments} arguments")
    loop = main_loop(compiled) if is_bulk else None
    if loop and (loop.widest("STG") < CHUNK_BITS or (reads and loop.widest("LDG") < CHUNK_BITS)):
        found.append(f"the main loop loads {loop.widest('LDG')} and stores {loop.widest('STG')} bits at a time")
    return sorted(found)
