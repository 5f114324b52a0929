"""What an engine is configured with, in small records that check themselves."""

from dataclasses import dataclass, field

from numba_ckpt._check import check_bool, check_choice, check_int, refuse
from numba_ckpt.cache.record import Record
from numba_ckpt.errors import ArgumentTypeError

__all__ = [
    "CACHE_MODES",
    "LAYOUTS",
    "CacheConfig",
    "EngineConfig",
    "LimitsConfig",
    "ParallelConfig",
    "SpeculationConfig",
]

CACHE_MODES = ("none", "all", "align")
"""How recurrent states are cached: not at all, at every block end, or where a prefix may be resumed."""

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
"""Orders of layers, blocks, heads, tokens and content in memory, outermost first."""


@dataclass(frozen=True, slots=True)
class CacheConfig(Record):
    """How caches are cut and laid out.

    Parameters
    ----------
    mode : {"align", "all", "none"}
        How recurrent states are cached.
    block_size : int
        Tokens of a block.
    hash_block_size : int, optional
        Tokens of a prefix hash, a divisor of `block_size`; by default `block_size`.
    cache_hit_alignment_tokens : int, optional
        Unit of cache hits, in tokens; None while it is unresolved, and then no state is checkpointed.
    layout : str
        One of `LAYOUTS`.
    kv_sharing_fast_prefill : bool
        Whether layers that share another layer's cache compute only the tokens that logits are wanted of.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is out of range or of a wrong type.

    Examples
    --------
    >>> CacheConfig(block_size=64).hash_block_size
    64
    >>> CacheConfig.from_dict({"blok_size": 64})
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: blok_size: expected one of the keys mode, block_size, ...
    """

    mode: str = "align"
    block_size: int = 16
    hash_block_size: int | None = None
    cache_hit_alignment_tokens: int | None = None
    layout: str = "LBHNC"
    kv_sharing_fast_prefill: bool = False

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, CACHE_MODES)
        check_choice("layout", self.layout, LAYOUTS)
        check_bool("kv_sharing_fast_prefill", self.kv_sharing_fast_prefill)
        self._check_ints(1, "block_size")
        if self.hash_block_size is None:
            object.__setattr__(self, "hash_block_size", self.block_size)
        self._check_optional_ints(1, "hash_block_size", "cache_hit_alignment_tokens")
        if self.hash_block_size and self.block_size % self.hash_block_size:
            expected = f"a divisor of block_size {self.block_size}"
            refuse("hash_block_size", expected, self.hash_block_size, "let a whole number of hashes make up a block")


@dataclass(frozen=True, slots=True)
class SpeculationConfig(Record):
    """How tokens are drafted.

    Parameters
    ----------
    num_draft_tokens : int
        Tokens drafted per step; 0 without speculation.
    drop_eagle_block : bool
        Whether the last unit of every cache hit is given up, because an EAGLE head must recompute it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is out of range or of a wrong type.
    """

    num_draft_tokens: int = 0
    drop_eagle_block: bool = False

    def __post_init__(self) -> None:
        self._check_ints(0, "num_draft_tokens")
        check_bool("drop_eagle_block", self.drop_eagle_block)


@dataclass(frozen=True, slots=True)
class LimitsConfig(Record):
    """How large a batch may become.

    Parameters
    ----------
    max_num_requests : int
        Requests of a step, at least 1.
    max_num_batched_tokens : int
        Tokens of a step, at least 1.
    max_model_len : int
        Tokens of a sequence, at least 1.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is out of range or of a wrong type.
    """

    max_num_requests: int
    max_num_batched_tokens: int
    max_model_len: int

    def __post_init__(self) -> None:
        self._check_ints(1, "max_num_requests", "max_num_batched_tokens", "max_model_len")


@dataclass(frozen=True, slots=True)
class ParallelConfig(Record):
    """How a step is cut over micro-batches, and a sequence over ranks.

    Parameters
    ----------
    num_ubatches : int
        Micro-batches of a step, at least 1.
    cp_size, cp_rank : int
        Ranks that share the tokens of a sequence (context parallelism), and which of them this is.
    cp_interleave : int
        Tokens in a row that one rank keeps.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is out of range or of a wrong type.
    """

    num_ubatches: int = 1
    cp_size: int = 1
    cp_rank: int = 0
    cp_interleave: int = 1

    def __post_init__(self) -> None:
        self._check_ints(1, "num_ubatches", "cp_size", "cp_interleave")
        object.__setattr__(self, "cp_rank", check_int("cp_rank", self.cp_rank, 0, self.cp_size - 1))


@dataclass(frozen=True, slots=True)
class EngineConfig(Record):
    """All of it, as backends and builders get it.

    Parameters
    ----------
    limits : LimitsConfig
        How large a batch may become.
    cache : CacheConfig
        How caches are cut and laid out.
    speculation : SpeculationConfig
        How tokens are drafted.
    parallel : ParallelConfig
        How a step is cut over micro-batches and ranks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is out of range or of a wrong type; loaded from a mapping, the message begins with its dotted path.

    Examples
    --------
    >>> limits = {"max_num_requests": 8, "max_num_batched_tokens": 2048, "max_model_len": 4096}
    >>> EngineConfig.from_dict({"limits": limits, "cache": {"block_size": 32}}).cache.block_size
    32
    >>> EngineConfig.from_dict({"limits": limits | {"max_model_len": 0}})
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: limits.max_model_len: expected an integer in [1, 2147483647], got 0; ...
    """

    limits: LimitsConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        kinds = {
            "limits": LimitsConfig,
            "cache": CacheConfig,
            "speculation": SpeculationConfig,
            "parallel": ParallelConfig,
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                expected, do = f"a {kind.__name__}", "make one, or load all with EngineConfig.from_dict"
                refuse(name, expected, type(value).__name__, do, ArgumentTypeError)
