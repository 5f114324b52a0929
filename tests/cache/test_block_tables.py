"""Block tables on the host: the recordings, the known failures, and steps that allocate nothing."""

import copy
import tracemalloc

import numpy as np
import pytest

from numba_ckpt.cache import (
    BlockTables,
    CacheConfig,
    CrossAttentionSpec,
    EngineConfig,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    LimitsConfig,
    ParallelConfig,
    SlidingWindowSpec,
    StateSpec,
    UniformTypeSpecs,
)
from numba_ckpt.cache.table_groups import table_groups
from numba_ckpt.errors import ArgumentError
from numba_ckpt.planning import TableGroup
from tests.cache.recorded_tables import block_table_sequences, check_sequence
from tests.kernels.lists import written_entries

LIMITS = LimitsConfig(max_num_requests=4, max_num_batched_tokens=64, max_model_len=4096)


def rows(*values):
    return np.array(values, np.int32)


def one_table(width=4, **group):
    return BlockTables([TableGroup(group.pop("block_size", 4), width, **group)], max_num_reqs=3, max_num_tokens=32)


@pytest.mark.parametrize("sequence", block_table_sequences())
def test_recorded_sequences(sequence):
    check_sequence(sequence)


def config_of(*specs, **parallel):
    groups = tuple(KVCacheGroup((f"layer.{index}",), spec) for index, spec in enumerate(specs))
    return KVCacheConfig(100, groups, ()), EngineConfig(LIMITS, CacheConfig(), parallel=ParallelConfig(**parallel))


def test_b23_speculative_blocks_have_columns():
    state = StateSpec(1024, shapes=((4,),), dtypes=("float32",), num_speculative_blocks=3)
    tables = BlockTables.from_config(*config_of(state))
    assert tables.tables[0].shape == (4, 7)
    tables.append_block_ids(0, [list(range(1, 8))])
    with pytest.raises(ArgumentError, match="at most 0 blocks, the room of row 0, got 1"):
        tables.append_block_ids(0, [[8]])


def test_b24_a_full_row_refuses_and_stays():
    tables = one_table(width=3)
    tables.append_block_ids(1, [[5, 6]])
    with pytest.raises(ArgumentError, match=r"block_ids\[0\]: expected at most 1 blocks, the room of row 1, got 2"):
        tables.append_block_ids(1, [[7, 8]])
    tables.append_block_ids(1, [[9]])
    tables.apply_staged_writes()
    assert tables.tables[0].tolist() == [[0, 0, 0], [5, 6, 9], [0, 0, 0]]
    assert tables.num_blocks_cpu.tolist() == [[0, 3, 0]]


def test_b24_a_full_row_of_one_group_stages_nothing_for_any():
    tables = BlockTables([TableGroup(4, 8), TableGroup(4, 1)], max_num_reqs=2, max_num_tokens=8)
    with pytest.raises(ArgumentError, match=r"block_ids\[1\]"):
        tables.append_block_ids(0, [[1], [2, 3]])
    tables.apply_staged_writes()
    assert not tables.num_blocks_cpu.any()
    assert not any(table.any() for table in tables.tables)


def test_b25_kernel_blocks():
    tables = one_table(width=2, block_size=528, kernel_block_size=16)
    tables.append_block_ids(0, [[3]])
    tables.append_block_ids(0, [[1]])
    tables.apply_staged_writes()
    assert tables.tables[0][0].tolist() == [*range(99, 132), *range(33, 66)]
    slots = tables.compute_slot_mappings(rows(0), rows(0, 3), np.array([0, 527, 528]), 3)
    assert slots.tolist() == [[3 * 528, 3 * 528 + 527, 528]]


def test_b19_only_sharded_groups_are_localised():
    full, state = FullAttentionSpec(4, 1, 8), StateSpec(4, shapes=((4,),), dtypes=("float32",))
    window = SlidingWindowSpec(4, 1, 8, sliding_window=8)
    mixed = UniformTypeSpecs((("layer.3", full), ("x", FullAttentionSpec(4, 2, 8))))
    cache, config = config_of(full, window, state, cp_size=2, cp_rank=1)
    cache = KVCacheConfig(100, (*cache.groups, KVCacheGroup(("layer.3", "x"), mixed)), ())
    tables = BlockTables.from_config(cache, config)
    assert [group.cp_size for group in tables.layout.groups] == [2, 1, 1, 2]
    assert [group.has_slots for group in tables.layout.groups] == [True, True, False, True]
    assert [group.sliding_window for group in tables.layout.groups] == [None, 8, None, None]
    tables.append_block_ids(2, [[5], [6, 7], [8, 9], [4]])
    tables.apply_staged_writes()
    slots = tables.compute_slot_mappings(rows(2), rows(0, 8), np.arange(8), 8).tolist()
    assert slots == [[-1, 20, -1, 21, -1, 22, -1, 23], [*range(24, 32)], [-1] * 8, [-1, 16, -1, 17, -1, 18, -1, 19]]


def test_states_and_encoders_tokens_have_no_slots_of_the_sequence():
    cross = CrossAttentionSpec(4, 1, 8, max_encoder_len=16)
    state = StateSpec(16, shapes=((4,),), dtypes=("float32",))
    cache, config = config_of(cross, state)
    tables = BlockTables.from_config(cache, config)
    tables.append_block_ids(0, [[5], [6]])
    tables.apply_staged_writes()
    assert tables.compute_slot_mappings(rows(0), rows(0, 3), np.arange(3), 3).tolist() == [[-1] * 3] * 2
    with pytest.raises(ArgumentError, match=r"kernel_block_sizes\[1\]: expected the block size 16, got 4"):
        table_groups(cache, config, [4, 4])


