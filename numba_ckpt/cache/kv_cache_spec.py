"""What every spec knows about one layer's cache, whatever is in it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from numba_ckpt._check import check_int, refuse
from numba_ckpt.cache.config import EngineConfig
from numba_ckpt.cache.record import Record

__all__ = ["KVCacheSpec"]


@dataclass(frozen=True)
class KVCacheSpec(Record, ABC):
    """What one layer caches; equal specs may share a block table.

    Attributes
    ----------
    block_size : int
        Tokens of a block: of one column of the block table.
    has_layer_views : bool
        Whether layers have a cache of their own to look at.
    is_cp_sharded : bool
        Whether ranks of context parallelism share a sequence's tokens; otherwise each rank keeps all of them.
    has_slots : bool
        Whether each token of the sequence has a slot in the cache. States have none, and what cross-attention caches
        are the encoder's tokens.
    can_split_blocks : bool
        Whether kernels may read a block as several smaller ones.
    """

    block_size: int

    has_layer_views: ClassVar[bool] = True
    is_cp_sharded: ClassVar[bool] = False
    has_slots: ClassVar[bool] = True
    can_split_blocks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check_ints(1, "block_size")

    @property
    @abstractmethod
    def data_size_bytes(self) -> int:
        """Bytes of a page that hold something."""

    @property
    @abstractmethod
    def alignment_bytes(self) -> int:
        """Number of bytes of which every page's address must be a multiple."""

    @property
    def page_size_bytes(self) -> int:
        """Bytes from one page to the next: the data, and the padding if there is any."""
        return getattr(self, "page_size_padded", None) or self.data_size_bytes

    @abstractmethod
    def max_blocks(self, config: EngineConfig) -> int:
        """Return the most blocks that a request holds at a time."""

    @abstractmethod
    def block_table_width(self, config: EngineConfig) -> int:
        """Return the columns of a request's row in the block table."""

    def max_memory_bytes(self, config: EngineConfig) -> int:
        """Return the most bytes that a request holds at a time in one layer."""
        return self.max_blocks(config) * self.page_size_bytes

    def padded_to(self, page_size_bytes: int) -> Self:
        """Return the spec with pages padded to `page_size_bytes`.

        Raises
        ------
        ArgumentError
            The data does not fit, or the next page would not be aligned.
        """
        if page_size_bytes == self.page_size_bytes:
            return self
        return replace(self, page_size_padded=page_size_bytes)  # type: ignore[call-arg]

    def num_kernel_blocks(self, name: str, kernel_block_size: int) -> int:
        """Return how many kernel blocks a block is made of; `name` is said in refusals."""
        size = check_int(name, kernel_block_size, 1)
        if self.block_size % size:
            expected = f"a divisor of the block size {self.block_size}"
            refuse(name, expected, size, "choose another kernel block size")
        if size < self.block_size and not self.can_split_blocks:
            do = "a block of states cannot be split: leave the size out"
            refuse(name, f"the block size {self.block_size}", size, do)
        return self.block_size // size

    def _check_padding(self, page_size_padded: int | None) -> None:
        if page_size_padded is None:
            return
        size = check_int("page_size_padded", page_size_padded, self.data_size_bytes)
        object.__setattr__(self, "page_size_padded", size)
        if size % self.alignment_bytes:
            expected = f"a multiple of {self.alignment_bytes}"
            refuse("page_size_padded", expected, size, "round it up, or the elements of later pages are misaligned")
