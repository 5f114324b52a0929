"""Which state boundaries are worth keeping: one small interface, so that placement policies can be exchanged."""

from dataclasses import dataclass

from numba_ckpt._check import check_int

__all__ = ["DENSE", "PROVEN", "Retention"]


@dataclass(frozen=True, slots=True)
class Retention:
    """Keep states at multiples of `interval` tokens, besides the proven reuse points of each prompt.

    Proven are the last reusable boundary of a prompt and a junction, where an earlier prompt with the same prefix
    went another way; and the last end of a state block before each, where a chunk stops that cannot stop on it.

    Parameters
    ----------
    interval : int
        Tokens; 0 keeps the proven points alone, 1 every state that a chunk leaves on the hash grid.

    Examples
    --------
    >>> Retention(interval=8192).interval, DENSE.interval, PROVEN.interval
    (8192, 1, 0)
    """

    interval: int = 0

    def __post_init__(self) -> None:
        check_int("interval", self.interval, 0)


DENSE = Retention(1)
"""Every state that a chunk leaves on the hash grid."""
PROVEN = Retention(0)
"""Proven reuse points alone."""
