"""The exporters against recorded calls (sets f1 and f2), on the host.

Upstream and this library part in two places, and the tests say so row by row. An offset shorter than the window: f1
records a skipped window and f2 a window that reaches into the row before; here it takes the missing taps from the row's
initial window, and is refused without one. The null block: f2 records it written; here it never is.
"""

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
    RecurrentCache,
    RecurrentInput,
)
from numba_ckpt.errors import ArgumentError
from numba_ckpt.planning.reference import reference_conv_window
from tests.golden import export_cases, store_cases

F1 = [pytest.param(case, id=f"f1-{index:03}") for index, case in enumerate(export_cases())]
F2 = [pytest.param(case, id=f"f2-{index:03}") for index, case in enumerate(store_cases())]


def short_rows(case, written_only=True):
    """Rows whose window begins before their first token; `written_only` leaves out those of the null block."""
    state_len = case.state_len or case.conv_len
    return [
        row
        for row, (offset, block) in enumerate(zip(case.offsets, case.state_indices, strict=True))
        if 0 < offset < state_len and (block != 0 or not written_only)
    ]


def null_rows(case):
    return [row for row, offset in enumerate(case.offsets) if offset > 0 and case.state_indices[row] == 0]


def ints(values, dtype=np.int32):
    return None if values is None else np.array(values, dtype)


def by_slot(conv, layout):
    """View a conv cache as [blocks, slots, channels]."""
    return conv if layout == "len_first" else conv.transpose(0, 2, 1)


def pages(raw, shape):
    """View raw pages [blocks, size + padding] as states [blocks, *shape]."""
    states = raw[:, : int(np.prod(shape))].reshape(raw.shape[0], *shape)
    assert np.shares_memory(states, raw)
    return states


def initial_windows(case, conv, has_initial=None):
    """Windows that hold no value of the batch, one for each row."""
    num_rows = len(case.offsets)
    states = np.arange(num_rows * conv[0].size, dtype=np.uint32).reshape(num_rows, *conv.shape[1:]) % 251 + 1
    return InitialConvState(states.astype(conv.dtype), np.arange(num_rows)[::-1].copy(), has_initial)


def window_before(initial, row, layout, state_len):
    """The row's initial window as [state_len, channels]; zeros where the sequence starts with the row."""
    window = by_slot(initial.states, layout)[initial.indices[row], :state_len]
    started = initial.has_initial_state is None or initial.has_initial_state[row]
    return window if started else np.zeros_like(window)


def check_bits(got, wanted):
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert got.tobytes() == wanted.tobytes()


def run_f1(case, initial=None):
    """Export the case into copies of its caches; return them."""
    arrays = case.arrays
    conv, targets = arrays["conv_before"].copy(), CheckpointTargets(ints(case.offsets), ints(case.state_indices))
    conv_cache = ConvCache(conv, case.layout, case.state_len)
    tokens = arrays["raw"][:, : case.width]
    source = ConvInput(tokens, ints(case.query_start_loc), ints(case.token_indices, np.int64), initial)
    if case.recurrent is None:
        return conv, None, lambda: ConvExporter(conv_cache).export(targets, source)
    recurrent = arrays["rec_before"].copy()
    exporter = ConvRecurrentExporter(conv_cache, RecurrentCache(pages(recurrent, case.recurrent["shape"])))
    states = RecurrentInput(arrays["rec_src"], ints(case.recurrent["rows"]))
    return conv, recurrent, lambda: exporter.export(targets, source, states)


def check_f1(case, conv, recurrent, wanted_conv):
    check_bits(conv, wanted_conv)
    if recurrent is not None:
        check_bits(recurrent, case.arrays["rec_after"])


def tokens_of_f1(case):
    tokens = case.arrays["raw"][:, : case.width]
    return tokens if case.token_indices is None else tokens[case.token_indices]


def with_short_windows(case, recorded, tokens, initial):
    """`recorded` with the windows of short rows as this library requires them."""
    wanted, state_len = recorded.copy(), case.state_len or case.conv_len
    for row in short_rows(case):
        before = window_before(initial, row, case.layout, state_len)
        first = case.query_start_loc[row] - case.query_start_loc[0]
        window = reference_conv_window(tokens, first, case.offsets[row], state_len, before)
        by_slot(wanted, case.layout)[case.state_indices[row], :state_len] = window
    return wanted


