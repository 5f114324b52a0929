"""Block tables written out, and the recordings of slot mapping and gather, for any backend."""

import numpy as np

from numba_ckpt.kernels.gather_block_tables import gather_block_tables
from numba_ckpt.kernels.slot_mapping import slot_mapping
from numba_ckpt.planning import TableArrays, TableGroup, TableLayout
from numba_ckpt.testing import poison
from tests.golden.pack import read_records


def flat(layout, tables):
    """Lay out [rows][cols] lists; what lies between tables, and rows that are missing, are poisoned."""
    entries = poison(np.empty(layout.num_entries, np.int32))
    for view, table in zip(layout.views(entries), tables, strict=True):
        if table:
            view[: len(table)] = table
    return entries


def tables_of(groups, tables, num_blocks=None, put=np.array, num_rows=None):
    layout = TableLayout(groups, num_rows or len(tables[0] if tables else []))
    counts = np.zeros((len(groups), layout.num_rows), np.int32)
    for group, table in enumerate(tables):
        counts[group, : len(table)] = groups[group].num_cols if num_blocks is None else num_blocks[group]
    return TableArrays(layout, put(layout.params), put(flat(layout, tables)), put(counts))


def recorded_slots():
    return read_records("f4_slot_mappings")


def recorded_gathers():
    return read_records("f3_gather_block_tables")


def check_recorded_slots(case, put=np.array, get=np.asarray):
    groups = []
    for index, (size, sharded) in enumerate(zip(case["block_sizes"], case["dcp_sharded"], strict=True)):
        share = (case["cp_size"], case["cp_rank"], case["cp_interleave"]) if sharded else (1, 0, 1)
        width, enabled = len(case["block_tables"][index][0]), case["slot_mapping_enabled"][index]
        groups.append(TableGroup(size, width, None, None, *share, has_slots=enabled))
    tables = tables_of(groups, case["block_tables"], put=put)
    slots = put(np.full((len(groups), case["max_num_tokens"]), -777))
    names = "idx_mapping", "query_start_loc", "positions"
    slot_mapping(tables, *(put(np.array(case[name], np.int32)) for name in names), slots)
    assert get(slots).tolist() == case["slot_mappings"]


def check_recorded_gather(case, put=np.array, get=np.asarray):
    windows = [reach + 1 if reach else None for reach in case["sliding_window_reach"]]
    widths = [len(table[0]) for table in case["src"]]
    sizes = zip(case["block_sizes"], widths, windows, strict=True)
    groups = [TableGroup(size, width, sliding_window=window) for size, width, window in sizes]
    num_rows = max(len(case["src"][0]), len(case["dst_before"][0]))
    tables = tables_of(groups, case["src"], case["num_blocks"], put, num_rows)
    gathered = put(flat(tables.layout, case["dst_before"]))
    computed = None
    if case["mask_sliding_window"]:
        computed = put(np.array(case["num_computed_tokens"] + [0] * num_rows))
    rows = put(np.array(case["idx_mapping"], np.int64))
    gather_block_tables(tables, rows, gathered, case["num_rows"], computed)
    for view, after in zip(tables.layout.views(get(gathered)), case["dst_after"], strict=True):
        assert view[: len(after)].tolist() == after
