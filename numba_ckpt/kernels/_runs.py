"""Runs of items that a row of threads moves together, 16 bytes at a time wherever alignment allows.

A run begins and ends anywhere. Its *chunks* lie on multiples of 16 bytes on both sides; its *edges* are the items
before and behind them, or all items where the two sides never begin a chunk together::

    destination    . . |----------------|----------------|----------------| .
                   head of 2 items      3 chunks                           tail of 1

Of `step` threads, thread `first` takes every step-th chunk and every step-th item of the edges.
"""

from numba_ckpt._jit import load_chunk, load_item, routine, rule, store_chunk, store_item, strided, uint32
from numba_ckpt.rules import CHUNK_BYTES, aligned_head, cast_bits

__all__ = ["cast_run", "copy_run", "move_run", "zero_run"]


@rule
def _edge_item(edge, head, num_items, num_edges):  # type: ignore[no-untyped-def]
    return edge if edge < head else edge + num_items - num_edges


@routine()
def copy_run(destination, source, num_items, item_bytes, first, step):  # type: ignore[no-untyped-def]
    """Copy items of 1, 2, 4 or 8 bytes between addresses; four chunks are on their way before the first is stored."""
    head = aligned_head(destination, item_bytes, source, item_bytes, num_items)
    num_chunks = (num_items - head) * item_bytes // CHUNK_BYTES
    num_edges = num_items - num_chunks * (CHUNK_BYTES // item_bytes)
    for edge in strided(first, num_edges, step):
        at = _edge_item(edge, head, num_items, num_edges) * item_bytes
        store_item(destination + at, load_item(source + at, item_bytes), item_bytes)
    written, read = (
        destination + head * item_bytes + first * CHUNK_BYTES,
        source + head * item_bytes + first * CHUNK_BYTES,
    )
    num_left, stride = num_chunks - first, step * CHUNK_BYTES
    while num_left > 3 * step:
        words0, words1 = load_chunk(read), load_chunk(read + stride)
        words2, words3 = load_chunk(read + 2 * stride), load_chunk(read + 3 * stride)
        store_chunk(written, words0)
        store_chunk(written + stride, words1)
        store_chunk(written + 2 * stride, words2)
        store_chunk(written + 3 * stride, words3)
        written, read, num_left = written + 4 * stride, read + 4 * stride, num_left - 4 * step
    while num_left > 0:
        store_chunk(written, load_chunk(read))
        written, read, num_left = written + stride, read + stride, num_left - step


@routine()
def zero_run(destination, num_items, item_bytes, first, step):  # type: ignore[no-untyped-def]
    """Zero items of 1, 2, 4 or 8 bytes from an address on."""
    head = aligned_head(destination, item_bytes, destination, item_bytes, num_items)
    num_chunks = (num_items - head) * item_bytes // CHUNK_BYTES
    zero = uint32(0)
    for chunk in strided(first, num_chunks, step):
        store_chunk(destination + head * item_bytes + chunk * CHUNK_BYTES, (zero, zero, zero, zero))
    num_edges = num_items - num_chunks * (CHUNK_BYTES // item_bytes)
    for edge in strided(first, num_edges, step):
        store_item(destination + _edge_item(edge, head, num_items, num_edges) * item_bytes, 0, item_bytes)


@routine(uint32)
def _cast_pair(low, high, cast):  # type: ignore[no-untyped-def]
    return uint32(cast_bits(low, cast) | (cast_bits(high, cast) << 16))


@routine()
def cast_run(destination, source, num_items, cast, first, step):  # type: ignore[no-untyped-def]
    """Round float32 items to 16 bits (`cast` says how); a chunk is eight of them."""
    head = aligned_head(destination, 2, source, 4, num_items)
    num_chunks = (num_items - head) // 8
    for chunk in strided(first, num_chunks, step):
        item = head + chunk * 8
        a, b, c, d = load_chunk(source + item * 4)
        e, f, g, h = load_chunk(source + item * 4 + CHUNK_BYTES)
        words = _cast_pair(a, b, cast), _cast_pair(c, d, cast), _cast_pair(e, f, cast), _cast_pair(g, h, cast)
        store_chunk(destination + item * 2, words)
    num_edges = num_items - num_chunks * 8
    for edge in strided(first, num_edges, step):
        item = _edge_item(edge, head, num_items, num_edges)
        store_item(destination + item * 2, _cast_pair(load_item(source + item * 4, 4), 0, cast), 2)


@routine()
def move_run(destination, source, num_items, item_bytes, source_item_bytes, cast, first, step):  # type: ignore[no-untyped-def]
    """Copy items, or round them where the two sides' sizes differ."""
    if item_bytes == source_item_bytes:
        copy_run(destination, source, num_items, item_bytes, first, step)
    else:
        cast_run(destination, source, num_items, cast, first, step)
