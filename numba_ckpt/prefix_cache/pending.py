"""What open steps are about to publish: a small pool of keys, of which a block is a promise and nothing is stored."""

import numpy as np

from numba_ckpt._jit import atomic_loop, borrow
from numba_ckpt.cache import BlockPool
from numba_ckpt.cache.key_table import find_block, insert_block, remove_block
from numba_ckpt.cache.pool_loops import allocate_blocks, release_block
from numba_ckpt.cache.pool_memory import NUM_CACHED, cut_pool
from numba_ckpt.prefix_cache.commit_loops import collect_publications
from numba_ckpt.prefix_cache.request import ChunkReservation
from numba_ckpt.rules import NULL_BLOCK_ID, floor_div

__all__ = ["PendingKeys"]

Place = tuple[str, int]
MIN_BLOCKS = 1024


@atomic_loop
def _promise(words, keys, unit, found, promised):  # type: ignore[no-untyped-def]
    """Hold a block for each row (block, tokens of its prefix, group) of `found`, and fill `promised` with them."""
    pool, keys = cut_pool(words), borrow(keys)
    for index in range(found.shape[0]):
        last, group = floor_div(found[index, 1], unit) - 1, found[index, 2]
        block = find_block(pool.blocks, pool.slots, keys[last, 0], keys[last, 1], group)
        if block != NULL_BLOCK_ID:
            pool.blocks[block].ref_count += 1
            promised[index] = block
        else:
            new = promised[index : index + 1]
            allocate_blocks(pool, new)
            insert_block(pool.blocks, pool.slots, new[0], keys[last, 0], keys[last, 1], group)
            pool.counts[NUM_CACHED] += 1


@atomic_loop
def _withdraw(words, promised):  # type: ignore[no-untyped-def]
    """Drop one hold on each block of `promised`; the last one on a block takes its key along."""
    pool = cut_pool(words)
    for block in promised:
        if pool.blocks[block].ref_count == 1:
            remove_block(pool.blocks, pool.slots, block)
            pool.counts[NUM_CACHED] -= 1
        release_block(pool, block)


class PendingKeys:
    """The keys that open steps are about to publish, each held once for every chunk that writes it.

    A chunk is looked at when somebody asks while it is in flight: engines that commit before the next look-up pay
    nothing.

    Parameters
    ----------
    book : ndarray
        The cache's book.
    unit : int
        Tokens of a hash block.
    """

    def __init__(self, book: np.ndarray, unit: int) -> None:
        self._book, self._unit = book, unit
        self._pool = BlockPool(MIN_BLOCKS)
        self._new: dict[Place, ChunkReservation] = {}
        self._promised: dict[Place, tuple[ChunkReservation, np.ndarray]] = {}

    def reserved(self, chunk: ChunkReservation) -> None:
        """Take in a chunk that is about to be written."""
        self._new[chunk.request.request_id, chunk.end] = chunk

    def settled(self, chunk: ChunkReservation) -> None:
        """Forget a chunk that was committed or undone."""
        place = chunk.request.request_id, chunk.end
        if self._new.pop(place, None) is None:
            _withdraw(self._pool.words, self._promised.pop(place)[1])

    @property
    def words(self) -> np.ndarray:
        """Memory of a pool with all keys that would be published if every open step were committed now."""
        while self._new:
            place, chunk = self._new.popitem()
            request, start, end, reserved = chunk
            boundaries = request.last_boundary, request.junction
            found = collect_publications(self._book, request.table, reserved, start, end, False, *boundaries)
            self._make_room(len(found))
            promised = np.empty(len(found), np.int32)
            _promise(self._pool.words, request.keys, self._unit, found, promised)
            self._promised[place] = chunk, promised
        return self._pool.words

    def _make_room(self, count: int) -> None:
        """Start over with a larger pool where `count` more keys do not fit."""
        if count > self._pool.num_available:
            self._pool = BlockPool(2 * (self._pool.num_blocks + count))
            self._new |= {place: chunk for place, (chunk, _) in self._promised.items()}
            self._promised.clear()
