"""The CUDA kernels in the simulator: the recordings, and random problems against the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from numba_ckpt.errors import ArgumentError, BackendMixError
from numba_ckpt.kernels.gather_state_indices import gather_state_indices
from numba_ckpt.planning import BatchLayout, compute_chunk_layout
from numba_ckpt.testing import SimulatedDevice, poisoned
from tests.checkpoint.problems import DTYPES, ExportProblem, same_bytes
from tests.golden import builder_cases, export_cases, store_cases

pytestmark = pytest.mark.usefixtures("tiny_grids")


def check(problem):
    with SimulatedDevice.attached() as device:
        export, *pages = problem.build(device.put)
        export()
        assert device.num_launches == 1
        assert device.num_waits == 0
        for page, answer in zip(pages, problem.expected(), strict=True):
            assert same_bytes(device.get(page), answer)


@settings(max_examples=30)
@given(
    st.builds(
        ExportProblem,
        seed=st.integers(0, 2**32 - 1),
        dtypes=st.sampled_from(DTYPES),
        layout=st.sampled_from(["dim_first", "len_first"]),
        state_len=st.integers(1, 4),
        num_extra_slots=st.integers(0, 2),
        num_rows=st.integers(1, 4),
        with_token_indices=st.booleans(),
        with_initial=st.booleans(),
        several_per_row=st.booleans(),
    )
)
def test_export_agrees_with_the_reference(problem):
    check(problem)


@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: "-".join(str(np.dtype(x)) if x else "" for x in d))
def test_every_dtype(dtypes):
    check(ExportProblem(1, dtypes, "len_first", num_extra_slots=1, several_per_row=True, with_token_indices=True))


def test_recorded_steps_and_their_second_group(device):
    built = 0
    for case in builder_cases():
        table = device.put(np.array(case.block_table, np.int32))
        batch = BatchLayout(np.array(case.seq_lens), np.array(case.query_start_loc), table)
        builder = PrefillCheckpointBuilder(case.geometry, case.cache_mode, case.num_checkpoint_blocks)
        metadata = builder.build(batch, case.request_rows)
        assert (metadata is None) is (case.result is None)
        if metadata is None:
            continue
        built += 1
        other = metadata.regather_state_indices(device.put(np.array(case.other_block_table, np.int32)))
        assert device.get(metadata.checkpoint_offsets).tolist() == case.result["checkpoint_offsets"]
        assert device.get(metadata.state_indices).tolist() == case.result["state_indices"]
        assert device.get(metadata.request_rows).tolist() == case.result["request_rows"]
        assert device.get(metadata.block_cols).tolist() == case.result["block_cols"]
        assert device.get(other.state_indices).tolist() == case.result["regathered_state_indices"]
    assert built == 68
    assert device.num_copies == built  # one copy a step
    assert device.num_launches == 2 * built  # one gather each, and one for the other group


def small_export_cases():
    return [case for case in export_cases() if case.width * len(case.offsets) <= 40]


@pytest.mark.parametrize("case", small_export_cases(), ids=lambda case: f"{case.dtype}-{case.layout}-{case.width}")
def test_recorded_exports(device, case):
    conv = device.put(case.arrays["conv_before"])
    cache = ConvCache(conv, case.layout, case.state_len)
    recorded = np.array(case.offsets, np.int32)
    # Upstream skips the window of a row that is shorter than it; here such a row is refused (see the host's tests).
    short = (recorded > 0) & (recorded < cache.state_len)
    offsets = np.where(short, 0, recorded).astype(np.int32)
    targets = CheckpointTargets(
        device.put(offsets), device.put(np.array(case.state_indices, np.int32)), offsets_cpu=offsets
    )
    mapped = None if case.token_indices is None else device.put(np.array(case.token_indices))
    starts = np.array(case.query_start_loc)
    tokens = device.put(case.arrays["raw"])[:, : case.width]
    ConvExporter(cache).export(targets, ConvInput(tokens, device.put(starts), mapped, query_start_loc_cpu=starts))
    assert same_bytes(device.get(conv), case.arrays["conv_after"])
    if case.recurrent is not None:
        pages = device.put(case.arrays["rec_before"])
        source = case.arrays["rec_src"]
        rows = None if case.recurrent["rows"] is None else device.put(np.array(case.recurrent["rows"]))
        states = device.put(source.reshape(len(source), -1))
        cache = RecurrentCache(pages[:, : case.recurrent["row_size"]])
        RecurrentExporter(cache).export(targets, RecurrentInput(states, rows))
        answer = case.arrays["rec_after"].copy()
        unwritten = [block for block, is_short in zip(case.state_indices, short, strict=True) if is_short and block > 0]
        answer[unwritten] = case.arrays["rec_before"][unwritten]
        assert same_bytes(device.get(pages), answer)


def test_gather_reads_no_masked_or_outside_entry(device):
    table = device.put(np.array([[4, 5], [6, 7]], np.int32))
    rows, cols = device.put(np.array([0, 1, 7, 0, -1])), device.put(np.array([-1, 1, 0, 2, 0]))
    # The extent is what the caller claims; the kernel does not rely on it.
    assert device.get(gather_state_indices(table, rows, cols, extent=(2, 2))).tolist() == [0, 7, 0, 0, 0]
    with pytest.raises(ArgumentError, match="extent: expected the rows and columns needed"):
        gather_state_indices(table, rows, cols)
    with pytest.raises(ArgumentError, match="at least 8 rows"):
        gather_state_indices(table, rows, cols, extent=(8, 2))


def test_a_short_offset_is_refused_when_it_is_known_or_may_be_there(device):
    cache = ConvCache(device.put(np.zeros((3, 2, 3), np.float32)))
    source = ConvInput(device.put(np.zeros((8, 2), np.float32)), device.put(np.array([0, 8])))
    offsets, blocks = np.array([2], np.int32), device.put(np.array([1], np.int32))
    for mirror in (offsets, None):
        targets = CheckpointTargets(device.put(offsets), blocks, offsets_cpu=mirror)
        with pytest.raises(ArgumentError, match="initial"):
            ConvExporter(cache).export(targets, source)
    assert device.num_launches == 0


def test_a_mixture_of_devices_is_refused(device):
    cache = ConvCache(device.put(np.zeros((3, 2, 3), np.float32)))
    targets = CheckpointTargets(device.put(np.array([4], np.int32)), device.put(np.array([1], np.int32)))
    with pytest.raises(BackendMixError, match="move them to one device"):
        ConvExporter(cache).export(targets, ConvInput(np.zeros((8, 2), np.float32), np.array([0, 8])))


def one(device, offset, block):
    offsets = np.array([offset], np.int32)
    return CheckpointTargets(device.put(offsets), device.put(np.array([block], np.int32)), offsets_cpu=offsets)


def layer(device):
    conv, states = device.put(poisoned((4, 2, 3), np.float32)), device.put(poisoned((4, 6), np.float32))
    return conv, states, ConvRecurrentExporter(ConvCache(conv), RecurrentCache(states))


def conv_input(device, num_rows=1, **more):
    starts = np.arange(0, 8 * num_rows + 1, 8)
    return ConvInput(device.put(np.ones((8 * num_rows, 2), np.float32)), device.put(starts), **more)


@pytest.mark.parametrize("block", [4, 99, -1, 0])
def test_a_block_outside_the_pool_is_left_out_whole(device, block):
    conv, states, exporter = layer(device)
    exporter.export(one(device, 5, block), conv_input(device), RecurrentInput(device.put(np.ones((1, 6), np.float32))))
    assert np.isnan(device.get(conv)).all()
    assert np.isnan(device.get(states)).all()


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_outside_the_batch_is_left_out_whole(device, row):
    conv, states, exporter = layer(device)
    offsets = device.put(np.array([5], np.int32))
    targets = CheckpointTargets(offsets, device.put(np.array([1])), device.put(np.array([row])), np.array([5]))
    source = conv_input(
        device, 2, initial=InitialConvState(device.put(np.zeros((1, 2, 3), "f4")), device.put(np.zeros(2, int)))
    )
    exporter.export(targets, source, RecurrentInput(device.put(np.ones((1, 6), np.float32))))
    assert np.isnan(device.get(conv)).all()
    assert np.isnan(device.get(states)).all()


def test_too_few_states_are_refused_before_the_launch(device):
    conv, _, exporter = layer(device)
    offsets = np.array([5, 6], np.int32)
    targets = CheckpointTargets(device.put(offsets), device.put(np.array([1, 2])), offsets_cpu=offsets)
    with pytest.raises(ArgumentError, match=r"recurrent.rows: expected entries in \[0, 1\)"):
        exporter.export(targets, conv_input(device, 2), RecurrentInput(device.put(np.ones((1, 6), np.float32))))
    assert np.isnan(device.get(conv)).all()


def test_mirrors_are_checked(device):
    starts = device.put(np.array([0, 8]))
    tokens = device.put(np.ones((8, 2), np.float32))
    for mirror in (np.array([0.5, 8.0]), [0, 8], np.array([0, 8, 16])):
        with pytest.raises(ArgumentError, match="query_start_loc_cpu"):
            ConvInput(tokens, starts, query_start_loc_cpu=mirror)
    with pytest.raises(ArgumentError, match="offsets_cpu"):
        CheckpointTargets(device.put(np.array([5])), device.put(np.array([1])), offsets_cpu=device.put(np.array([5.0])))


def test_another_view_of_the_cache_is_refused(device):
    pages = device.put(np.zeros((5, 2, 3), np.float32))
    initial = InitialConvState(pages, device.put(np.array([1])))
    with pytest.raises(ArgumentError, match=r"^initial\.states: expected the conv cache or memory apart"):
        ConvExporter(ConvCache(pages[1:])).export(one(device, 2, 1), conv_input(device, initial=initial))
    assert device.num_launches == 0


def test_mamba2_takes_the_chunk_that_ends_on_the_checkpoint(device):
    starts = np.array([0, 100, 400])
    layout = compute_chunk_layout([0, 1000], starts, 128, [64, 100])
    chunk_states = device.put(np.arange(layout.chunk_rows.size, dtype=np.float32)[:, None])
    conv, states = device.put(poisoned((4, 1, 3), np.float32)), device.put(poisoned((4, 1), np.float32))
    offsets = np.array([64, 100], np.int32)
    targets = CheckpointTargets(device.put(offsets), device.put(np.array([1, 2])), offsets_cpu=offsets)
    tokens = device.put(np.arange(400, dtype=np.float32)[:, None])
    source = ConvInput(tokens, device.put(starts), query_start_loc_cpu=starts)
    Mamba2Exporter(ConvCache(conv), RecurrentCache(states)).export(targets, source, chunk_states, layout)
    ends = layout.cu_chunk_seqlens[1:]
    assert [ends[int(device.get(states)[block, 0])] for block in (1, 2)] == [64, 200]
    assert device.get(conv)[2].tolist() == [[197, 198, 199]]
    assert device.num_copies == 1


def small_store_cases():
    return [case for case in store_cases() if case.dim * case.state_size <= 400]


@pytest.mark.parametrize("case", small_store_cases(), ids=lambda case: f"{case.dtype}-{case.layout}-{case.state_size}")
def test_recorded_stores(device, case):
    conv, pages = device.put(case.arrays["conv_before"]), device.put(case.arrays["ssm_before"])
    recorded = np.array(case.offsets, np.int32)
    blocks = np.array(case.state_indices, np.int32)
    # Upstream reads the previous row's tokens where a row is short, and writes the null block; neither happens here.
    short = (recorded > 0) & (recorded < case.state_len)
    offsets = np.where(short, 0, recorded).astype(np.int32)
    targets = CheckpointTargets(device.put(offsets), device.put(blocks), offsets_cpu=offsets)
    chunk_states = case.arrays["chunk_states"]
    chunk_states = device.put(chunk_states.reshape(len(chunk_states), -1))
    tokens = device.put(case.arrays["x"]).T
    exporter = Mamba2Exporter(ConvCache(conv, case.layout, case.state_len), RecurrentCache(pages[:, : case.state_size]))
    source = ConvInput(tokens, device.put(np.array(case.query_start_loc)))
    exporter.export(targets, source, chunk_states, device.put(np.array(case.chunk_indices)))
    untouched = blocks[short | ((recorded > 0) & (blocks == 0))]
    for array, name in ((conv, "conv"), (pages, "ssm")):
        answer = case.arrays[f"{name}_after"].copy()
        answer[untouched] = case.arrays[f"{name}_before"][untouched]
        assert same_bytes(device.get(array), answer)


def test_a_mirror_that_lies_makes_the_kernel_read_nothing_outside(device):
    conv, states, exporter = layer(device)
    short = CheckpointTargets(device.put(np.array([1])), device.put(np.array([2])), offsets_cpu=np.array([4]))
    exporter.export(short, conv_input(device), RecurrentInput(device.put(np.ones((1, 6), np.float32))))
    assert device.get(conv)[2].tolist() == [[0, 0, 1]] * 2
    assert np.isnan(device.get(conv)[[0, 1, 3]]).all()
    assert np.isnan(device.get(states)[[0, 1, 3]]).all()
