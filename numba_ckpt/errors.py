"""Everything numba_ckpt raises on purpose.

::

    NumbaCkptError
    ├── ArgumentError (ValueError)           a value, shape or range is wrong
    │   └── ArgumentTypeError (TypeError)    a type or dtype is wrong
    ├── BackendMixError (TypeError)          arrays of different devices in one call
    ├── DeviceError (RuntimeError)           a kernel does not compile, load or launch; says what mends it
    ├── LedgerError (AssertionError)         a key was about to lead to a block with other content
    ├── MissingDependencyError (ImportError) an extra is not installed; says the command that installs it
    ├── TraceError (ValueError)              a trace line cannot be read; carries file and line number
    └── VerificationError (AssertionError)   a resumed state differs from a recomputed one

An error names the argument, what was expected, what was got and what to do, and is raised before anything is changed.
"""

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendMixError",
    "DeviceError",
    "LedgerError",
    "MissingDependencyError",
    "NumbaCkptError",
    "TraceError",
    "VerificationError",
]


class NumbaCkptError(Exception):
    """Base of all errors that numba_ckpt raises."""


class ArgumentError(NumbaCkptError, ValueError):
    """An argument has a wrong value, shape or range."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a wrong type or dtype."""


class BackendMixError(NumbaCkptError, TypeError):
    """One call was given arrays that live on different devices."""


class DeviceError(NumbaCkptError, RuntimeError):
    """A kernel could not be compiled, loaded or launched."""


class LedgerError(NumbaCkptError, AssertionError):
    """A prefix key was about to be published for a block whose recorded content is another one."""


class MissingDependencyError(NumbaCkptError, ImportError):
    """A feature needs an extra that is not installed."""


class TraceError(NumbaCkptError, ValueError):
    """A trace file has a line that cannot be read.

    Parameters
    ----------
    path : str
        The file.
    line : int
        Line number, from 1.
    problem : str
        What was expected and what was got.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path = path
        self.line = line


class VerificationError(NumbaCkptError, AssertionError):
    """A state resumed from the cache differs from the same state computed from scratch."""
