"""Chunks of a packed batch, for scans that expose a state only at chunk ends (Mamba2's SSD).

A checkpoint forces one more boundary; afterwards chunks return to the grid of sequence positions, so that a request
resumed from the checkpoint is cut exactly as the one that wrote it::

    position     1000        1024       1100 (checkpoint)   1152          1280
    chunks         |--- 24 ---|--- 76 -----|------ 52 -------|---- 128 ----|      chunk_size 128
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_ckpt._check import INT32_MAX, check_int, check_int64_range, check_integers, check_shape, refuse
from numba_ckpt._jit import host_loop, inlined_loop
from numba_ckpt.rules import is_multiple, next_chunk_boundary

__all__ = ["ChunkLayout", "compute_chunk_layout"]

NO_CHUNK = -1
"""Chunk index of a row that has none."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkLayout:
    """How a packed batch is cut into chunks.

    Attributes
    ----------
    cu_chunk_seqlens : ndarray
        int32 [chunks+1], first token of each chunk in the packed batch, counted from the first row's first token; the
        last entry is the number of tokens.
    chunk_rows : ndarray
        int32 [chunks], row of each chunk (vLLM: seq_idx).
    last_chunk_indices : ndarray
        int32 [N], last chunk at or before the end of each row; for a row without tokens that is an earlier row's, and
        -1 if there is none.
    checkpoint_chunk_indices : ndarray
        int32 [N], chunk that ends on the row's checkpoint; -1 where it has none.

    Examples
    --------
    >>> layout = compute_chunk_layout([0], [0, 300], 128, [200])
    >>> np.diff(layout.cu_chunk_seqlens).tolist(), layout.checkpoint_chunk_indices.tolist()
    ([128, 72, 56, 44], [1])
    """

    cu_chunk_seqlens: np.ndarray
    chunk_rows: np.ndarray
    last_chunk_indices: np.ndarray
    checkpoint_chunk_indices: np.ndarray

    def chunks_ending_at(self, rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the chunk that ends on each checkpoint of a flat list.

        Parameters
        ----------
        rows : ndarray
            Integer [K], row of each checkpoint.
        offsets : ndarray
            Integer [K], tokens from the query start to the checkpoint; 0 for none.

        Returns
        -------
        ndarray
            int32 [K]; 0 where there is no checkpoint.

        Raises
        ------
        ArgumentError
            No chunk ends on a checkpoint: its state was never computed.

        Examples
        --------
        >>> layout = compute_chunk_layout([0, 1000], [0, 100, 400], 128, [0, 100])
        >>> layout.chunks_ending_at(np.array([0, 1]), np.array([0, 100])).tolist()
        [0, 2]
        """
        rows, offsets = check_integers("rows", rows), check_integers("offsets", offsets)
        check_shape("offsets", offsets, rows.shape, "pass one offset for each row")
        if offsets.size and int(offsets.min()) < 0:
            refuse("offsets", "at least 0", int(offsets.min()), "0 stands for no checkpoint")
        rows, offsets = (np.ascontiguousarray(array, np.int64) for array in (rows, offsets))
        chunks, ok = _chunks_ending_at(self.cu_chunk_seqlens, self.chunk_rows, rows, offsets)
        if not ok.all():
            k = int(ok.argmin())
            got = f"none at offset {offsets[k]} of row {rows[k]}"
            refuse("chunks", "a chunk that ends on each checkpoint", got, "lay out the scan with these offsets")
        return chunks  # type: ignore[no-any-return]


@host_loop
def _chunks_ending_at(cu, chunk_rows, rows, offsets):  # type: ignore[no-untyped-def]
    """Chunk that ends on each checkpoint (0 for none), and whether there is one."""
    chunks, ok = np.zeros(rows.size, np.int32), np.ones(rows.size, np.bool_)
    for k in range(rows.size):
        if offsets[k] > 0:
            chunk = np.searchsorted(chunk_rows, rows[k])
            end = cu[chunk] + offsets[k]
            while chunk < chunk_rows.size and cu[chunk + 1] < end:
                chunk += 1
            ok[k] = chunk < chunk_rows.size and chunk_rows[chunk] == rows[k] and cu[chunk + 1] == end
            chunks[k] = chunk
    return chunks, ok


@host_loop
def _bad_row(num_computed_tokens, query_start_loc, checkpoint_offsets):  # type: ignore[no-untyped-def]
    """First row with a negative length, too many tokens or an offset outside it; -1 if there is none."""
    for row in range(num_computed_tokens.size):
        num_tokens = query_start_loc[row + 1] - query_start_loc[row]
        offset = checkpoint_offsets[row]
        if num_computed_tokens[row] < 0 or query_start_loc[row] < 0 or num_tokens < 0 or not 0 <= offset <= num_tokens:
            return row
    return -1


@inlined_loop
def _cut_segment(position, done, stop, chunk_size, chunk, cu):  # type: ignore[no-untyped-def]
    """Cut tokens [done, stop) of a row whose query starts at `position`; returns the next chunk.

    A segment without tokens that stands off the grid still owns one (empty) chunk.
    """
    start = cu[chunk] - done
    boundary = next_chunk_boundary(position + done, chunk_size) - position
    if done < stop or not is_multiple(position + done, chunk_size):
        while boundary < stop:
            chunk += 1
            cu[chunk] = start + boundary
            boundary += chunk_size
        chunk += 1
        cu[chunk] = start + stop
    return chunk


@host_loop
def _cut_rows(num_computed_tokens, starts, chunk_size, offsets, cu, rows, last, checkpoint):  # type: ignore[no-untyped-def]
    """Fill the layout's arrays; returns the number of chunks."""
    chunk = 0
    cu[0] = 0
    for row in range(num_computed_tokens.size):
        first, position, offset = chunk, num_computed_tokens[row], offsets[row]
        checkpoint[row] = NO_CHUNK
        if offset > 0:
            chunk = _cut_segment(position, 0, offset, chunk_size, chunk, cu)
            checkpoint[row] = chunk - 1
        chunk = _cut_segment(position, offset, starts[row + 1] - starts[row], chunk_size, chunk, cu)
        rows[first:chunk] = row
        last[row] = chunk - 1
    return chunk


def _checked_inputs(num_computed_tokens: Any, query_start_loc: Any, checkpoint_offsets: Any) -> list[np.ndarray]:
    computed = check_integers("num_computed_tokens", num_computed_tokens)
    starts = check_integers("query_start_loc", query_start_loc)
    check_shape("query_start_loc", starts, (computed.size + 1,), "it has one entry more than num_computed_tokens")
    offsets = np.zeros(computed.size, np.int64) if checkpoint_offsets is None else checkpoint_offsets
    offsets = check_integers("checkpoint_offsets", offsets)
    check_shape("checkpoint_offsets", offsets, computed.shape, "pass one offset for each row, 0 for none")
    named = (("num_computed_tokens", computed), ("query_start_loc", starts), ("checkpoint_offsets", offsets))
    computed, starts, offsets = (np.ascontiguousarray(check_int64_range(name, array)) for name, array in named)
    row = int(_bad_row(computed, starts, offsets))
    if row >= 0:
        _refuse_row(row, int(computed[row]), (int(starts[row]), int(starts[row + 1])), int(offsets[row]))
    if int(starts[-1]) - int(starts[0]) > INT32_MAX:
        refuse("query_start_loc", f"at most {INT32_MAX} tokens in a batch", starts[-1] - starts[0], "split the batch")
    return [computed, starts, offsets]


def _refuse_row(row: int, computed: int, query: tuple[int, int], offset: int) -> None:
    if computed < 0:
        refuse("num_computed_tokens", "at least 0", f"{computed} in row {row}", "it counts tokens before the query")
    if query[0] < 0 or query[0] > query[1]:
        got = f"{query[0]} then {query[1]} for row {row}"
        refuse("query_start_loc", "cumulative starts that never fall", got, "accumulate the query lengths")
    expected = f"an offset in [0, {query[1] - query[0]}], the tokens of row {row}"
    refuse("checkpoint_offsets", expected, offset, "plan the offsets from the same query lengths")


def compute_chunk_layout(
    num_computed_tokens: Any, query_start_loc: Any, chunk_size: int, checkpoint_offsets: Any = None
) -> ChunkLayout:
    """Cut a packed batch into chunks that end on the sequence-position grid and on checkpoints.

    Parameters
    ----------
    num_computed_tokens : sequence of int or ndarray
        [N], tokens of each sequence before this step.
    query_start_loc : sequence of int or ndarray
        [N+1], cumulative tokens of the step; need not begin at 0.
    chunk_size : int
        Tokens per chunk, at least 1.
    checkpoint_offsets : sequence of int or ndarray, optional
        [N], tokens from the query start to the row's checkpoint; 0 for none.

    Returns
    -------
    ChunkLayout
        Host arrays; nothing is synchronised.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Lengths are negative or fall, shapes differ, or an offset lies outside its row.

    Notes
    -----
    Behaviour follows vLLM's Mamba2 chunk metadata. A row without tokens gets an empty chunk if it stands off the grid,
    and none otherwise.

    Examples
    --------
    >>> layout = compute_chunk_layout([0, 1000], [0, 100, 400], 128, [0, 100])
    >>> layout.cu_chunk_seqlens.tolist(), layout.chunk_rows.tolist()
    ([0, 100, 124, 200, 252, 380, 400], [0, 1, 1, 1, 1, 1])
    >>> layout.last_chunk_indices.tolist(), layout.checkpoint_chunk_indices.tolist()
    ([0, 5], [-1, 2])
    """
    size = check_int("chunk_size", chunk_size, 1)
    computed, starts, offsets = _checked_inputs(num_computed_tokens, query_start_loc, checkpoint_offsets)
    # Per row at most: whole chunks, one cut at each end, one at the checkpoint.
    capacity = int(starts[-1] - starts[0]) // size + 3 * computed.size
    cu, rows = np.empty(capacity + 1, np.int32), np.empty(capacity, np.int32)
    last, checkpoint = np.empty(computed.size, np.int32), np.empty(computed.size, np.int32)
    count = int(_cut_rows(computed, starts, size, offsets, cu, rows, last, checkpoint))
    return ChunkLayout(cu[: count + 1], rows[:count], last, checkpoint)
