"""Optional packages, imported where they are used and missed with the command that installs them."""

import importlib
from types import ModuleType

from numba_ckpt.errors import MissingDependencyError

__all__ = ["require"]

_EXTRA_OF = {"rich": "cli", "matplotlib": "cli", "msgspec": "cli", "cupy": "cuda13"}


def require(module: str, purpose: str) -> ModuleType:
    """Import an optional module, or say which extra brings it.

    Parameters
    ----------
    module : str
        Dotted module name, such as ``"rich.table"``.
    purpose : str
        What it is needed for, for the message.

    Raises
    ------
    MissingDependencyError
        It is not installed.

    Examples
    --------
    >>> require("json", "reading").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        package = module.partition(".")[0]
        extra = _EXTRA_OF.get(package, "cli")
        other = "; with a driver for CUDA 12, take [cuda12]" if package == "cupy" else ""
        problem = f'{package}: expected to be installed for {purpose}, got "{cause}"'
        raise MissingDependencyError(f'{problem}; run: pip install "numba-ckpt[{extra}]"{other}') from cause
