"""What one attention layer caches: block size, page bytes, and how many blocks and table columns a request needs."""

from dataclasses import dataclass
from typing import ClassVar

from numba_ckpt._check import check_int, refuse
from numba_ckpt.cache.config import EngineConfig
from numba_ckpt.cache.dtypes import check_dtype_name, storage_dtype
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.rules import ceil_div

__all__ = [
    "AttentionSpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "SlidingWindowSpec",
]


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """Keys and values of an attention layer's tokens.

    Parameters
    ----------
    block_size : int
        Tokens of a block.
    num_kv_heads : int
        Key-value heads on this rank.
    head_size : int
        Elements of a key.
    dtype : str
        Element type by name, such as ``"bfloat16"``, ``"float16"`` or ``"fp8_e4m3"``.
    head_size_v : int, optional
        Elements of a value; by default as many as of a key.
    page_size_padded : int, optional
        Bytes from one page to the next, where that is more than the data.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is out of range, an unknown dtype, or a padded page that is too small or misaligned.
    """

    num_kv_heads: int
    head_size: int
    dtype: str = "bfloat16"
    head_size_v: int | None = None
    page_size_padded: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_ints(1, "num_kv_heads", "head_size")
        object.__setattr__(self, "dtype", check_dtype_name("dtype", self.dtype))
        if self.head_size_v is None:
            object.__setattr__(self, "head_size_v", self.head_size)
        self._check_head_size_v()
        self._check_padding(self.page_size_padded)

    def _check_head_size_v(self) -> None:
        self._check_ints(1, "head_size_v")

    @property
    def content_size(self) -> int:
        """Elements of one head and token: the key, then the value."""
        return self.head_size + (self.head_size_v or 0)

    @property
    def data_size_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * self.content_size * self.alignment_bytes

    @property
    def alignment_bytes(self) -> int:
        return storage_dtype(self.dtype).itemsize

    def block_table_width(self, config: EngineConfig) -> int:
        return _num_blocks(config.limits.max_model_len, self.block_size)

    def max_blocks(self, config: EngineConfig) -> int:
        return self.block_table_width(config)


def _num_blocks(num_tokens: int, block_size: int) -> int:
    return int(ceil_div(num_tokens, block_size))


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """All tokens are kept. A window or chunk may be recorded: what the layer computes, not what is kept.

    Parameters are those of `AttentionSpec`, and

    Parameters
    ----------
    sliding_window, attention_chunk_size : int, optional
        Tokens that a token sees, where blocks are kept for all of them all the same.

    Examples
    --------
    >>> spec = FullAttentionSpec(16, num_kv_heads=8, head_size=128)
    >>> spec.page_size_bytes
    65536
    """

    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    is_cp_sharded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_optional_ints(1, "sliding_window", "attention_chunk_size")
        if self.sliding_window is not None and self.attention_chunk_size is not None:
            got, do = f"{self.attention_chunk_size} beside a sliding window", "leave one of them out"
            refuse("attention_chunk_size", "None", got, do)

    def block_table_width(self, config: EngineConfig) -> int:
        return _num_blocks(config.limits.max_model_len, self.block_size * config.parallel.cp_size)


@dataclass(frozen=True)
class MLAAttentionSpec(FullAttentionSpec):
    """One latent for each token (and head), from which keys and values are computed; nothing is stored for values.

    Examples
    --------
    >>> MLAAttentionSpec(64, num_kv_heads=1, head_size=576).page_size_bytes
    73728
    """

    def __post_init__(self) -> None:
        if self.head_size_v is None:
            object.__setattr__(self, "head_size_v", 0)
        super().__post_init__()

    def _check_head_size_v(self) -> None:
        if check_int("head_size_v", self.head_size_v, 0) != 0:
            refuse("head_size_v", "0 or None", self.head_size_v, "a latent has no value of its own: leave it out")


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """A token sees the last `sliding_window` tokens, and blocks before them are given back.

    Parameters are those of `AttentionSpec`, and

    Parameters
    ----------
    sliding_window : int
        Tokens that a token sees, itself among them.

    Examples
    --------
    >>> spec = SlidingWindowSpec(16, num_kv_heads=8, head_size=128, sliding_window=100)
    >>> limits = {"max_num_requests": 8, "max_num_batched_tokens": 64, "max_model_len": 4096}
    >>> config = EngineConfig.from_dict({"limits": limits})
    >>> spec.block_table_width(config), spec.max_blocks(config)  # columns for all positions, few of them filled
    (256, 12)
    """

    sliding_window: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_ints(1, "sliding_window")

    def max_blocks(self, config: EngineConfig) -> int:
        # The tokens of a step all need the window before the first of them, which may begin inside a block.
        seen = self.sliding_window - 1 + config.limits.max_num_batched_tokens
        return min(_num_blocks(seen, self.block_size) + 1, self.block_table_width(config))


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """A token sees its own chunk of `attention_chunk_size` tokens, and blocks before that are given back.

    Parameters are those of `AttentionSpec`, and

    Parameters
    ----------
    attention_chunk_size : int
        Tokens of a chunk.
    """

    attention_chunk_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_ints(1, "attention_chunk_size")

    def max_blocks(self, config: EngineConfig) -> int:
        seen = self.attention_chunk_size + config.limits.max_num_batched_tokens
        return min(_num_blocks(seen, self.block_size) + 1, self.block_table_width(config))


@dataclass(frozen=True)
class CrossAttentionSpec(AttentionSpec):
    """Keys and values of an encoder's tokens, whose number does not grow.

    Parameters are those of `AttentionSpec`, and

    Parameters
    ----------
    max_encoder_len : int
        Most tokens of an encoder's input.
    """

    max_encoder_len: int = 0

    has_slots: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_ints(1, "max_encoder_len")

    def block_table_width(self, config: EngineConfig) -> int:
        return _num_blocks(self.max_encoder_len, self.block_size)


@dataclass(frozen=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """Attention inside one step: nothing is cached, and no block is ever held.

    Examples
    --------
    >>> spec = EncoderOnlyAttentionSpec(16, num_kv_heads=8, head_size=64)
    >>> spec.has_layer_views, spec.page_size_bytes
    (False, 0)
    """

    has_layer_views: ClassVar[bool] = False
    has_slots: ClassVar[bool] = False

    @property
    def data_size_bytes(self) -> int:
        return 0

    def block_table_width(self, config: EngineConfig) -> int:
        return 0
