"""The sizes that decide where a prefill may be checkpointed."""

from dataclasses import dataclass, field

import numpy as np

from numba_ckpt._check import check_bool, check_int
from numba_ckpt.rules import NO_ALIGNMENT

__all__ = ["CheckpointGeometry"]


@dataclass(frozen=True, slots=True)
class CheckpointGeometry:
    """Sizes, all in tokens, that place the checkpoint of a prefill; checked once, when made.

    Parameters
    ----------
    hash_block_size : int
        Tokens per prefix hash, 1 to 2^31 - 1. A query that does not start on this grid has no checkpoint.
    state_block_size : int
        Tokens per block-table column of the recurrent-state group (vLLM: mamba block size), 1 to 2^31 - 1.
    cache_hit_alignment_tokens : int
        Unit to which the checkpoint's position is floored, 1 to 2^31 - 1.
    checkpoint_alignment : int or None
        The backend can export a state only at multiples of this many tokens from the query's start; None means that it
        cannot export, so no row ever has a checkpoint.
    drop_eagle_block : bool
        Whether speculative decoding gives up the last unit of every hit.
    num_hash_lookahead_tokens : int
        Tokens beyond a boundary that its hash needs, 0 to 2^31 - 1; has no effect when the EAGLE block is dropped.

    Raises
    ------
    ArgumentError
        A size is out of range.
    ArgumentTypeError
        A size is no integer (a bool, a float), or the switch no bool.

    Examples
    --------
    >>> CheckpointGeometry(16, 2048, 16, checkpoint_alignment=64).state_block_size
    2048
    >>> CheckpointGeometry(16, 0, 16, checkpoint_alignment=64)
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: state_block_size: expected an integer in [1, 2147483647], got 0; ...
    """

    hash_block_size: int
    state_block_size: int
    cache_hit_alignment_tokens: int
    checkpoint_alignment: int | None
    drop_eagle_block: bool = False
    num_hash_lookahead_tokens: int = 0
    # What the compiled loops read, in the order of `PARAMS`: one array crosses into compiled code faster than six ints.
    params: np.ndarray = field(init=False, repr=False, compare=False)
    # The same as kernels take them.
    sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("hash_block_size", "state_block_size", "cache_hit_alignment_tokens"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), 1))
        if self.checkpoint_alignment is not None:
            alignment = check_int("checkpoint_alignment", self.checkpoint_alignment, 1)
            object.__setattr__(self, "checkpoint_alignment", alignment)
        object.__setattr__(self, "drop_eagle_block", check_bool("drop_eagle_block", self.drop_eagle_block))
        lookahead = check_int("num_hash_lookahead_tokens", self.num_hash_lookahead_tokens, 0)
        object.__setattr__(self, "num_hash_lookahead_tokens", lookahead)
        object.__setattr__(self, "params", self._pack())
        object.__setattr__(self, "sizes", tuple(self.params.tolist()))

    def _pack(self) -> np.ndarray:
        params = np.empty(len(PARAMS), np.int64)
        for index, name in enumerate(PARAMS):
            params[index] = NO_ALIGNMENT if getattr(self, name) is None else getattr(self, name)
        return params


PARAMS = (
    "cache_hit_alignment_tokens",
    "hash_block_size",
    "state_block_size",
    "checkpoint_alignment",
    "drop_eagle_block",
    "num_hash_lookahead_tokens",
)
