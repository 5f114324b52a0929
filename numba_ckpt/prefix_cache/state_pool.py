"""Who owns which block of the state pool.

A block is in exactly one place::

    free ──reserve──► held (references > 0) ──last release──► free      nothing was published
                        ▲                   └───────────────► idle      a prefix key leads to it
                        └──────────acquire────────────────────┘│
    free ◄─────────evicted by reserve, least recently used─────┘
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from numba_ckpt._check import check_int, refuse
from numba_ckpt.rules import NULL_BLOCK_ID

__all__ = ["StatePool"]


class StatePool:
    """A fixed number of blocks with reference counts; block 0 is the null block and never handed out.

    Parameters
    ----------
    num_blocks : int
        Blocks of the pool, the null block included; at least 2.
    on_evict : callable
        Called with a block's id when the block loses its published content to a new owner.

    Examples
    --------
    >>> pool = StatePool(4, on_evict=print)
    >>> pool.reserve(2)
    [1, 2]
    >>> pool.release(1, keep=True)  # idle: cached, but reusable
    >>> pool.reserve(2)
    1
    [3, 1]
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self.num_blocks = check_int("num_blocks", num_blocks, 2)
        self._on_evict = on_evict
        self._free = deque(range(NULL_BLOCK_ID + 1, num_blocks))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._references: dict[int, int] = {}

    @property
    def num_available(self) -> int:
        """Blocks that `reserve` could hand out now."""
        return len(self._free) + len(self._idle)

    def reserve(self, count: int) -> list[int]:
        """Hand out `count` blocks, free ones first, then the idle ones not used for longest; all or none.

        Raises
        ------
        ArgumentError
            Fewer are available; nothing has changed then.
        """
        if count > self.num_available:
            refuse("num_blocks", f"{count} blocks to reserve", self.num_available, "make the pool larger")
        blocks = [self._take() for _ in range(count)]
        self._references.update(dict.fromkeys(blocks, 1))
        return blocks

    def acquire(self, block: int) -> None:
        """Add a reference to a held or idle block."""
        self._idle.pop(block, None)
        self._references[block] = self._references.get(block, 0) + 1

    def release(self, block: int, keep: bool) -> None:
        """Drop a reference; after the last one the block becomes idle if `keep`, else free.

        Raises
        ------
        ArgumentError
            Nobody holds the block.
        """
        self.check_held(block)
        self._references[block] -= 1
        if self._references[block] == 0:
            del self._references[block]
            self._put_back(block, keep)

    def check_held(self, block: int) -> None:
        """Refuse a block that nobody holds."""
        if block not in self._references:
            refuse("block", "a block that is held", f"block {block}, which nobody holds", "reserve or acquire it first")

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block but the null block is in exactly one place."""
        places = [*self._free, *self._idle, *self._references]
        assert sorted(places) == list(range(NULL_BLOCK_ID + 1, self.num_blocks)), "a block is lost or in two places"
        assert all(references > 0 for references in self._references.values()), "a held block has no reference"

    def _take(self) -> int:
        if self._free:
            return self._free.popleft()
        block, _ = self._idle.popitem(last=False)
        self._on_evict(block)
        return block

    def _put_back(self, block: int, keep: bool) -> None:
        if keep:
            self._idle[block] = None
        else:
            self._free.append(block)