def test_b21_a_dummy_step_has_no_slots():
    tables = one_table()
    tables.append_block_ids(0, [[3]])
    tables.apply_staged_writes()
    tables.compute_slot_mappings(rows(0), rows(0, 4), np.arange(4), 4)
    assert tables.get_dummy_slot_mappings(16).tolist() == [[-1] * 16]
    slots = tables.compute_slot_mappings(rows(-1), rows(0, 4), np.arange(4), 6)
    assert slots.tolist() == [[-1] * 6]


def test_captured_addresses_stay():
    tables = one_table()
    tables.append_block_ids(1, [[3, 4]])
    tables.apply_staged_writes()
    dummies, padding = tables.get_dummy_block_tables(2), tables.get_dummy_slot_mappings(8)
    assert not dummies[0].any()
    real = tables.gather_block_tables(rows(1), 2)
    slots = tables.compute_slot_mappings(rows(1), rows(0, 2), np.array([3, 4]), 8)
    assert real[0].ctypes.data == dummies[0].ctypes.data
    assert slots.ctypes.data == padding.ctypes.data
    assert dummies[0].tolist() == [[3, 4, 0, 0], [0, 0, 0, 0]]


def test_a_smaller_batch_clears_what_a_larger_one_left():
    tables = one_table()
    for row in range(3):
        tables.append_block_ids(row, [[row + 1] * 4])
    tables.apply_staged_writes()
    whole = tables.gather_block_tables(rows(2, 1, 0))[0]
    tables.gather_block_tables(rows(1))
    assert whole.tolist() == [[2] * 4, [0] * 4, [0] * 4]
    slots = tables.compute_slot_mappings(rows(0), rows(0, 16), np.arange(16), 20)
    tables.compute_slot_mappings(rows(0), rows(0, 2), np.arange(2), 2)
    assert slots[0, 2:].tolist() == [-1] * 18


def test_staged_writes_of_one_row_in_one_step():
    tables = one_table(width=6)
    tables.append_block_ids(0, [[1, 2, 3]])
    tables.append_block_ids(0, [[4]])
    tables.append_block_ids(0, [[9]], overwrite=True)
    tables.append_block_ids(0, [[8]])
    tables.apply_staged_writes()
    assert tables.tables[0][0].tolist() == [9, 8, 3, 4, 0, 0]
    assert tables.num_blocks_cpu[0, 0] == 2
    tables.append_block_ids(0, [[]], overwrite=True)
    tables.apply_staged_writes()
    gathered = tables.gather_block_tables(rows(0), 1)
    assert gathered[0].tolist() == [[0] * 6]  # an emptied row has nothing in use


def test_staged_writes_never_overlap():
    tables = one_table(width=8)
    tables.append_block_ids(0, [[5, 6, 7]])
    tables.append_block_ids(0, [[8]])
    tables.append_block_ids(0, [[1]], overwrite=True)
    tables.append_block_ids(0, [[2, 3]])  # in place of 6 and 7, which are not applied yet
    tables.append_block_ids(0, [[4]])
    assert len(written_entries(tables)) == 4
    tables.apply_staged_writes()
    assert tables.tables[0][0].tolist() == [1, 2, 3, 4, 0, 0, 0, 0]


def test_a_copy_of_the_tables_lives_a_life_of_its_own():
    tables = one_table(width=3)
    tables.append_block_ids(0, [[1]])
    other = copy.deepcopy(tables)
    other.append_block_ids(0, [[2]])
    other.apply_staged_writes()
    tables.apply_staged_writes()
    assert (tables.tables[0][0].tolist(), other.tables[0][0].tolist()) == ([1, 0, 0], [1, 2, 0])


def test_stale_entries_have_no_slots():
    tables = one_table(width=3)
    tables.append_block_ids(0, [[1, 2, 3]])
    tables.append_block_ids(0, [[7]], overwrite=True)
    tables.apply_staged_writes()
    assert tables.compute_slot_mappings(rows(0), rows(0, 2), np.array([3, 4]), 2).tolist() == [[31, -1]]


def test_a_steady_step_allocates_no_arrays():
    groups = [TableGroup(16, 512), TableGroup(16, 512, sliding_window=64), TableGroup(32, 256), TableGroup(1024, 16)]
    tables = BlockTables(groups, max_num_reqs=64, max_num_tokens=512)
    for row in range(64):
        tables.append_block_ids(row, [[row + 1] * 8, [row + 1] * 8, [row + 1] * 4, [row + 1]])
    batch, starts, positions = np.arange(64)[::-1].copy(), np.arange(65), np.full(64, 120)
    computed = np.full(64, 120)

    def step(number):
        tables.append_block_ids(number % 64, [[3], [4], [], []], overwrite=number % 3 == 0)
        tables.apply_staged_writes()
        tables.gather_block_tables(batch, 64, computed)
        tables.compute_slot_mappings(batch, starts, positions, 128)

    for number in range(10):
        step(number)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for number in range(200):
        step(number)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before <= 10_000
    assert peak - before <= 10_000


def test_table_groups_take_kernel_block_sizes():
    cache, config = config_of(FullAttentionSpec(528, 1, 8), SlidingWindowSpec(16, 1, 8, sliding_window=9))
    assert [group.num_cols for group in table_groups(cache, config, [16, 16])] == [8 * 33, 256]
