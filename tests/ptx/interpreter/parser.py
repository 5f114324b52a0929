"""PTX text to records. Instructions are told apart later: here any word can be an opcode."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tests.ptx.interpreter.errors import ParseError
from tests.ptx.interpreter.operands import parse_operands
from tests.ptx.interpreter.program import DTYPES, Instruction, Kernel, Parameter, Register

__all__ = ["parse", "parse_kernel"]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$]+)\s*\((?P<parameters>[^)]*)\)(?P<directives>[^{;]*)\{")
_TUNING = re.compile(r"\s*(\.(maxntid|reqntid|minnctapersm|maxnreg)\s+\d+(\s*,\s*\d+)*\s*)*")
_MAX_THREADS = re.compile(r"\.maxntid\s+([\d,\s]+)")
_PARAMETER = re.compile(r"\.param(?:\s+\.align\s+\d+)?\s+\.(?P<type>\w+)(?:\s+\.ptr(?:\s+\.\w+)*(?:\s+\d+)?)?\s+"
                        r"(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?")  # fmt: skip
_SHARED = re.compile(r"(?:\.\w+\s+)*\.shared\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
                     r"(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?")  # fmt: skip
_REGISTERS = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<names>.+)", re.DOTALL)
_RANGE = re.compile(r"(?P<prefix>%[\w$]+)<(?P<count>\d+)>|(?P<single>%[\w$]+)")
_STATEMENT = re.compile(r"\s*(?:(?P<label>[\w$]+)\s*:(?!:)|(?P<brace>[{}])|(?P<statement>[^;]+);)")
_INSTRUCTION = re.compile(
    r"(?:@(?P<not>!?)(?P<guard>%[\w$]+)\s+)?(?P<opcode>[a-z][\w.:]*)(?:\s+(?P<rest>.*))?", re.DOTALL
)
_HINT = re.compile(r"\.(pragma|loc)\s")
_ENDS_BLOCK = re.compile(r"(bra|brx|ret|exit|bar|barrier|trap)\b")


class _Code(NamedTuple):
    """A kernel's body while it is read."""

    registers: dict[str, str]
    shared: dict[str, tuple[int, int]]
    blocks: list[list[Instruction]]
    labels: dict[str, int]


def parse(text: str) -> dict[str, Kernel]:
    """Read all kernels of a PTX module.

    Raises
    ------
    ParseError
        Something that is not PTX, or a declaration that this interpreter does not know.

    Examples
    --------
    >>> kernel = parse(".entry k(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; ret; }")["k"]
    >>> kernel.parameters, [instruction.opcode for instruction in kernel.blocks[0]]
    ((Parameter(name='p', size=8),), ['ld.param.u64', 'ret'])
    """
    text = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    kernels, shared = {}, _module_shared(text)
    for entry in _ENTRY.finditer(text):
        if not _TUNING.fullmatch(entry["directives"]):
            raise ParseError(f"unknown directives of {entry['name']}: {entry['directives'].strip()}")
        kernels[entry["name"]] = _parse_entry(text, entry, shared)
    return kernels


def parse_kernel(text: str) -> Kernel:
    """Read the one kernel of a PTX module; ParseError where there are none or several."""
    kernels = parse(text)
    if len(kernels) != 1:
        raise ParseError(f"expected one kernel, got {len(kernels)}: {', '.join(kernels)}")
    return next(iter(kernels.values()))


def _module_shared(text: str) -> dict[str, tuple[int, int]]:
    shared: dict[str, tuple[int, int]] = {}
    for match in _SHARED.finditer(text[: found.start()] if (found := _ENTRY.search(text)) else text):
        _add_shared(shared, match)
    return shared


def _size_of(match: re.Match[str]) -> int:
    if match["type"] not in DTYPES:
        raise ParseError(f"unknown type .{match['type']}: {match[0]}")
    return DTYPES[match["type"]].itemsize * int(match["count"] or 1)


def _add_shared(shared: dict[str, tuple[int, int]], match: re.Match[str]) -> None:
    align, size = int(match["align"] or 1), _size_of(match)
    end = max((offset + size for offset, size in shared.values()), default=0)
    shared[match["name"]] = -(-end // align) * align, size


def _parse_entry(text: str, entry: re.Match[str], shared: dict[str, tuple[int, int]]) -> Kernel:
    parameters = []
    for declaration in filter(str.strip, entry["parameters"].split(",")):
        match = _PARAMETER.fullmatch(declaration.strip())
        if match is None:
            raise ParseError(f"unknown parameter: {declaration.strip()}")
        parameters.append(Parameter(match["name"], _size_of(match)))
    code = _Code({}, dict(shared), [[]], {})
    for line, match in _statements(text, entry.end()):
        _add_statement(code, match, line)
    # Labels at the very end, and code that runs off it, lead to a block without instructions.
    blocks = tuple(map(tuple, code.blocks))
    limit = _MAX_THREADS.search(entry["directives"])
    max_threads = int(np.prod([int(number) for number in limit[1].split(",")])) if limit else 1024
    return Kernel(entry["name"], tuple(parameters), code.registers, code.shared, blocks, code.labels, max_threads)


def _statements(text: str, start: int) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield statements and their lines up to the brace that closes a body."""
    depth, position = 1, start
    while match := _STATEMENT.match(text, position):
        depth += {"{": 1, "}": -1}.get(match["brace"] or "", 0)
        if depth == 0:
            return
        position = match.end()
        kind = match.lastgroup or ""
        yield text.count("\n", 0, match.start(kind)) + 1, match
    raise ParseError(f"a body does not end: {text[position : position + 80].strip()!r}")


def _add_statement(code: _Code, match: re.Match[str], line: int) -> None:
    if match["brace"]:
        return
    if match["label"]:
        if code.blocks[-1]:
            code.blocks.append([])
        code.labels[match["label"]] = len(code.blocks) - 1
    elif match["statement"].startswith("."):
        _add_declaration(code, match["statement"], line)
    else:
        instruction = _parse_instruction(code, " ".join(match["statement"].split()), line)
        code.blocks[-1].append(instruction)
        if _ENDS_BLOCK.match(instruction.opcode):
            code.blocks.append([])


def _add_declaration(code: _Code, statement: str, line: int) -> None:
    if match := _REGISTERS.fullmatch(statement):
        if match["type"] not in DTYPES:
            raise ParseError(f"line {line}: unknown type .{match['type']}")
        for name in _RANGE.finditer(match["names"]):
            names = [name["single"]] if name["single"] else [f"{name['prefix']}{i}" for i in range(int(name["count"]))]
            code.registers.update(dict.fromkeys(names, match["type"]))
    elif match := _SHARED.fullmatch(statement):
        _add_shared(code.shared, match)
    elif not _HINT.match(statement):
        raise ParseError(f"line {line}: unknown declaration: {statement.strip()}")


def _parse_instruction(code: _Code, text: str, line: int) -> Instruction:
    match = _INSTRUCTION.fullmatch(text)
    if match is None:
        raise ParseError(f"line {line}: no instruction: {text}")
    guard = Register(match["guard"]) if match["guard"] else None
    try:
        operands = parse_operands(match["rest"] or "", code.registers)
    except ParseError as error:
        raise ParseError(f"line {line}: {text}: {error}") from None
    return Instruction(match["opcode"], operands, guard, not match["not"], line, text)
