"""Random calls of every launcher of the registry, on arrays in any place: `CALLS` by name of the operation.

A call is given a `Places`, and draws what it needs from its generator, so that it can be repeated on another device.
"""

import numpy as np

from numba_ckpt.kernels._registry import OPS
from numba_ckpt.kernels.block_pieces import BlockPieces
from numba_ckpt.kernels.plan_rows import PlannedRows
from numba_ckpt.kernels.running_state_indices import StateIndices, StateRows
from numba_ckpt.planning import CheckpointGeometry, DeviceBatchLayout, TableArrays, TableGroup, TableLayout
from tests.ptx.exports import EXPORTS

__all__ = ["CALLS"]

INDEX_TYPES = [np.int32, np.int64]
WORDS = [np.uint8, np.uint16, np.uint32, np.int64]


def _group(rng):
    part, num_parts, ranks = int(rng.choice([1, 4, 6])), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    window = int(rng.integers(1, 20)) if rng.random() < 0.4 else None
    shares = ranks, int(rng.integers(ranks)), int(rng.choice([1, 2]) if part > 1 else 1)
    width = int(rng.choice([0, 2, 5, 200]))
    return TableGroup(part * num_parts, width, part, window, *shares, bool(rng.random() < 0.8))


def _tables(places, num_rows):
    rng = places.rng
    layout = TableLayout([_group(rng) for _ in range(rng.integers(1, 4))], num_rows)
    counts = [rng.integers(0, group.num_cols + 1, num_rows) for group in layout.groups]
    entries = rng.integers(0, 2**31, layout.num_entries).astype(np.int32)
    arrays = places.put(layout.params), places.put(entries, num_strided=0), places.put(np.array(counts, np.int32))
    return TableArrays(layout, *arrays)


def apply_staged_writes(places):
    rng, tables = places.rng, _tables(places, 4)
    writes, source = [], 0
    for index, group in enumerate(tables.layout.groups):
        for row in rng.permutation(4)[: rng.integers(1, 5)]:
            first = int(rng.integers(0, group.width + 1))
            size = int(rng.integers(0, group.width - first + 1))
            count = (first + size) * group.num_parts
            writes.append((index, row, first * group.num_parts, size, source, count))
            source += size
    block_ids = places.put(rng.integers(0, 2**29, source).astype(rng.choice(INDEX_TYPES)))
    width = max((group.num_cols for group in tables.layout.groups), default=0)
    OPS["apply_staged_writes"].launcher(tables, places.put(np.array(writes)), block_ids, width)


def gather_block_tables(places):
    rng, tables, dtype = places.rng, _tables(places, 5), places.rng.choice(INDEX_TYPES)
    rows = places.put(rng.integers(-1, 5, rng.integers(0, 6)).astype(dtype))
    gathered = places.out((tables.layout.num_entries,), np.int32, num_strided=0)
    computed = places.put(rng.integers(0, 60, 6).astype(dtype)) if rng.random() < 0.7 else None
    OPS["gather_block_tables"].launcher(tables, rows, gathered, None, computed)


def slot_mapping(places):
    rng, tables, dtype = places.rng, _tables(places, 5), places.rng.choice(INDEX_TYPES)
    rows = rng.integers(-1, 5, rng.integers(0, 5))
    starts = np.cumsum([0, *rng.integers(0, 7, rows.size)])
    positions = rng.integers(0, 80, starts[-1] + 2)
    # Beyond 32 bits, and negative: such tokens have no slot.
    far = rng.random(positions.size) < (0.1 if dtype == np.int64 else 0)
    positions[far] = rng.integers(-(2**62), 2**62, far.sum())
    arrays = [places.put(array.astype(dtype)) for array in (rows, starts, positions)]
    slots = places.out((len(tables.layout.groups), starts[-1] + 3), np.int64)
    OPS["slot_mapping"].launcher(tables, *arrays, slots)


def gather_state_indices(places):
    rng, dtype = places.rng, places.rng.choice(INDEX_TYPES)
    table = places.put(rng.integers(-(2**31), 2**31, (5, 7)).astype(dtype))  # negative ids are padding
    count = int(rng.integers(1, 20))
    rows, cols = rng.integers(0, 5, count), rng.integers(-1, 7, count)
    arrays = places.put(rows.astype(dtype)), places.put(cols.astype(dtype))
    return OPS["gather_state_indices"].launcher(table, *arrays, extent=(5, 7))


def logits_start_loc(places):
    rng, dtype = places.rng, places.rng.choice(INDEX_TYPES)
    starts = np.cumsum([0, *rng.integers(0, 6, rng.integers(0, 12))])
    logits = np.flatnonzero(rng.random(starts[-1] + 1) < 0.5)
    return OPS["logits_start_loc"].launcher(places.put(starts.astype(dtype)), places.put(logits.astype(dtype)))


def stage_logits_indices(places):
    rng = places.rng
    indices = places.put(rng.integers(0, 2**31, rng.integers(1, 12)).astype(rng.choice(INDEX_TYPES)))
    OPS["stage_logits_indices"].launcher(indices, places.out((indices.size + int(rng.integers(0, 9)),), np.int32))