def test_f1_holds_94_rows_shorter_than_their_window():
    assert sum(len(short_rows(case, written_only=False)) for case in export_cases()) == 94
    assert sum(len(short_rows(case)) for case in export_cases()) == 74
    for case in export_cases():
        for row in short_rows(case):  # upstream leaves such a window as it was
            block = case.state_indices[row]
            check_bits(case.arrays["conv_after"][block], case.arrays["conv_before"][block])


@pytest.mark.parametrize("case", F1)
def test_f1_as_recorded_but_for_short_rows(case):
    initial = initial_windows(case, case.arrays["conv_before"])
    conv, recurrent, export = run_f1(case, initial)
    export()
    check_f1(case, conv, recurrent, with_short_windows(case, case.arrays["conv_after"], tokens_of_f1(case), initial))


@pytest.mark.parametrize("case", F1)
def test_f1_without_initial_windows_is_refused_where_a_row_is_short(case):
    conv, recurrent, export = run_f1(case)
    if short_rows(case):
        with pytest.raises(ArgumentError, match="offsets: expected at least"):
            export()
        check_bits(conv, case.arrays["conv_before"])
        if recurrent is not None:
            check_bits(recurrent, case.arrays["rec_before"])
    else:
        export()
        check_f1(case, conv, recurrent, case.arrays["conv_after"])


@pytest.mark.parametrize("case", [param for param in F1 if short_rows(param.values[0])])
def test_f1_rows_that_start_a_sequence_have_zeros_before_them(case):
    flags = np.arange(len(case.offsets)) % 2 == 0
    initial = initial_windows(case, case.arrays["conv_before"], flags)
    conv, recurrent, export = run_f1(case, initial)
    export()
    check_f1(case, conv, recurrent, with_short_windows(case, case.arrays["conv_after"], tokens_of_f1(case), initial))


def run_f2(case, initial=None):
    arrays = case.arrays
    conv, ssm = arrays["conv_before"].copy(), arrays["ssm_before"].copy()
    exporter = Mamba2Exporter(
        ConvCache(conv, case.layout, case.state_len), RecurrentCache(pages(ssm, case.state_shape))
    )
    targets = CheckpointTargets(ints(case.offsets), ints(case.state_indices))
    source = ConvInput(arrays["x"].T, ints(case.query_start_loc), initial=initial)
    return conv, ssm, lambda: exporter.export(targets, source, arrays["chunk_states"], ints(case.chunk_indices))


def without_null_block(recorded, before):
    """`recorded` with the null block as it was."""
    wanted = recorded.copy()
    wanted[0] = before[0]
    return wanted


def test_f2_holds_4_short_rows_and_4_written_null_blocks():
    assert sum(len(short_rows(case, written_only=False)) for case in store_cases()) == 4
    assert sum(len(short_rows(case)) for case in store_cases()) == 3
    assert sum(len(null_rows(case)) for case in store_cases()) == 4
    for case in store_cases():
        arrays = case.arrays
        for name in ("conv", "ssm"):  # upstream writes block 0 exactly where a row names it
            same = arrays[f"{name}_after"][0].tobytes() == arrays[f"{name}_before"][0].tobytes()
            assert same is (not null_rows(case))
        for row in short_rows(case):  # upstream reads on into the row before
            end = case.query_start_loc[row] + case.offsets[row]
            got = by_slot(arrays["conv_after"], case.layout)[case.state_indices[row], : case.state_len]
            check_bits(np.ascontiguousarray(got), np.ascontiguousarray(arrays["x"].T[end - case.state_len : end]))


@pytest.mark.parametrize("case", F2)
def test_f2_as_recorded_but_for_short_rows_and_the_null_block(case):
    arrays = case.arrays
    initial = initial_windows(case, arrays["conv_before"])
    conv, ssm, export = run_f2(case, initial)
    export()
    recorded = without_null_block(arrays["conv_after"], arrays["conv_before"])
    check_bits(conv, with_short_windows(case, recorded, arrays["x"].T, initial))
    check_bits(ssm, without_null_block(arrays["ssm_after"], arrays["ssm_before"]))


@pytest.mark.parametrize("case", F2)
def test_f2_without_initial_windows_is_refused_where_a_row_is_short(case):
    arrays = case.arrays
    conv, ssm, export = run_f2(case)
    if short_rows(case):
        with pytest.raises(ArgumentError, match="offsets: expected at least"):
            export()
        check_bits(conv, arrays["conv_before"])
        check_bits(ssm, arrays["ssm_before"])
    else:
        export()
        check_bits(conv, without_null_block(arrays["conv_after"], arrays["conv_before"]))
        check_bits(ssm, without_null_block(arrays["ssm_after"], arrays["ssm_before"]))
