"""Slot mapping on the host: the recordings, the known failures, and mistakes."""

import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError, ArgumentTypeError, BackendMixError
from numba_ckpt.kernels.slot_mapping import slot_mapping
from numba_ckpt.planning import TableGroup
from numba_ckpt.testing import SimulatedDevice
from tests.kernels.tables import check_recorded_slots, recorded_slots, tables_of


@pytest.mark.parametrize("case", recorded_slots(), ids=lambda case: f"{len(case['block_sizes'])}-{case['cp_size']}")
def test_recorded_slots(case):
    check_recorded_slots(case)


def slots_of(tables, request_rows, query_start_loc, positions, num_tokens=None):
    slots = np.full((len(tables.layout.groups), num_tokens or len(positions)), -777)
    arrays = (np.array(values, np.int64) for values in (request_rows, query_start_loc, positions))
    slot_mapping(tables, *arrays, slots)
    return slots.tolist()


def test_slots_beyond_32_bits():
    last = 2**31 - 1
    tables = tables_of([TableGroup(64, 2)], [[[last, 2**25]]])
    assert slots_of(tables, [0], [0, 3], [1, 63, 64]) == [[last * 64 + 1, last * 64 + 63, 2**31]]
    sharded = tables_of([TableGroup(64, 1, cp_size=2, cp_rank=1)], [[[last]]])
    assert slots_of(sharded, [0], [0, 2], [0, 127]) == [[-1, last * 64 + 63]]


def test_b17_a_column_outside_the_row_is_no_slot_and_no_read():
    tables = tables_of([TableGroup(4, 32)], [[[*range(1, 33)], [1000] * 32]])
    assert slots_of(tables, [0], [0, 5], [0, 3, 130, 8192, 1048575]) == [[4, 7, -1, -1, -1]]
    run = slots_of(tables, [0], [0, 6], range(125, 131))
    assert run == [[32 * 4 + 1, 32 * 4 + 2, 32 * 4 + 3, -1, -1, -1]]
    far = slots_of(tables, [0, 1], [0, 2, 4], [2**31, 2**62, -1, -(2**40)])
    assert far == [[-1] * 4]


def test_b19_replicated_groups_keep_global_positions():
    groups = [TableGroup(4, 2), TableGroup(4, 2, cp_size=2), TableGroup(4, 2, cp_size=2, cp_rank=1)]
    tables = tables_of(groups, [[[5, 6]], [[5, 6]], [[5, 6]]])
    assert slots_of(tables, [0], [0, 8], range(8)) == [
        [20, 21, 22, 23, 24, 25, 26, 27],
        [20, -1, 21, -1, 22, -1, 23, -1],
        [-1, 20, -1, 21, -1, 22, -1, 23],
    ]


def test_b20_padding_is_negative_to_the_end():
    tables = tables_of([TableGroup(16, 5)], [[[1, 2, 3, 4, 0]]])
    mapped = slots_of(tables, [0], [0, 64], range(64), 128)[0]
    assert mapped[:64] == list(range(16, 80))
    assert mapped[64:] == [-1] * 64


def test_b21_a_batch_without_requests():
    tables = tables_of([TableGroup(16, 1)], [[[0]]])
    assert slots_of(tables, [], [0], [], 8) == [[-1] * 8]


def test_drafts_at_any_positions_and_negative_entries():
    tables = tables_of([TableGroup(4, 3)], [[[5, -1, 7], [8, 9, 6]]])
    assert slots_of(tables, [0, 1], [0, 4, 8], [3, 4, 4, 8, 1, 1, 11, 0]) == [[23, -1, -1, 28, 33, 33, 27, 32]]
    assert slots_of(tables, [0], [0, 7], range(3, 10)) == [[23, -1, -1, -1, -1, 28, 29]]


def test_padding_changes_no_real_token():
    tables = tables_of([TableGroup(4, 4), TableGroup(8, 2)], [[[1, 2, 3, 4]], [[5, 6]]])
    exact = slots_of(tables, [0], [0, 9], range(9))
    for size in (10, 16, 100):
        padded = np.array(slots_of(tables, [0], [0, 9], range(9), size))
        assert padded[:, :9].tolist() == exact
        assert (padded[:, 9:] == -1).all()


