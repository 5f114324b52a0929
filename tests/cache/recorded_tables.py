"""Recorded lives of block tables, replayed on any backend."""

import numpy as np

from numba_ckpt.cache import BlockTables
from numba_ckpt.planning import TableGroup
from tests.golden.pack import read_records


def block_table_sequences():
    return read_records("f3_block_table_sequences")


def groups_of(block_sizes, widths, reaches):
    """Table groups of a recording, whose reach is the window without the token itself, and 0 where there is none."""
    windows = [reach + 1 if reach else None for reach in reaches or [0] * len(widths)]
    sizes = zip(block_sizes, widths, windows, strict=True)
    return [TableGroup(block_size, width, sliding_window=window) for block_size, width, window in sizes]


def _lists(arrays, get):
    return [get(array).tolist() for array in arrays]


def check_sequence(sequence, put=np.array, get=np.asarray, array_module=np):
    groups = groups_of(sequence["block_sizes"], sequence["widths"], sequence["sliding_window_reach"])
    tables = BlockTables(groups, sequence["max_num_reqs"], max_num_tokens=8, array_module=array_module)
    buffers = tables.gather_block_tables(put(np.zeros(0, np.int32)), tables.max_num_reqs)
    for op in sequence["ops"]:
        match op["op"]:
            case "append":
                tables.append_block_ids(op["req"], op["block_ids"], op["overwrite"])
            case "apply":
                tables.apply_staged_writes()
                assert _lists(tables.tables, get) == op["tables"]
                assert tables.num_blocks_cpu.tolist() == op["num_blocks"]
            case "gather":
                computed = op["num_computed_tokens"]
                computed = None if computed is None else put(np.array(computed, np.int32))
                rows = put(np.array(op["idx_mapping"], np.int32))
                assert _lists(tables.gather_block_tables(rows, op["num_reqs_padded"], computed), get) == op["result"]
                assert _lists(buffers, get) == op["buffers"]
            case "dummy":
                assert _lists(tables.get_dummy_block_tables(op["num_reqs"]), get) == op["result"]
                assert _lists(buffers, get) == op["buffers"]
