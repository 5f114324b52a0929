"""The checkpoint rules against the recorded vectors (sets a and b) and against the oracle, beyond 32 bits too."""

import numpy as np
import pytest

from numba_ckpt._jit import host_loop
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.planning.reference import (
    reference_checkpoint,
    reference_checkpoint_position,
    reference_is_checkpoint_valid,
    reference_state_col,
)
from numba_ckpt.rules import (
    NO_ALIGNMENT,
    NO_BLOCK_COL,
    NO_OFFSET,
    NULL_BLOCK_ID,
    checkpoint_col,
    checkpoint_position,
    is_checkpoint_valid,
    prefill_checkpoint,
    running_state_col,
)
from tests.golden import position_cases, validity_cases


@host_loop
def _position_rows(num_tokens, units, drops, lookaheads, positions):
    for row in range(num_tokens.size):
        positions[row] = checkpoint_position(num_tokens[row], units[row], drops[row], lookaheads[row])


@host_loop
def _validity_rows(starts, ends, positions, hash_blocks, state_blocks, alignments, valid):
    for row in range(starts.size):
        valid[row] = is_checkpoint_valid(
            starts[row], ends[row], positions[row], hash_blocks[row], state_blocks[row], alignments[row]
        )


def or_none(alignment):
    return NO_ALIGNMENT if alignment is None else alignment


def test_names_of_nothing():
    assert (NO_OFFSET, NO_BLOCK_COL, NO_ALIGNMENT, NULL_BLOCK_ID) == (0, -1, 0, 0)


def test_recorded_positions_from_python():
    for case in position_cases():
        assert checkpoint_position(*case[:-1]) == case.position == reference_checkpoint_position(*case[:-1]), case


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_recorded_positions_from_a_compiled_loop(dtype):
    cases = [case for case in position_cases() if case.num_tokens <= np.iinfo(dtype).max]
    columns = [np.array(column) for column in zip(*cases, strict=True)]
    positions = np.empty(len(cases), np.int64)
    _position_rows(columns[0].astype(dtype), columns[1].astype(dtype), columns[2], columns[3].astype(dtype), positions)
    assert positions.tolist() == columns[4].tolist()


def test_recorded_validity_from_python():
    for case in validity_cases():
        assert is_checkpoint_valid(*case[:5], or_none(case.checkpoint_alignment)) == case.valid, case
        assert reference_is_checkpoint_valid(*case[:6]) == case.valid, case


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_recorded_validity_from_a_compiled_loop(dtype):
    rows = [(*case[:5], or_none(case.checkpoint_alignment), case.valid) for case in validity_cases()]
    info = np.iinfo(dtype)
    rows = [row for row in rows if min(row) >= info.min and max(row) <= info.max]
    assert len(rows) > 4500
    *columns, wanted = zip(*rows, strict=True)
    valid = np.empty(len(rows), np.bool_)
    _validity_rows(*(np.array(column, dtype) for column in columns), valid)
    assert valid.tolist() == list(wanted)


@pytest.mark.parametrize("alignment", [0, -1, -16])
def test_no_alignment_means_never(alignment):
    assert is_checkpoint_valid(0, 4096, 4080, 16, 512, 16)
    assert not is_checkpoint_valid(0, 4096, 4080, 16, 512, alignment)


@pytest.mark.parametrize("state_block", [1, 2, 3, 4, 7])
def test_columns_count_state_blocks(state_block):
    for num_tokens in range(40):
        assert running_state_col(num_tokens, state_block) == reference_state_col(num_tokens, state_block)
        assert checkpoint_col(num_tokens, state_block) == reference_state_col(num_tokens, state_block) - 1


def test_every_small_query_agrees_with_the_oracle():
    """All queries in twelve tokens, for sizes at which four rows cross a block edge."""
    for sizes in [(1, 2, 1, 1), (2, 2, 2, 1), (2, 4, 4, 2), (4, 2, 2, 4), (3, 4, 3, 3), (2, 3, 1, None)]:
        for drop, lookahead in [(False, 0), (False, 2), (True, 0), (True, 5)]:
            geometry = CheckpointGeometry(*sizes, drop_eagle_block=drop, num_hash_lookahead_tokens=lookahead)
            for end in range(13):
                for start in range(end + 1):
                    got = prefill_checkpoint(start, end, sizes[2], *sizes[:2], or_none(sizes[3]), drop, lookahead)
                    assert got == reference_checkpoint(end, end - start, geometry), (geometry, start, end)


@pytest.mark.parametrize("edge", [2**31, 2**32, 2**40, 2**50, 2**53, 2**62])
@pytest.mark.parametrize("drop", [False, True])
def test_long_sequences_agree_with_the_oracle(edge, drop):
    for sizes in [(1, 1, 1, 1), (16, 512, 16, 16), (1600, 1600, 1600, 64), (96, 2096, 24, 8), (2**31 - 1,) * 4]:
        geometry = CheckpointGeometry(*sizes, drop_eagle_block=drop)
        for end in range(edge - 3, edge + 4):
            grid = (end - 5000) // sizes[0] * sizes[0]
            for start in [start for start in (0, grid, grid - sizes[0], end - 1, end) if start >= 0]:
                got = prefill_checkpoint(start, end, sizes[2], *sizes[:2], sizes[3], drop, 0)
                assert got == reference_checkpoint(end, end - start, geometry), (geometry, start, end)
