"""Failures reported for other engines, in the field of gather, builder and exporters: each one, and its kind."""

import numpy as np
import pytest

from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvExporter,
    ConvInput,
    ConvRecurrentExporter,
    InitialConvState,
    Mamba2Exporter,
    PrefillCheckpointBuilder,
    RecurrentCache,
    RecurrentExporter,
    RecurrentInput,
)
from numba_ckpt.errors import ArgumentError, NumbaCkptError
from numba_ckpt.kernels.gather_state_indices import gather_state_indices
from numba_ckpt.planning import BatchLayout, CheckpointGeometry, compute_chunk_layout
from numba_ckpt.planning.reference import reference_conv_window, reference_plan
from numba_ckpt.rules import NULL_BLOCK_ID, checkpoint_col, running_state_col
from numba_ckpt.testing import poisoned


def ints(*values):
    return np.array(values, np.int32)


def flat_tokens(num_tokens, num_channels=2):
    """Token t holds t in every channel."""
    return np.repeat(np.arange(num_tokens, dtype=np.float32)[:, None], num_channels, axis=1)


def is_poison(array):
    return bool(np.isnan(array).all())


@pytest.mark.parametrize(
    ("lens", "offsets"),
    [((500, 700, 900), (384, 640, 896)), ((500, 700, 900), (500, 1, 129)), ((128, 127, 1, 300), (0, 127, 1, 299))],
)
def test_b07_the_state_is_the_one_at_the_row_s_own_offset(lens, offsets):
    starts = np.concatenate([[0], np.cumsum(lens)])
    layout = compute_chunk_layout([0] * len(lens), starts, 128, list(offsets))
    # The state at the end of a chunk says at which token of the packed batch that is.
    chunk_states = layout.cu_chunk_seqlens[1:].astype(np.float32).reshape(-1, 1, 1)
    conv, states = poisoned((len(lens) + 1, 2, 3), np.float32), poisoned((len(lens) + 1, 1, 1), np.float32)
    exporter = Mamba2Exporter(ConvCache(conv), RecurrentCache(states))
    blocks = np.arange(1, len(lens) + 1, dtype=np.int32)
    source = ConvInput(flat_tokens(sum(lens)), starts, initial=InitialConvState(np.zeros_like(conv), blocks))
    exporter.export(CheckpointTargets(ints(*offsets), blocks), source, chunk_states, layout)
    for row, offset in enumerate(offsets):
        if offset:
            assert states[blocks[row]].item() == starts[row] + offset
            assert conv[blocks[row], 0, -1] == starts[row] + offset - 1
        else:
            assert is_poison(states[blocks[row]])
    if lens == (500, 700, 900) and offsets == (384, 640, 896):
        assert states[1:].ravel().tolist() == [384, 1140, 2096]


