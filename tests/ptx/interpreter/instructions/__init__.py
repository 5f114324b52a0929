"""What each instruction does: one module per family, each a table from opcodes to NumPy functions."""

from tests.ptx.interpreter.instructions import (  # noqa: F401  (each fills the table)
    access,
    bits,
    compare,
    control,
    convert,
    floats,
    integers,
    moves,
)
from tests.ptx.interpreter.instructions.table import Step, decode

__all__ = ["Step", "decode"]
