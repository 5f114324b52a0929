"""Mistakes that block tables refuse, and that nothing changes then."""

import numpy as np
import pytest

from numba_ckpt.cache import BlockTables, EngineConfig, FullAttentionSpec, KVCacheConfig, KVCacheGroup
from numba_ckpt.cache.table_groups import table_groups
from numba_ckpt.errors import ArgumentError
from numba_ckpt.planning import TableGroup

ROW, STARTS, POSITIONS = np.array([1]), np.array([0, 2]), np.array([0, 1])
GROUPS = [TableGroup(4, 3), TableGroup(8, 2, kernel_block_size=4)]


@pytest.fixture
def tables():
    tables = BlockTables(GROUPS, max_num_reqs=2, max_num_tokens=8, num_pool_blocks=50)
    tables.append_block_ids(1, [[3, 4], [5]])
    tables.apply_staged_writes()
    tables.gather_block_tables(ROW, 2)
    tables.compute_slot_mappings(ROW, STARTS, POSITIONS, 4)
    return tables


def state(tables):
    arrays = (tables.tables, [tables._gathered, tables._slots, tables.num_blocks_cpu])
    return [array.copy() for some in arrays for array in some], len(tables._staged)


MISTAKES = [
    ("append_block_ids", (2, [[1], [1]]), r"row: expected an integer in \[0, 1\], got 2"),
    ("append_block_ids", (-1, [[1], [1]]), r"row: expected an integer in \[0, 1\], got -1"),
    ("append_block_ids", (0.0, [[1], [1]]), "row: expected an integer"),
    ("append_block_ids", (0, [[1]]), "block_ids: expected ids for each of 2 groups, got 1"),
    ("append_block_ids", (0, 5), "block_ids: expected a list of ids for each of 2 groups, got int"),
    ("append_block_ids", (0, [[1], 5]), r"block_ids\[1\]: expected a list or a 1-d integer array, got int"),
    ("append_block_ids", (0, [[1], [50]]), r"block_ids\[1\]: expected ids in \[0, 50\), got 50"),
    ("append_block_ids", (0, [[1, -1], []]), r"block_ids\[0\]: expected ids in \[0, 50\), got -1"),
    ("append_block_ids", (0, [[1.5], []]), r"block_ids\[0\]: expected an integer dtype"),
    ("append_block_ids", (0, [[True], []]), r"block_ids\[0\]: expected integers, got a bool"),
    ("append_block_ids", (0, [[2**70], []]), r"block_ids\[0\]: expected integers below"),
    ("append_block_ids", (0, [np.array([[1]]), []]), r"block_ids\[0\]: expected 1 dim"),
    ("append_block_ids", (1, [[1], [6, 7]]), r"block_ids\[1\]: expected at most 1 blocks, the room of row 1, got 2"),
    ("append_block_ids", (1, [[1, 2], []]), r"block_ids\[0\]: expected at most 1 blocks"),
    ("append_block_ids", (1, [[1, 2, 3, 4], []], True), r"block_ids\[0\]: expected at most 3 blocks"),
    ("append_block_ids", (1, [[1], []], 1), "overwrite: expected True or False"),
    ("gather_block_tables", ([1],), "request_rows"),
    ("gather_block_tables", (np.array([0, 1, 0]),), "request_rows: expected at most 2 requests, got 3"),
    ("gather_block_tables", (np.array([0, 1]), 1), r"num_reqs_padded: expected an integer in \[2, 2\], got 1"),
    ("gather_block_tables", (ROW, 3), r"num_reqs_padded: expected an integer in \[1, 2\], got 3"),
    ("gather_block_tables", (np.array([2]),), "got 2 at entry 0"),
    ("gather_block_tables", (ROW, 1, np.array([0])), "a count for each of 2 table rows"),
    ("gather_block_tables", (ROW, 1, np.array([0, -1])), "num_computed_tokens: expected counts of at least 0"),
    ("get_dummy_block_tables", (3,), "num_reqs_padded"),
    ("get_dummy_slot_mappings", (9,), r"num_tokens_padded: expected an integer in \[0, 8\], got 9"),
    ("compute_slot_mappings", (ROW, STARTS, POSITIONS, 9), "num_tokens_padded"),
    ("compute_slot_mappings", (ROW, STARTS, POSITIONS, 1), "num_tokens_padded: expected at least 2 tokens, got 1"),
    ("compute_slot_mappings", (ROW, [0, 2], POSITIONS, 4), "query_start_loc"),
    ("compute_slot_mappings", (ROW, np.array([], int), POSITIONS, 4), "query_start_loc: expected shape"),
    ("compute_slot_mappings", (np.array([4]), STARTS, POSITIONS, 4), "got 4 at entry 0"),
    ("compute_slot_mappings", (ROW, STARTS, POSITIONS[:1], 4), "query_start_loc: expected ascending starts"),
]


@pytest.mark.parametrize(("method", "arguments", "message"), MISTAKES)
def test_mistakes_change_nothing(tables, method, arguments, message):
    before = state(tables)
    with pytest.raises(ArgumentError, match=message):
        getattr(tables, method)(*arguments)
    after = state(tables)
    assert all((a == b).all() for a, b in zip(after[0], before[0], strict=True))
    assert after[1] == before[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((GROUPS, 0, 8), "max_num_reqs"),
        ((GROUPS, 2, 0), "max_num_tokens"),
        ((GROUPS, 2, 8, 0), "num_pool_blocks"),
        (([7], 2, 8), "groups: expected a sequence of TableGroup, got int"),
    ],
)
def test_impossible_tables(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        BlockTables(*arguments)


def test_configurations_that_do_not_fit():
    cache = KVCacheConfig(10, (KVCacheGroup(("layer.0",), FullAttentionSpec(16, 1, 8)),), ())
    limits = {"max_num_requests": 2, "max_num_batched_tokens": 8, "max_model_len": 64}
    config = EngineConfig.from_dict({"limits": limits})
    for arguments, message in [
        ((None, config), "kv_cache_config: expected a KVCacheConfig"),
        ((cache, limits), "config: expected an EngineConfig, got dict"),
        ((cache, config, [16, 16]), "kernel_block_sizes: expected one size for each of 1 groups, got 2"),
        ((cache, config, [5]), r"kernel_block_sizes\[0\]: expected a divisor of the block size 16, got 5"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            table_groups(*arguments)
