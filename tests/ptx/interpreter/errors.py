"""What can be wrong with a program, or with what it does."""

__all__ = [
    "AlignmentError",
    "DeadlockError",
    "DivisionError",
    "LaunchError",
    "OutOfBoundsError",
    "ParseError",
    "PtxError",
    "RaceError",
    "RunawayError",
    "UnknownInstructionError",
    "UnwrittenError",
]


class PtxError(Exception):
    """Any of the errors below.

    ::

        PtxError
        ├── ParseError               the text is not PTX as this interpreter reads it
        ├── UnknownInstructionError  an instruction, or a modifier of one, that it does not know
        ├── LaunchError              arguments that do not fit the kernel's parameters
        ├── OutOfBoundsError         an access outside the declared allocations
        ├── AlignmentError           an address that is no multiple of the access's width
        ├── UnwrittenError           a read of poisoned bytes that nothing has written
        ├── RaceError                an outcome that depends on which thread is first
        ├── DivisionError            an integer division by zero, whose result a GPU leaves open
        ├── DeadlockError            threads that wait at a barrier for others that never come
        └── RunawayError             a launch that does not end
    """


class ParseError(PtxError):
    """The text is not PTX as this interpreter reads it."""


class UnknownInstructionError(PtxError):
    """An instruction, or a modifier of one, that the interpreter does not know."""


class LaunchError(PtxError):
    """Arguments that do not fit the kernel's parameters."""


class OutOfBoundsError(PtxError):
    """An access outside the declared allocations."""


class AlignmentError(PtxError):
    """An address that is no multiple of the access's width."""


class UnwrittenError(PtxError):
    """A read of poisoned bytes that nothing has written."""


class RaceError(PtxError):
    """An outcome that depends on which thread is first."""


class DivisionError(PtxError):
    """An integer division by zero, whose result a GPU leaves open."""


class DeadlockError(PtxError):
    """Threads that wait at a barrier for others that never come."""


class RunawayError(PtxError):
    """A launch that does not end."""
