"""What a replay is asked to do."""

from dataclasses import dataclass, field

from numba_ckpt._check import check_choice, check_int, refuse
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.prefix_cache import PROVEN, CacheConfig, CacheGroup, Retention, SplitPolicy
from numba_ckpt.replay.trace import TOKENS_PER_ID
from numba_ckpt.rules import ceil_div

__all__ = ["ATTENTION_GROUP", "STATE_GROUP", "ReplayOptions"]

ATTENTION_GROUP, STATE_GROUP = range(2)
_STATE_BLOCKS_PER_CHUNK = 3
_LOWEST = {
    "num_blocks": 2,
    "budget_tokens": 1,
    "max_running": 1,
    "verify_sample": 0,
    "seed": 0,
    "decode_tokens": 0,
    "tokens_per_second": 1,
    "step_ms": 0,
}


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
        Where states live and plans are gathered and exported.
    num_blocks : int
        Blocks of the pool that attention and states share, the null block included; at least 2.
    budget_tokens : int
        Tokens that one step computes at most, at least 1.
    max_running : int
        Requests that run at a time, at least 1.
    verify_sample : int
        Resumed requests to recompute from scratch and compare; 0 for none. With any, every published block is checked
        against a ledger of writes.
    seed : int
        Seed of the layer's weights, of its inputs and of the sample.
    attention_block : int, optional
        Tokens per attention block, a multiple of the hash block; by default that.
    retention : Retention
        Which state boundaries are kept.
    junction : {"exact", "block", "none"}
        Whether a prefill stops where an earlier prompt with the same prefix went another way: on that token, on the
        last whole state block before it, or not at all.
    long_prefill_tokens : int, optional
        Tokens that one prefill may take of a step; None sets no limit besides the budget.
    decode_tokens : int
        Output tokens that a request computes in a step once its prefill is over; 0 leaves outputs out.
    arrivals : {"closed", "trace"}
        A request arrives as soon as there is room, or at its time stamp.
    tokens_per_second, step_ms : int
        How long a step lasts on the clock that arrivals follow: `step_ms`, and its tokens at this speed.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An option is out of range.

    Examples
    --------
    >>> ReplayOptions(budget_tokens=0)
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: budget_tokens: expected an integer in [1, 2147483647], got 0; check the ...
    """

    geometry: CheckpointGeometry = field(default_factory=_default_geometry)
    device: str = "cpu"
    num_blocks: int = 65_536
    budget_tokens: int = 8192
    max_running: int = 16
    verify_sample: int = 0
    seed: int = 0
    attention_block: int | None = None
    retention: Retention = PROVEN
    junction: str = "exact"
    long_prefill_tokens: int | None = None
    decode_tokens: int = 0
    arrivals: str = "closed"
    tokens_per_second: int = 50_000
    step_ms: int = 10

    def __post_init__(self) -> None:
        for name, kind in (("geometry", CheckpointGeometry), ("retention", Retention)):
            if not isinstance(value := getattr(self, name), kind):
                refuse(name, f"a {kind.__name__}", type(value).__name__, f"make a {kind.__name__}", ArgumentTypeError)
        check_choice("device", self.device, ("cpu", "cuda"))
        check_choice("junction", self.junction, ("exact", "block", "none"))
        check_choice("arrivals", self.arrivals, ("closed", "trace"))
        for name, low in _LOWEST.items():
            check_int(name, getattr(self, name), low)
        if self.attention_block is None:
            object.__setattr__(self, "attention_block", self.geometry.hash_block_size)
        unit = self.geometry.hash_block_size
        if check_int("attention_block", self.attention_block, 1) % unit:
            refuse(
                "attention_block", f"a multiple of the hash block {unit}", self.attention_block, "hash in finer units"
            )
        self.cache_config()
        self.split_policy()

    @property
    def attention_block_size(self) -> int:
        """Tokens per attention block."""
        return self.attention_block or self.geometry.hash_block_size

    def cache_config(self) -> CacheConfig:
        """Return the groups: full attention, and states."""
        geometry = self.geometry
        states = CacheGroup(
            "state", geometry.state_block_size, checkpoint_alignment=geometry.checkpoint_alignment or None
        )
        return CacheConfig(
            (CacheGroup("full", self.attention_block_size), states),
            geometry.hash_block_size,
            geometry.cache_hit_alignment_tokens,
            geometry.drop_eagle_block,
            geometry.num_hash_lookahead_tokens,
        )

    def split_policy(self) -> SplitPolicy:
        """Return what decides where chunks end."""
        return SplitPolicy(self.geometry, self.budget_tokens, self.long_prefill_tokens, self.junction == "exact")

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that suffice for a request of `num_tokens` that runs alone, the null block included.

        A chunk reads one state and writes two, its checkpoint's and its running one's.
        """
        return ceil_div(num_tokens, self.attention_block_size) + _STATE_BLOCKS_PER_CHUNK + 1
