"""From a prefix key to the block that holds it: an open-addressing table over block records.

The table stores block ids alone; a key lives in its block's record. Linear probing, at most a quarter full, and removal
shifts the following entries back, so that no tombstones slow later look-ups down. Everything on the way to a key is
inlined: a call that is handed arrays pays for counting references to them. Id 0, the null block, marks an empty
slot.
"""

import numpy as np

from numba_ckpt._jit import host_loop, inlined_loop, int64, uint64

__all__ = ["BLOCK", "find_block", "insert_block", "remove_block"]

BLOCK = np.dtype(
    [
        ("key0", np.uint64),  # first half of the prefix key; meaningful while `group` is not NO_GROUP
        ("key1", np.uint64),
        ("ref_count", np.int32),
        ("group", np.int32),  # cache group that the key belongs to
        ("previous", np.int32),  # neighbours in the list of idle blocks
        ("next", np.int32),
    ],
    align=True,
)
"""One block of the pool, 32 bytes."""

NO_GROUP = -1
"""Group of a block without a key."""


@inlined_loop
def _home(slots, key0, key1, group):  # type: ignore[no-untyped-def]
    # Keys are pseudo-random already; groups of one prefix must not share a home.
    mixed = key0 ^ (key1 >> uint64(32)) ^ (uint64(group) * uint64(0x9E3779B97F4A7C15))
    return int64(mixed & uint64(slots.size - 1))


@inlined_loop
def _slot_of(blocks, slots, key0, key1, group):  # type: ignore[no-untyped-def]
    """Slot of a key, or the empty slot where it would go."""
    slot = _home(slots, key0, key1, group)
    while slots[slot] != 0:
        block = slots[slot]
        if blocks[block].key0 == key0 and blocks[block].key1 == key1 and blocks[block].group == group:
            break
        slot = (slot + 1) & (slots.size - 1)
    return slot


@inlined_loop
def find_block(blocks, slots, key0, key1, group):  # type: ignore[no-untyped-def]
    """Block that holds a key, or the null block."""
    return slots[_slot_of(blocks, slots, key0, key1, group)]


@inlined_loop
def insert_block(blocks, slots, block, key0, key1, group):  # type: ignore[no-untyped-def]
    """Let a key lead to `block`; False, and nothing changed, if it leads to another block already."""
    slot = _slot_of(blocks, slots, key0, key1, group)
    is_new = slots[slot] == 0
    if is_new:
        slots[slot] = block
        blocks[block].key0, blocks[block].key1, blocks[block].group = key0, key1, group
    return is_new


@host_loop
def remove_block(blocks, slots, block):  # type: ignore[no-untyped-def]
    """Forget the key of `block`, which must have one."""
    record = blocks[block]
    hole = _slot_of(blocks, slots, record.key0, record.key1, record.group)
    blocks[block].group = NO_GROUP
    slot = (hole + 1) & (slots.size - 1)
    while slots[slot] != 0:
        record = blocks[slots[slot]]
        home = _home(slots, record.key0, record.key1, record.group)
        # An entry may fill the hole unless its home lies after the hole (cyclically).
        if ((slot - home) & (slots.size - 1)) >= ((slot - hole) & (slots.size - 1)):
            slots[hole] = slots[slot]
            hole = slot
        slot = (slot + 1) & (slots.size - 1)
    slots[hole] = 0
