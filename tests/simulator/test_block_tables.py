"""Block tables, gather and slot mapping in the simulator: recordings, random lives, and values out of range."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.cache import BlockTables
from numba_ckpt.errors import ArgumentError, BackendMixError
from numba_ckpt.kernels.apply_staged_writes import apply_staged_writes
from numba_ckpt.kernels.gather_block_tables import gather_block_tables
from numba_ckpt.kernels.slot_mapping import slot_mapping
from numba_ckpt.planning import TableGroup
from numba_ckpt.testing import SimulatedDevice
from tests.cache.recorded_tables import block_table_sequences, check_sequence
from tests.kernels.lists import ListTables
from tests.kernels.tables import (
    check_recorded_gather,
    check_recorded_slots,
    recorded_gathers,
    recorded_slots,
    tables_of,
)

pytestmark = pytest.mark.usefixtures("tiny_grids")


def small(cases, size_of, most):
    """The recordings that the simulator, which runs a thread at a time, gets through quickly."""
    return [case for case in cases if size_of(case) <= most]


@pytest.mark.parametrize("case", small(recorded_slots(), lambda c: len(c["block_sizes"]) * c["max_num_tokens"], 24))
def test_recorded_slots(device, case):
    check_recorded_slots(case, device.put, device.get)
    assert device.num_launches == 1


@pytest.mark.parametrize("case", small(recorded_gathers(), lambda c: sum(len(t[0]) for t in c["dst_before"]), 8))
def test_recorded_gathers(device, case):
    check_recorded_gather(case, device.put, device.get)


@pytest.mark.parametrize("sequence", small(block_table_sequences(), lambda c: sum(c["widths"]), 9)[:5])
def test_recorded_sequences(device, sequence):
    check_sequence(sequence, device.put, device.get, array_module=device)


def test_a_step_is_one_copy_and_three_launches(device):
    groups = [TableGroup(4, 4, sliding_window=4), TableGroup(8, 2, 4, cp_size=2, cp_rank=1), TableGroup(4, 4)]
    tables = BlockTables(groups, max_num_reqs=3, max_num_tokens=16, array_module=device)
    copies = device.num_copies
    for row in range(3):
        tables.append_block_ids(row, [[row + 1, row + 4], [row + 7], []])
    tables.apply_staged_writes()
    assert (device.num_copies - copies, device.num_launches) == (1, 1)
    rows, starts = device.put(np.array([2, -1, 0])), device.put(np.array([0, 3, 4, 6]))
    gathered = tables.gather_block_tables(rows, 3, device.put(np.array([9, 0, 4])))
    slots = tables.compute_slot_mappings(rows, starts, device.put(np.array([3, 4, 5, 0, 7, 8])), 8)
    assert device.num_launches == 3
    assert [device.get(table).tolist() for table in gathered] == [
        [[3, 6, 0, 0], [0, 0, 0, 0], [0, 4, 0, 0]],
        [[18, 19, 0, 0], [0, 0, 0, 0], [14, 15, 0, 0]],
        [[0, 0, 0, 0]] * 3,
    ]
    assert device.get(slots).tolist() == [
        [15, 24, 25, -1, 19, -1, -1, -1],
        [73, -1, 74, -1, 59, -1, -1, -1],
        [-1] * 8,
    ]
    launches = device.num_launches
    tables.apply_staged_writes()
    assert device.num_launches == launches, "nothing was staged"


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_random_lives_agree_with_lists(seed):
    rng = np.random.default_rng(seed)
    groups = [
        TableGroup(4, int(rng.integers(0, 4)), int(rng.choice([2, 4])), 5 if rng.random() < 0.5 else None),
        TableGroup(2, 3, cp_size=2, cp_rank=int(rng.integers(2)), cp_interleave=int(rng.choice([1, 2]))),
    ]
    with SimulatedDevice.attached() as device:
        tables = BlockTables(groups, 3, 12, array_module=device)
        lists = ListTables(groups, 3)
        for _ in range(2):
            for row in rng.integers(0, 3, 3).tolist():
                overwrite = bool(rng.random() < 0.4)
                rooms = [lists.room(group, row, overwrite) for group in range(2)]
                block_ids = [rng.integers(0, 99, rng.integers(0, room + 1)).tolist() for room in rooms]
                tables.append_block_ids(row, block_ids, overwrite)
                lists.append(row, block_ids, overwrite)
            tables.apply_staged_writes()
            assert [device.get(table).tolist() for table in tables.tables] == lists.tables
            rows = rng.integers(-1, 3, rng.integers(0, 4)).tolist()
            computed = rng.integers(0, 20, 3).tolist()
            on_device = device.put(np.array(rows, np.int32))
            gathered = tables.gather_block_tables(on_device, 3, device.put(np.array(computed)))
            assert [device.get(table).tolist() for table in gathered] == lists.gather(rows, 3, computed)
            starts = np.cumsum([0, *rng.integers(0, 4, len(rows))])
            positions = rng.integers(-2, 20, starts[-1])
            arrays = device.put(starts), device.put(positions)
            slots = tables.compute_slot_mappings(on_device, *arrays, 12)
            assert device.get(slots).tolist() == lists.slots(rows, starts, positions, 12)


def test_rows_out_of_range_are_neutral(device):
    tables = tables_of([TableGroup(4, 2)], [[[5, 6], [7, 8]]], put=device.put)
    rows, slots = device.put(np.array([7, -9, 1])), device.put(np.full((1, 6), -777))
    slot_mapping(tables, rows, device.put(np.array([0, 1, 2, 4])), device.put(np.array([0, 0, 3, 8])), slots)
    assert device.get(slots).tolist() == [[-1, -1, 31, -1, -1, -1]]
    gathered = device.put(np.full(64, 99, np.int32))
    gather_block_tables(tables, device.put(np.array([7, 1])), gathered, 2)
    assert device.get(tables.layout.views(gathered)[0]).tolist() == [[0, 0], [7, 8]]


def test_writes_out_of_range_are_left_out(device):
    tables = tables_of([TableGroup(4, 2)], [[[5, 6], [7, 8]]], put=device.put)
    writes = [[1, 0, 0, 1, 0, 1], [0, 2, 0, 1, 0, 1], [0, 0, 1, 3, 0, 2], [0, 1, 0, 2, 2, 2]]
    apply_staged_writes(tables, device.put(np.array(writes)), device.put(np.array([1, 2, 3])), 3)
    assert device.get(tables.layout.views(tables.entries)[0]).tolist() == [[5, 1], [3, 8]]


def test_slots_beyond_32_bits(device):
    tables = tables_of([TableGroup(64, 2)], [[[2**31 - 1, 2**25]]], put=device.put)
    slots = device.put(np.full((1, 2), -777))
    slot_mapping(tables, device.put(np.array([0])), device.put(np.array([0, 2])), device.put(np.array([63, 64])), slots)
    assert device.get(slots).tolist() == [[(2**31 - 1) * 64 + 63, 2**31]]


def test_arrays_of_different_devices(device):
    tables = BlockTables([TableGroup(4, 2)], 2, 8, array_module=device)
    with pytest.raises(BackendMixError):
        tables.gather_block_tables(np.array([0]))
    with pytest.raises(ArgumentError, match="num_tokens_padded"):
        tables.get_dummy_slot_mappings(9)


def test_tokens_without_positions_have_no_slots(device):
    tables = BlockTables([TableGroup(4, 3)], 2, 8, array_module=device)
    tables.append_block_ids(1, [[7, 9, 8]])
    tables.apply_staged_writes()
    slots = device.put(np.full((1, 6), 99))
    arrays = (device.put(np.array(values)) for values in ([1], [0, 4], [3, 4]))
    slot_mapping(tables._arrays, *arrays, slots)
    assert device.get(slots).tolist() == [[31, 36, -1, -1, -1, -1]]