def token_to_req_indices(places):
    rng = places.rng
    lens = rng.integers(0, 7, rng.integers(0, 8))
    starts = places.put(np.cumsum([0, *lens, 3]).astype(rng.choice(INDEX_TYPES)))
    out = places.out((int(lens.sum()) + int(rng.integers(0, 5)),), np.int32)
    OPS["token_to_req_indices"].launcher(starts, lens.size, int(lens.max(initial=0)), out)


def running_state_indices(places):
    rng, dtype, num_rows = places.rng, places.rng.choice(INDEX_TYPES), int(places.rng.integers(1, 8))
    computed, queries = rng.integers(0, 40, num_rows), rng.integers(0, 9, num_rows)
    num_decodes, num_slots, block_size = int(rng.integers(0, num_rows + 1)), int(rng.integers(1, 4)), 8
    accepted = np.minimum(rng.integers(1, num_slots + 1, num_rows), np.maximum(computed, 1))
    table = rng.integers(0, 2**31, (num_rows, 10 + num_slots)).astype(dtype)
    arrays = [array.astype(dtype) for array in (computed + queries, np.cumsum([0, *queries]), accepted)]
    arrays = [places.put(array) for array in (table, *arrays)]
    counts = arrays[3] if rng.random() < 0.7 else None
    rows = StateRows(*arrays[1:3], counts, num_rows, num_decodes, block_size, int((computed + queries).max()))
    num_lines = num_rows + int(rng.integers(0, 3))
    out = places.out((num_lines,), np.int32), places.out((num_lines, num_slots), np.int32)
    OPS["running_state_indices"].launcher(arrays[0], rows, StateIndices(*out, places.out((num_lines,), np.bool_)))


def plan_rows(places):
    rng, dtype, num_reqs = places.rng, places.rng.choice(INDEX_TYPES), int(places.rng.integers(1, 8))
    unit, parts = int(rng.choice([1, 4, 8])), int(rng.integers(1, 5))
    alignment = int(rng.choice([unit, 2 * unit])) if rng.random() < 0.7 else None
    sizes = unit, unit * parts, unit * int(rng.choice([1, parts])), alignment, bool(rng.random() < 0.5)
    geometry = CheckpointGeometry(*sizes, int(rng.integers(0, 6)))
    queries = rng.integers(0, 100, num_reqs)
    seq_lens = rng.integers(0, 100, num_reqs) // unit * unit + queries
    table = rng.integers(-(2**31), 2**31, (num_reqs, int(seq_lens.max()) // (unit * parts) + 1))
    arrays = seq_lens, np.cumsum([0, *queries]), table
    batch = DeviceBatchLayout(*(places.put(array.astype(dtype)) for array in arrays))
    rows = places.put(rng.integers(-1, num_reqs, int(rng.integers(0, 9))).astype(dtype))
    num_lines = rows.size + int(rng.integers(0, 4))
    out = PlannedRows(*(places.out((num_lines,), kind) for kind in (np.int32, np.int64, np.int32)))
    OPS["plan_rows"].launcher(batch, rows, geometry, out)


def _blocks(places, kind, num_blocks=7):
    """Pieces of blocks of any sizes, one layer's after another's with gaps between."""
    rng, pieces, end = places.rng, [], int(places.rng.integers(0, 4))
    for _ in range(rng.integers(1, 4)):
        size = int(rng.choice([1, 33, 320, 1600, 1600]))
        distance = size + int(rng.choice([0, 0, 0, 5]))
        pieces.append((end, distance, size))
        end += num_blocks * distance + int(rng.integers(0, 3))
    words = rng.integers(0, 256, end * 8, np.uint8).view(WORDS[kind])[:end]
    return BlockPieces(places.put(words, num_strided=0), places.put(np.array(pieces)), num_blocks, 1600)


def copy_blocks(places):
    rng, kind = places.rng, int(places.rng.integers(len(WORDS)))
    blocks = _blocks(places, kind)
    order = rng.permutation(np.arange(1, blocks.num_blocks))
    count, dtype = int(rng.integers(1, 4)), INDEX_TYPES[kind % 2]
    sources, targets = rng.choice(order[:3], count), order[3 : 3 + count]
    OPS["copy_blocks"].launcher(blocks, *(places.put(array.astype(dtype)) for array in (sources, targets)))


def zero_blocks(places):
    rng, kind = places.rng, int(places.rng.integers(len(WORDS)))
    blocks = _blocks(places, kind)
    block_ids = rng.permutation(blocks.num_blocks)[: rng.integers(1, 5)]
    OPS["zero_blocks"].launcher(blocks, places.put(block_ids.astype(INDEX_TYPES[kind % 2])))


CALLS = {
    "apply_staged_writes": apply_staged_writes,
    "copy_blocks": copy_blocks,
    "gather_block_tables": gather_block_tables,
    "gather_state_indices": gather_state_indices,
    "logits_start_loc": logits_start_loc,
    "plan_rows": plan_rows,
    "running_state_indices": running_state_indices,
    "slot_mapping": slot_mapping,
    "stage_logits_indices": stage_logits_indices,
    "token_to_req_indices": token_to_req_indices,
    "zero_blocks": zero_blocks,
    **EXPORTS,
}
