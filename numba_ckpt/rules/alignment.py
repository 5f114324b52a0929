"""Which part of a run of items can be moved in chunks of 16 bytes."""

from numba_ckpt._jit import int64, rule

CHUNK_BYTES = 16
"""Bytes of the widest load and store of a GPU that all architectures have."""


@rule
def aligned_head(destination: int, item_bytes: int, source: int, source_item_bytes: int, num_items: int) -> int:
    """Return the items before the first address at which both sides of a move begin a chunk.

    Parameters
    ----------
    destination, source : int
        Addresses of the first items, multiples of their size.
    item_bytes, source_item_bytes : int
        Sizes of the items, powers of two up to 8.
    num_items : int
        Items of the run; returned where the two sides never begin a chunk together.

    Examples
    --------
    >>> aligned_head(1008, 4, 2000, 4, 50), aligned_head(1004, 4, 2012, 4, 50), aligned_head(1004, 4, 2000, 4, 50)
    (0, 1, 50)
    >>> aligned_head(1004, 2, 2008, 4, 50)  # two items end at 1008 and at 2016
    2
    """
    head = (-int64(destination) & (CHUNK_BYTES - 1)) // int64(item_bytes)
    starts = (int64(destination) + head * int64(item_bytes)) | (int64(source) + head * int64(source_item_bytes))
    return min(head, int64(num_items)) if starts & (CHUNK_BYTES - 1) == 0 else int64(num_items)