def batch(**changes):
    arrays = {
        "tables": tables_of([TableGroup(4, 2), TableGroup(4, 2)], [[[1, 2], [3, 4]]] * 2),
        "request_rows": np.array([1, 0]),
        "query_start_loc": np.array([0, 2, 4]),
        "positions": np.array([0, 1, 0, 1]),
        "slots": np.full((2, 6), -777),
    }
    return arrays | {name: change(arrays[name]) if callable(change) else change for name, change in changes.items()}


MISTAKES = [
    ("no tables", {"tables": None}, "tables: expected TableArrays"),
    ("a list of rows", {"request_rows": [1, 0]}, "request_rows"),
    ("rows of floats", {"request_rows": lambda a: a * 1.0}, "request_rows: expected a signed integer"),
    ("two-dimensional rows", {"request_rows": lambda a: a[None]}, "request_rows: expected 1 dim"),
    ("a row beyond the tables", {"request_rows": np.array([1, 2])}, r"table rows in \[0, 2\).*got 2 at entry 1"),
    ("a row below -1", {"request_rows": np.array([-2, 0])}, "got -2 at entry 0"),
    ("starts of another batch", {"query_start_loc": np.array([0, 4])}, r"query_start_loc: expected shape \(3,\)"),
    ("starts that descend", {"query_start_loc": np.array([0, 3, 2])}, r"ascending starts.*got \[3, 2\] at entry 1"),
    ("a negative start", {"query_start_loc": np.array([-1, 2, 4])}, "ascending starts"),
    ("more tokens than positions", {"query_start_loc": np.array([0, 2, 5])}, r"ascending starts in \[0, 4\]"),
    ("more tokens than slots", {"slots": np.full((2, 3), -777)}, r"ascending starts in \[0, 3\]"),
    ("a bad start alone", {"request_rows": np.zeros(0, int), "query_start_loc": np.array([9])}, r"got \[9\]"),
    ("positions of floats", {"positions": lambda a: a * 1.0}, "positions: expected a signed integer"),
    ("unsigned positions", {"positions": lambda a: a.astype(np.uint64)}, "positions: expected a signed integer"),
    ("32-bit slots", {"slots": lambda a: a.astype(np.int32)}, "slots: expected int64, got int32"),
    ("slots of one group", {"slots": lambda a: a[:1]}, "slots: expected 2 rows"),
    ("flat slots", {"slots": lambda a: a[0]}, "slots: expected 2 dim"),
    ("read-only slots", {"slots": lambda a: np.broadcast_to(np.int64(-777), a.shape)}, "slots: expected a writable"),
    ("too many columns", {"num_tokens": 7}, r"num_tokens: expected an integer in \[0, 6\], got 7"),
    ("columns by a float", {"num_tokens": 4.0}, "num_tokens: expected an integer"),
]


@pytest.mark.parametrize(("changes", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistakes_write_nothing(changes, message):
    arguments = batch(**changes)
    with pytest.raises(ArgumentError, match=message):
        slot_mapping(**arguments)
    assert (arguments["slots"] == -777).all()


def test_arrays_of_different_devices():
    with SimulatedDevice.attached() as device, pytest.raises(BackendMixError, match="positions on simulated"):
        slot_mapping(**batch(positions=device.put(np.arange(4))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "block_size"),
        ((16, -1), "width"),
        ((16, 4, 3), "kernel_block_size: expected a divisor of block_size"),
        ((16, 4, 0), "kernel_block_size"),
        ((16, 4, 16, 0), "sliding_window"),
        ((16, 4, 16, None, 0), "cp_size"),
        ((16, 4, 16, None, 2, 2), "cp_rank"),
        ((16, 4, 16, None, 2, 0, 3), "cp_interleave: expected a divisor"),
        ((16, 4, 16, None, 2, 0, 1, 1), "has_slots"),
        ((2**20, 2**11), "at most 2147483647 tokens"),
        ((16.0, 4), "block_size: expected an integer"),
    ],
)
def test_impossible_groups(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        TableGroup(*arguments)


def test_a_layout_of_something_else():
    with pytest.raises(ArgumentTypeError, match="groups: expected a sequence of TableGroup, got dict"):
        tables_of([{}], [])
