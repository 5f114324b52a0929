"""What a replay is asked to do."""

from dataclasses import dataclass, field

from numba_ckpt._check import check_choice, check_int, refuse
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.replay.trace import TOKENS_PER_ID

__all__ = ["ReplayOptions"]

_BLOCKS_PER_ROW = 3


def _default_geometry() -> CheckpointGeometry:
    return CheckpointGeometry(TOKENS_PER_ID, TOKENS_PER_ID, TOKENS_PER_ID, checkpoint_alignment=16)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a replay; checked once, when made.

    Parameters
    ----------
    geometry : CheckpointGeometry
        Where prefills may be checkpointed.
    device : {"cpu", "cuda"}
        Where caches live and plans are gathered and exported.
    num_blocks : int
        State blocks of the pool, the null block included; at least three for each row and one more.
    budget_tokens : int
        Tokens that one step computes at most; at least one state block.
    max_rows : int
        Requests that one step computes at most, at least 1.
    verify_sample : int
        Resumed requests to recompute from scratch and compare; 0 for none.
    seed : int
        Seed of the layer's weights, of the tokens' values and of the sample.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An option is out of range.

    Examples
    --------
    >>> ReplayOptions(budget_tokens=100)
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: budget_tokens: expected at least one state block (512), got 100; raise the budget
    """

    geometry: CheckpointGeometry = field(default_factory=_default_geometry)
    device: str = "cpu"
    num_blocks: int = 65_536
    budget_tokens: int = 8192
    max_rows: int = 16
    verify_sample: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.geometry, CheckpointGeometry):
            got = type(self.geometry).__name__
            refuse("geometry", "a CheckpointGeometry", got, "make one from the block sizes", ArgumentTypeError)
        check_choice("device", self.device, ("cpu", "cuda"))
        for name, low in (("num_blocks", 2), ("budget_tokens", 1), ("max_rows", 1), ("verify_sample", 0), ("seed", 0)):
            check_int(name, getattr(self, name), low)
        state_block = self.geometry.state_block_size
        if self.budget_tokens < state_block:
            expected = f"at least one state block ({state_block})"
            refuse("budget_tokens", expected, self.budget_tokens, "raise the budget")
        # A row reads one block and writes two, its checkpoint's and its running state's.
        needed = _BLOCKS_PER_ROW * self.max_rows + 1
        if self.num_blocks < needed:
            expected = f"at least {needed} for {self.max_rows} rows"
            refuse("num_blocks", expected, self.num_blocks, "raise the number of blocks or lower max_rows")
