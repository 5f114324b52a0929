"""What one layer with a state caches: several tensors of their own shapes and dtypes on a page."""

import math
from dataclasses import dataclass
from typing import ClassVar

from numba_ckpt._check import check_choice, check_int, refuse
from numba_ckpt.cache.config import CACHE_MODES, EngineConfig
from numba_ckpt.cache.dtypes import check_dtype_name, storage_dtype
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.rules import ceil_div

__all__ = ["StateSpec"]


@dataclass(frozen=True)
class StateSpec(KVCacheSpec):
    """States of a recurrent layer: usually a convolution window and a recurrent state, one after the other on a page.

    Parameters
    ----------
    block_size : int
        Tokens of a block-table column (vLLM: mamba block size).
    shapes : tuple of tuple of int
        Shape of each state of one request, without the block axis.
    dtypes : tuple of str
        Element type of each state, by name.
    cache_mode : {"align", "all", "none"}
        ``"none"``: a request has one state. ``"all"``: one at every block end. ``"align"``: columns stand for blocks of
        positions as well, but only the states in use and the checkpoints are kept.
    num_speculative_blocks : int
        Blocks of a request for the states after drafted tokens.
    num_checkpoint_blocks : int
        Blocks of a request that a prefill may write checkpoints to.
    checkpoint_alignment : int, optional
        Tokens: the layer's kernel exposes states at multiples of this; None if it exposes none.
    page_size_padded : int, optional
        Bytes from one page to the next, where that is more than the data.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is out of range, shapes and dtypes that do not match, an unknown dtype, or a state that would not be
        aligned to its elements.

    Examples
    --------
    >>> spec = StateSpec(1024, shapes=((3, 64), (2, 16, 32)), dtypes=("bfloat16", "float32"), num_speculative_blocks=3)
    >>> spec.page_size_bytes, spec.offsets
    (4480, (0, 384))
    >>> limits = {"max_num_requests": 8, "max_num_batched_tokens": 2048, "max_model_len": 4096}
    >>> spec.block_table_width(EngineConfig.from_dict({"limits": limits}))  # four of positions, three speculative
    7
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    cache_mode: str = "align"
    num_speculative_blocks: int = 0
    num_checkpoint_blocks: int = 0
    checkpoint_alignment: int | None = None
    page_size_padded: int | None = None

    has_slots: ClassVar[bool] = False
    can_split_blocks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_states()
        check_choice("cache_mode", self.cache_mode, CACHE_MODES)
        self._check_ints(0, "num_speculative_blocks", "num_checkpoint_blocks")
        self._check_optional_ints(1, "checkpoint_alignment")
        self._check_alignment()
        self._check_padding(self.page_size_padded)

    def _check_states(self) -> None:
        for name in ("shapes", "dtypes"):
            if not isinstance(getattr(self, name), tuple) or not getattr(self, name):
                refuse(name, "a tuple, one entry per state", repr(getattr(self, name)), "name them", ArgumentTypeError)
        if len(self.shapes) != len(self.dtypes):
            refuse("dtypes", f"{len(self.shapes)} entries, one per shape", len(self.dtypes), "name each state's dtype")
        shapes: tuple[object, ...] = self.shapes
        for shape in shapes:
            if not isinstance(shape, tuple) or not shape:
                refuse("shapes", "a tuple of sizes per state", repr(shape), "give its axes", ArgumentTypeError)
        sizes = tuple(tuple(check_int("shapes", size, 1) for size in shape) for shape in self.shapes)
        object.__setattr__(self, "shapes", sizes)
        object.__setattr__(self, "dtypes", tuple(check_dtype_name("dtypes", dtype) for dtype in self.dtypes))

    def _check_alignment(self) -> None:
        for offset, dtype in zip(self.offsets, self.dtypes, strict=True):
            if offset % storage_dtype(dtype).itemsize:
                expected = f"states that begin at multiples of {dtype}'s size"
                refuse("shapes", expected, f"one at byte {offset}", "list the states of wider elements first")
        if self.page_size_padded is None and self.data_size_bytes % self.alignment_bytes:
            rounded = -(-self.data_size_bytes // self.alignment_bytes) * self.alignment_bytes
            expected, got = f"a page of a multiple of {self.alignment_bytes} bytes", self.data_size_bytes
            refuse("page_size_padded", expected, got, f"pad it to {rounded}")

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """Bytes of each state."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return tuple(math.prod(shape) * storage_dtype(dtype).itemsize for shape, dtype in pairs)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Byte of the page at which each state begins."""
        sizes = self.sizes_bytes
        return tuple(sum(sizes[:index]) for index in range(len(sizes)))

    @property
    def data_size_bytes(self) -> int:
        return sum(self.sizes_bytes)

    @property
    def alignment_bytes(self) -> int:
        return max(storage_dtype(dtype).itemsize for dtype in self.dtypes)

    def block_table_width(self, config: EngineConfig) -> int:
        if self.cache_mode == "none":
            return 1 + self.num_speculative_blocks
        return int(ceil_div(config.limits.max_model_len, self.block_size)) + self.num_speculative_blocks

    def max_blocks(self, config: EngineConfig) -> int:
        width = self.block_table_width(config)
        if self.cache_mode != "align":
            return width
        # The state that the step reads, the one that it writes, and what it may write besides.
        return min(2 + self.num_checkpoint_blocks + self.num_speculative_blocks, width + self.num_checkpoint_blocks)
