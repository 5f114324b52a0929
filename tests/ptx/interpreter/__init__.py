"""Runs compiled PTX on host memory, and checks every access: see docs/ptx-interpreter.md."""

from tests.ptx.interpreter.errors import (
    AlignmentError,
    DeadlockError,
    DivisionError,
    LaunchError,
    OutOfBoundsError,
    ParseError,
    PtxError,
    RaceError,
    RunawayError,
    UnknownInstructionError,
    UnwrittenError,
)
from tests.ptx.interpreter.machine import run
from tests.ptx.interpreter.memory import GAP, Allocation, Memory, Window
from tests.ptx.interpreter.parser import parse, parse_kernel
from tests.ptx.interpreter.program import Kernel

__all__ = [
    "GAP",
    "AlignmentError",
    "Allocation",
    "DeadlockError",
    "DivisionError",
    "Kernel",
    "LaunchError",
    "Memory",
    "OutOfBoundsError",
    "ParseError",
    "PtxError",
    "RaceError",
    "RunawayError",
    "UnknownInstructionError",
    "UnwrittenError",
    "Window",
    "parse",
    "parse_kernel",
    "run",
]
