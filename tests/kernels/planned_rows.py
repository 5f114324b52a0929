"""Batches whose lengths are planned where they lie, for the host's tests and the simulator's."""

import numpy as np
from hypothesis import strategies as st

from numba_ckpt.kernels.plan_rows import PlannedRows
from numba_ckpt.planning import CheckpointGeometry, DeviceBatchLayout


def buffers(num_rows):
    """Poisoned: every entry has to be written."""
    return PlannedRows(np.full(num_rows, -9, np.int32), np.full(num_rows, -9), np.full(num_rows, -9, np.int32))


def batch_of(seq_lens, query_lens, num_cols):
    """A batch whose row r has block r + 1 in every column."""
    table = np.repeat(np.arange(1, len(seq_lens) + 1, dtype=np.int32)[:, None], 1, axis=1)
    table = np.lib.stride_tricks.as_strided(table, (len(seq_lens), num_cols), (table.strides[0], 0))
    starts = np.concatenate(([0], np.cumsum(query_lens, dtype=np.int64)))
    return DeviceBatchLayout(np.array(seq_lens, np.int64), starts, table)


@st.composite
def random_batches(draw):
    """(geometry, batch, rows, query lengths); some queries are empty, some rows padding."""
    unit = draw(st.sampled_from([1, 4, 8]))
    block = unit * draw(st.integers(1, 4))
    geometry = CheckpointGeometry(
        unit,
        block,
        draw(st.sampled_from([unit, block])),
        draw(st.sampled_from([None, unit, 2 * unit])),
        draw(st.booleans()),
        draw(st.integers(0, 5)),
    )
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    lengths = draw(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=6))
    seq_lens = np.array([computed // unit * unit + query for computed, query in lengths], dtype)
    query_lens = np.array([query for _, query in lengths], dtype)
    starts = np.concatenate(([0], np.cumsum(query_lens))).astype(dtype)
    num_cols = -(-int(seq_lens.max()) // block)
    table = np.arange(len(lengths) * num_cols, dtype=dtype).reshape(len(lengths), num_cols) + 1
    rows = np.array(draw(st.lists(st.integers(-1, len(lengths) - 1), max_size=8)), dtype)
    return geometry, DeviceBatchLayout(seq_lens, starts, table), rows, query_lens
