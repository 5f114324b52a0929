"""Random packed batches through the chunk layout and through the oracle that cuts token by token."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.planning import compute_chunk_layout
from numba_ckpt.planning.reference import reference_chunk_layout


@st.composite
def batches(draw):
    """Chunk size, computed tokens, query starts and checkpoint offsets; lengths crowd the chunk grid."""
    chunk_size = draw(st.integers(1, 12) | st.sampled_from([64, 128, 256]))
    near_grid = st.builds(
        lambda chunks, step: max(chunks * chunk_size + step, 0), st.integers(0, 4), st.integers(-2, 2)
    )
    lengths = st.integers(0, 4 * chunk_size) | near_grid
    rows = draw(st.lists(st.tuples(lengths, lengths, st.integers(0, 8)), max_size=8))
    computed, lens = [row[0] for row in rows], [row[1] for row in rows]
    starts = (draw(st.integers(0, 50)) + np.concatenate([[0], np.cumsum(lens, dtype=np.int64)])).tolist()
    # Half of the rows have no checkpoint; some have one on their last token.
    offsets = [min(length, eighths * length // 4) if eighths <= 4 else 0 for _, length, eighths in rows]
    return chunk_size, computed, starts, draw(st.sampled_from([None, offsets]))


@settings(max_examples=400)
@given(batches())
def test_the_layout_equals_the_oracle(batch):
    chunk_size, computed, starts, offsets = batch
    wanted = reference_chunk_layout(computed, starts, chunk_size, offsets)
    layout = compute_chunk_layout(computed, starts, chunk_size, offsets)
    for name in wanted._fields:
        assert getattr(layout, name).tolist() == getattr(wanted, name), name


@settings(max_examples=200)
@given(batches())
def test_what_a_scan_builds_on(batch):
    chunk_size, computed, starts, offsets = batch
    layout = compute_chunk_layout(computed, starts, chunk_size, offsets)
    cu = layout.cu_chunk_seqlens
    assert (cu[0], cu[-1]) == (0, starts[-1] - starts[0])
    assert (np.diff(cu) >= 0).all()
    assert (np.diff(cu) <= chunk_size).all()
    assert (np.diff(layout.chunk_rows) >= 0).all()
    for row, first in enumerate(computed):
        begin, end = starts[row] - starts[0], starts[row + 1] - starts[0]
        ends = cu[1:][layout.chunk_rows == row] - begin
        stops = {end - begin} | ({offsets[row]} if offsets else set())
        # Every boundary is on the grid of sequence positions, but for the row's end and its checkpoint.
        assert all((first + stop) % chunk_size == 0 or stop in stops for stop in ends.tolist())
        if end > begin:
            assert cu[layout.last_chunk_indices[row] + 1] == end
        if offsets and offsets[row]:
            chunk = layout.checkpoint_chunk_indices[row]
            assert (cu[chunk + 1], layout.chunk_rows[chunk]) == (begin + offsets[row], row)
        else:
            assert layout.checkpoint_chunk_indices[row] == -1


@settings(max_examples=100)
@given(batches())
def test_a_request_resumed_at_its_checkpoint_is_cut_as_the_one_that_wrote_it(batch):
    """What makes a chunked scan resumed there bit-equal: the same boundaries from the checkpoint on."""
    chunk_size, computed, starts, offsets = batch
    whole = compute_chunk_layout(computed, starts, chunk_size, offsets)
    for row, offset in enumerate(offsets or []):
        length = starts[row + 1] - starts[row]
        if 0 < offset < length:
            resumed = compute_chunk_layout([computed[row] + offset], [0, length - offset], chunk_size)
            ends = whole.cu_chunk_seqlens[1:][whole.chunk_rows == row] - (starts[row] - starts[0]) - offset
            assert resumed.cu_chunk_seqlens[1:].tolist() == ends[ends > 0].tolist()
