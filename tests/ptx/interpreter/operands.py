"""The operands of an instruction: registers, constants, addresses, vectors."""

import re
from collections.abc import Container

from tests.ptx.interpreter.errors import ParseError
from tests.ptx.interpreter.program import Address, Immediate, Operand, Register, Special, Symbol, Vector

__all__ = ["parse_operands"]

_COMMAS = re.compile(r",(?![^{(]*[})])")
_ADDRESS = re.compile(r"\[\s*(?P<base>[%\w$.]+)\s*(?:\+\s*(?P<offset>-?\w+))?\s*\]")
_SPECIAL = re.compile(r"%[a-z_]+\d*(\.[xyzw])?")
_SYMBOL = re.compile(r"[A-Za-z_$][\w$]*")
_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")


def parse_operands(text: str, registers: Container[str]) -> tuple[Operand, ...]:
    """Read a comma-separated list; words with a percent sign are registers if declared, else special ones.

    Examples
    --------
    >>> parse_operands("%rd1, [%rd2+8], -4, {%r1, %r2}", {"%rd1", "%rd2", "%r1", "%r2"})[1:3]
    (Address(base=Register(name='%rd2'), offset=8), Immediate(bits=-4, kind='int'))
    """
    return tuple(_operand(part.strip(), registers) for part in _COMMAS.split(text)) if text.strip() else ()


def _operand(text: str, registers: Container[str]) -> Operand:
    if text.startswith("{") and text.endswith("}"):
        return Vector(parse_operands(text[1:-1], registers))
    if match := _ADDRESS.fullmatch(text):
        base = _operand(match["base"], registers)
        if not isinstance(base, Register | Symbol | Immediate):
            raise ParseError(f"no address: {text}")
        return Address(base, _integer(match["offset"] or "0"))
    if text in registers:
        return Register(text)
    if _SPECIAL.fullmatch(text):
        return Special(text)
    # The arguments of a call: no instruction here takes any, and the message shall name that instruction.
    return Symbol(text) if text.startswith("(") else _constant(text)


def _constant(text: str) -> Operand:
    if match := _FLOAT.fullmatch(text):
        return Immediate(int(match[1] or match[2], 16), "f32" if match[1] else "f64")
    if _INTEGER.fullmatch(text):
        return Immediate(_integer(text), "int")
    if _SYMBOL.fullmatch(text):
        return Symbol(text)
    raise ParseError(f"unknown operand {text!r}")


def _integer(text: str) -> int:
    digits = text.removesuffix("U")
    return int(digits, 16 if "x" in digits.lower() else 10)