@pytest.mark.parametrize(("block", "chunk"), [(528, 256), (2096, 256), (7, 3), (96, 64)])
def test_b06_a_state_between_chunk_boundaries_gets_a_boundary_of_its_own(block, chunk):
    """State blocks that are no multiple of the chunk: the layout cuts where the state is wanted, nowhere nearby."""
    geometry = CheckpointGeometry(block, block, block, checkpoint_alignment=1)
    ends = list(range(2 * block, 9 * block, block // 3))
    offsets, _ = reference_plan(ends, ends, geometry)
    starts = np.concatenate([[0], np.cumsum(ends)])
    layout = compute_chunk_layout([0] * len(ends), starts, chunk, offsets)
    for row, (offset, index) in enumerate(zip(offsets, layout.checkpoint_chunk_indices.tolist(), strict=True)):
        assert offset > 0
        assert layout.cu_chunk_seqlens[index + 1] == starts[row] + offset
        assert layout.chunk_rows[index] == row
    assert np.diff(layout.cu_chunk_seqlens).max() <= chunk


def mixed_batch(seed, num_rows=24):
    """Prefills and decodes in any order, a fifth of each without tokens."""
    rng = np.random.default_rng(seed)
    lens = np.where(rng.random(num_rows) < 0.4, 1, rng.integers(0, 200, num_rows))
    computed = rng.integers(0, 20, num_rows) * 8
    table = rng.integers(1, 1000, (num_rows, 32), dtype=np.int32)
    return BatchLayout(computed + lens, np.concatenate([[0], np.cumsum(lens)]), table)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("order", ["in order", "shuffled", "prefills only", "repeated"])
def test_b09_each_row_keeps_its_own_numbers_whatever_else_is_in_the_batch(seed, order):
    batch, rng = mixed_batch(seed), np.random.default_rng(seed)
    num_rows, lens = batch.seq_lens_cpu.size, np.diff(batch.query_start_loc_cpu)
    rows = {
        "in order": np.arange(num_rows),
        "shuffled": rng.permutation(num_rows)[: num_rows // 2],
        "prefills only": np.flatnonzero(lens > 1),
        "repeated": rng.integers(0, num_rows, 2 * num_rows),
    }[order]
    geometry = CheckpointGeometry(8, 16, 8, checkpoint_alignment=8)
    metadata = PrefillCheckpointBuilder(geometry).build(batch, rows)
    offsets, cols = reference_plan(batch.seq_lens_cpu[rows].tolist(), lens[rows].tolist(), geometry)
    assert any(offsets)
    assert metadata.checkpoint_offsets.tolist() == metadata.offsets_cpu.tolist() == offsets
    assert metadata.query_lens_cpu.tolist() == lens[rows].tolist()
    blocks = [int(batch.block_table[row, col]) if col >= 0 else 0 for row, col in zip(rows, cols, strict=True)]
    assert metadata.state_indices.tolist() == blocks


def test_b09_a_sub_batch_exports_from_its_own_starts():
    """Decode rows before, between and after the prefills shift nothing."""
    lens = np.array([1, 40, 1, 1, 56, 1])
    rows = np.array([4, 1])
    batch = BatchLayout(lens, np.concatenate([[0], np.cumsum(lens)]), np.arange(1, 25, dtype=np.int32).reshape(6, 4))
    metadata = PrefillCheckpointBuilder(CheckpointGeometry(8, 16, 8, checkpoint_alignment=8)).build(batch, rows)
    assert metadata.offsets_cpu.tolist() == [48, 32]
    # The prefills' tokens, packed by themselves in the order of `rows`, and the map from there into the whole batch.
    own_starts = np.concatenate([[0], np.cumsum(lens[rows])])
    whole = np.concatenate([np.arange(*batch.query_start_loc_cpu[[row, row + 1]]) for row in rows])
    conv = poisoned((25, 2, 3), np.float32)
    ConvExporter(ConvCache(conv)).export(metadata, ConvInput(flat_tokens(lens.sum()), own_starts, whole))
    for row, block, offset in zip(rows, metadata.state_indices, metadata.offsets_cpu, strict=True):
        end = batch.query_start_loc_cpu[row] + offset
        assert conv[block, 0].tolist() == [end - 3, end - 2, end - 1]


def test_b12_the_column_counts_state_blocks():
    table = np.arange(1, 47, dtype=np.int32).reshape(1, 46)
    running = running_state_col(100_096, 2176)
    assert running == 45
    assert gather_state_indices(table, np.array([0]), np.array([running])).tolist() == [46]
    with pytest.raises(ArgumentError, match=r"block_table: expected at least 782 columns"):
        gather_state_indices(table, np.array([0]), np.array([(100_096 - 1) // 128]))


@pytest.mark.parametrize("state_block", [64, 2176, 7168])
def test_b12_a_table_sized_by_the_sequence_is_wide_enough_and_one_column_less_is_refused(state_block):
    geometry = CheckpointGeometry(16, state_block, 16, checkpoint_alignment=1)
    for num_tokens in (2 * state_block, 2 * state_block + 1, 9 * state_block + 17):
        width = running_state_col(num_tokens, state_block) + 1
        table = np.arange(1, width + 1, dtype=np.int32).reshape(1, width)
        batch = BatchLayout(np.array([num_tokens]), np.array([0, num_tokens]), table)
        metadata = PrefillCheckpointBuilder(geometry).build(batch, [0])
        assert metadata.block_cols.tolist() == [width - 2] == [checkpoint_col(num_tokens, state_block)]
        assert metadata.state_indices.tolist() == [width - 1]
        narrow = BatchLayout(batch.seq_lens_cpu, batch.query_start_loc_cpu, table[:, : width - 2])
        with pytest.raises(ArgumentError, match="block_table: expected at least"):
            PrefillCheckpointBuilder(geometry).build(narrow, [0])


@pytest.mark.parametrize("num_blocks", [3, 8, 9, 20])
def test_b14_a_column_of_another_group_is_refused_not_read(num_blocks):
    """A drafter's 64-token blocks give columns that may lie in a row of 7,168-token blocks, or not: always check."""
    num_tokens = num_blocks * 7168
    table = np.full((2, 8), 5, np.int32)
    wrong, right = (num_tokens - 1) // 64, running_state_col(num_tokens, 7168)
    for col in (wrong, right):
        if col < 8:
            assert gather_state_indices(table, np.array([0]), np.array([col])).tolist() == [5]
        else:
            with pytest.raises(ArgumentError, match="columns of state blocks"):
                gather_state_indices(table, np.array([0]), np.array([col]))
    assert right == num_blocks - 1
    assert wrong >= 8


@pytest.mark.parametrize("padding", [-1, NULL_BLOCK_ID])
def test_b15_padded_rows_write_nothing(padding):
    conv, states = poisoned((4, 2, 3), np.float32), poisoned((4, 1, 2), np.float32)
    targets = CheckpointTargets(ints(16, 16, 16), ints(padding, 2, padding))
    source = ConvInput(flat_tokens(48), np.arange(4) * 16)
    exporter = ConvRecurrentExporter(ConvCache(conv), RecurrentCache(states))
    exporter.export(targets, source, RecurrentInput(np.ones((3, 1, 2), np.float32)))
    assert is_poison(conv[[0, 1, 3]])
    assert is_poison(states[[0, 1, 3]])
    assert conv[2, 0].tolist() == [29, 30, 31]
    assert states[2].tolist() == [[1, 1]]


def test_b15_a_masked_column_is_not_read_and_padding_in_the_table_is_kept():
    table = np.array([[-1, 7], [3, -1]], np.int32)
    assert gather_state_indices(table, np.array([0, 0, 1]), np.array([-1, 0, 1])).tolist() == [NULL_BLOCK_ID, -1, -1]


@pytest.mark.parametrize("num_live", [1, 3, 8])
def test_b28_a_view_of_a_larger_buffer_and_the_whole_buffer_write_alike(num_live):
    """Graphs replay on the buffers that are refreshed: the live rows are the first ones, the rest has no offset."""
    offsets, blocks = np.zeros(8, np.int32), np.full(8, 3, np.int32)
    offsets[:num_live], blocks[:num_live] = 8, np.arange(4, 4 + num_live)
    starts = np.minimum(np.arange(9), num_live) * 10
    tokens = flat_tokens(10 * num_live)
    written = []
    for rows in (num_live, 8):
        conv = poisoned((13, 2, 3), np.float32)
        targets = CheckpointTargets(offsets[:rows], blocks[:rows])
        ConvExporter(ConvCache(conv)).export(targets, ConvInput(tokens, starts[: rows + 1]))
        for row in range(num_live):
            assert conv[4 + row, 0].tolist() == [10 * row + 5, 10 * row + 6, 10 * row + 7]
        written.append(conv.tobytes())
    assert written[0] == written[1]


def test_b29_a_stale_tail_of_block_ids_is_not_scattered():
    """Parked requests still own blocks 5 and 6, which old entries behind the live rows name."""
    states = poisoned((8, 1, 2), np.float32)
    states[5:7] = 42
    targets = CheckpointTargets(ints(16, 0, 0, 0), ints(3, 5, 6, 3))
    RecurrentExporter(RecurrentCache(states)).export(targets, RecurrentInput(np.ones((4, 1, 2), np.float32)))
    assert states[3].tolist() == [[1, 1]]
    assert (states[5:7] == 42).all()
    assert is_poison(states[[0, 1, 2, 4, 7]])


def test_b29_states_go_where_the_caller_s_indices_say_not_by_position():
    states, blocks = poisoned((8, 1, 1), np.float32), ints(6, 1, 4)
    source = RecurrentInput(np.arange(10, 14, dtype=np.float32).reshape(4, 1, 1), ints(3, 0, 2))
    RecurrentExporter(RecurrentCache(states)).export(CheckpointTargets(ints(8, 8, 8), blocks), source)
    assert states[blocks].ravel().tolist() == [13, 10, 12]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("extra_slots", [0, 1, 4])
@pytest.mark.parametrize("layout", ["dim_first", "len_first"])
def test_b30_checkpoints_are_written_with_speculative_decoding_too(drop, extra_slots, layout):
    geometry = CheckpointGeometry(8, 16, 8, checkpoint_alignment=8, drop_eagle_block=drop)
    batch = BatchLayout(np.array([45]), np.array([0, 45]), ints(1, 2, 3).reshape(1, 3))
    metadata = PrefillCheckpointBuilder(geometry).build(batch, [0])
    assert metadata.offsets_cpu.tolist() == [32 if drop else 40]
    slots = 3 + extra_slots
    conv = poisoned((4, 2, slots) if layout == "dim_first" else (4, slots, 2), np.float32)
    ConvExporter(ConvCache(conv, layout, state_len=3)).export(metadata, ConvInput(flat_tokens(45), np.array([0, 45])))
    window = conv[2] if layout == "dim_first" else conv[2].T
    end = int(metadata.offsets_cpu[0])
    assert window[:, :3].tolist() == [[end - 3, end - 2, end - 1]] * 2
    assert is_poison(window[:, 3:])
    assert is_poison(conv[[0, 1, 3]])


def test_b32_a_short_chunk_continues_the_initial_window_in_its_own_block():
    conv = poisoned((10, 1, 3), np.float32)
    conv[7] = [[-3, -2, -1]]
    source = ConvInput(flat_tokens(2, 1), np.array([0, 2]), initial=InitialConvState(conv, ints(7)))
    ConvExporter(ConvCache(conv)).export(CheckpointTargets(ints(2), ints(9)), source)
    assert conv[9].tolist() == [[-1, 0, 1]]
    assert conv[7].tolist() == [[-3, -2, -1]]
    assert is_poison(conv[[0, 1, 2, 3, 4, 5, 6, 8]])


@pytest.mark.parametrize("state_len", [1, 2, 3, 4])
@pytest.mark.parametrize("offset", [1, 2, 3, 5])
@pytest.mark.parametrize("started", [True, False])
def test_b33_slot_w_holds_token_offset_minus_length_plus_w(state_len, offset, started):
    tokens, before = flat_tokens(12, 3), -np.arange(1, 3 * state_len + 1, dtype=np.float32).reshape(1, 3, state_len)
    conv = poisoned((3, 3, state_len), np.float32)
    initial = InitialConvState(before, ints(0, 0), np.array([started, started]))
    targets = CheckpointTargets(ints(0, offset), ints(1, 2))
    ConvExporter(ConvCache(conv)).export(targets, ConvInput(tokens, np.array([0, 7, 12]), initial=initial))
    window = reference_conv_window(tokens, 7, offset, state_len, (before[0] * started).T)
    assert conv[2].tolist() == np.stack(window, axis=1).tolist()
    assert is_poison(conv[:2])


def test_b34_a_token_beyond_2_31_elements():
    pitch, token = 36_864, 58_300
    tokens = np.empty((token + 8, pitch), np.uint8)
    assert token * pitch > 2**31
    tokens[token - 3 : token, :4] = np.arange(12).reshape(3, 4)
    conv = poisoned((2, 3, 4), np.uint8)
    source = ConvInput(tokens[:, :4], np.array([0, token + 8]))
    ConvExporter(ConvCache(conv, "len_first")).export(CheckpointTargets(ints(token), ints(1)), source)
    assert conv[1].tolist() == np.arange(12).reshape(3, 4).tolist()


def test_b35_a_block_beyond_2_31_elements():
    pitch, block = 36_864, 60_000
    pool = np.empty((block + 1, pitch), np.uint8)
    states = pool[:, :8]
    state = np.arange(8, dtype=np.uint8).reshape(1, 8)
    targets = CheckpointTargets(ints(16), ints(block))
    RecurrentExporter(RecurrentCache(states)).export(targets, RecurrentInput(state))
    assert states[block].tolist() == list(range(8))
    conv = pool[:, 8:20].reshape(block + 1, 3, 4)
    ConvExporter(ConvCache(conv, "len_first")).export(
        targets, ConvInput(np.arange(64, dtype=np.uint8).reshape(16, 4), np.array([0, 16]))
    )
    assert conv[block].ravel().tolist() == list(range(52, 64))


def test_b38_square_heads_of_the_other_orientation_are_refused():
    pool = poisoned((3, 2, 4, 4), np.float32)
    targets = CheckpointTargets(ints(16), ints(1))
    states = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    exporter = RecurrentExporter(RecurrentCache(pool, orientation="HKV"))
    with pytest.raises(ArgumentError, match=r"recurrent\.orientation: expected the cache's orientation 'HKV'"):
        exporter.export(targets, RecurrentInput(states, orientation="HVK"))
    assert is_poison(pool)
    exporter.export(targets, RecurrentInput(states, orientation="HKV"))
    assert pool[1].tolist() == states[0].tolist()


def test_b38_heads_that_are_not_square_are_refused_by_shape_and_strides():
    pool = poisoned((3, 2, 4, 8), np.float32)
    exporter, targets = RecurrentExporter(RecurrentCache(pool)), CheckpointTargets(ints(16), ints(1))
    states = np.ones((1, 2, 8, 4), np.float32)
    for wrong in (states, states.transpose(0, 1, 3, 2)):
        with pytest.raises(ArgumentError, match=r"recurrent\.states: expected"):
            exporter.export(targets, RecurrentInput(wrong))
    assert is_poison(pool)


@pytest.mark.parametrize(
    "states",
    [
        None,
        np.zeros((1, 1, 1), np.float32),
        np.zeros((1, 1, 2), np.float32),
        np.zeros((0, 1, 2), np.float32),
        np.zeros(1),
    ],
    ids=["none", "one element", "one state", "no state", "flat"],
)
def test_b39_a_missing_or_dummy_state_buffer_is_refused_before_anything_is_written(states):
    conv, pool = poisoned((4, 2, 3), np.float32), poisoned((4, 1, 2), np.float32)
    exporter = ConvRecurrentExporter(ConvCache(conv), RecurrentCache(pool))
    targets = CheckpointTargets(ints(16, 16), ints(1, 2))
    with pytest.raises(NumbaCkptError):
        exporter.export(
            targets,
            ConvInput(flat_tokens(32), np.array([0, 16, 32])),
            None if states is None else RecurrentInput(states),
        )
    assert is_poison(conv)
    assert is_poison(pool)


@pytest.mark.parametrize("missing", ["conv", "recurrent", "chunk_states", "checkpoint", "offsets"])
def test_b39_a_source_left_out_is_refused(missing):
    """A window without its state, or the other way round, is a checkpoint that was reserved and half written."""
    conv, pool = poisoned((4, 2, 3), np.float32), poisoned((4, 1, 2), np.float32)
    caches, targets = (ConvCache(conv), RecurrentCache(pool)), CheckpointTargets(ints(16), ints(1))
    tokens, states = ConvInput(flat_tokens(16), np.array([0, 16])), np.ones((1, 1, 2), np.float32)
    calls = {
        "conv": lambda: ConvRecurrentExporter(*caches).export(targets, None, RecurrentInput(states)),
        "recurrent": lambda: ConvRecurrentExporter(*caches).export(targets, tokens, None),
        "chunk_states": lambda: Mamba2Exporter(*caches).export(targets, tokens, None, ints(0)),
        "checkpoint": lambda: ConvRecurrentExporter(*caches).export(None, tokens, RecurrentInput(states)),
        "offsets": lambda: CheckpointTargets(None, ints(1)),
    }
    with pytest.raises(NumbaCkptError, match="expected"):
        calls[missing]()
    assert is_poison(conv)
    assert is_poison(pool)
