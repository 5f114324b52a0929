"""A slow, obvious oracle for the planner, the chunk layout and the exporters.

Nothing here uses ``rules/``: boundaries, block edges and taps are enumerated one by one as plain Python ints,
so that a wrong formula there cannot be wrong here in the same way. Use it in tests; a serving step has no time for it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from numba_ckpt.planning.geometry import CheckpointGeometry

__all__ = [
    "ReferenceChunks",
    "reference_checkpoint",
    "reference_checkpoint_position",
    "reference_chunk_layout",
    "reference_conv_window",
    "reference_is_checkpoint_valid",
    "reference_plan",
    "reference_state_col",
]


def reference_checkpoint_position(
    num_tokens: int, unit: int, drop_eagle_block: bool = False, num_lookahead_tokens: int = 0
) -> int:
    """Return the last reusable boundary of a prefill by walking its boundaries.

    Parameters
    ----------
    num_tokens : int
        Tokens of the prefill, at least 0; any Python int.
    unit : int
        Tokens per cache-hit alignment unit; boundaries are 0, unit, 2 * unit, ... up to `num_tokens`.
    drop_eagle_block : bool
        Whether the last boundary is given up, which leaves the one before it.
    num_lookahead_tokens : int
        Tokens that must follow a boundary, if more than the one whose logits are wanted.

    Returns
    -------
    int
        Tokens from the sequence start; 0 for none.

    Examples
    --------
    >>> reference_checkpoint_position(100, 32), reference_checkpoint_position(96, 32)
    (96, 64)
    >>> reference_checkpoint_position(100, 32, drop_eagle_block=True)
    64
    """
    boundaries = range(0, num_tokens + 1, unit)
    if drop_eagle_block:
        return boundaries[-2:][0]
    for boundary in reversed(boundaries):
        if num_tokens - boundary >= max(1, num_lookahead_tokens):
            return boundary
    return 0


def reference_state_col(num_tokens: int, state_block_size: int) -> int:
    """Return the block-table column of the state after `num_tokens` tokens, by counting the blocks begun; -1 for none.

    Parameters
    ----------
    num_tokens : int
        Tokens that the state has seen.
    state_block_size : int
        Tokens per column.

    Examples
    --------
    >>> [reference_state_col(n, 4) for n in (0, 1, 4, 5)]
    [-1, 0, 0, 1]
    """
    blocks_begun = range(0, num_tokens, state_block_size)
    return blocks_begun.index(blocks_begun[-1]) if blocks_begun else -1


def reference_is_checkpoint_valid(
    query_start: int,
    query_end: int,
    position: int,
    hash_block_size: int,
    state_block_size: int,
    checkpoint_alignment: int | None,
) -> bool:
    """Say whether the query [query_start, query_end) can export a state at `position`.

    Parameters
    ----------
    query_start, query_end, position : int
        Tokens from the sequence start.
    hash_block_size, state_block_size : int
        Tokens per prefix hash and per block-table column.
    checkpoint_alignment : int or None
        Tokens between the exportable places of a query; None means that there are none.

    Returns
    -------
    bool
        Whether the query starts on the hash grid, holds `position` at an exportable place at least one hash block from
        its start, and keeps a column for it between those of its initial and its running state.

    Examples
    --------
    >>> reference_is_checkpoint_valid(0, 100, 96, 32, 48, 32), reference_is_checkpoint_valid(0, 48, 32, 32, 48, 32)
    (True, False)
    """
    if checkpoint_alignment is None or query_start not in range(0, query_start + 1, hash_block_size):
        return False
    exportable = range(query_start, query_end, checkpoint_alignment)[1:]
    initial_col = reference_state_col(query_start, state_block_size)
    spare_col = reference_state_col(query_end, state_block_size) - 1
    return spare_col > initial_col and position in exportable and position - query_start >= hash_block_size


def reference_checkpoint(seq_len: int, query_len: int, geometry: CheckpointGeometry) -> tuple[int, int]:
    """Return the checkpoint of one row as (offset, column); (0, -1) for none.

    Parameters
    ----------
    seq_len, query_len : int
        Tokens of the sequence after the step, and those that the step computes.
    geometry : CheckpointGeometry
        The sizes that place a checkpoint.

    Examples
    --------
    >>> reference_checkpoint(2000, 2000, CheckpointGeometry(16, 512, 16, checkpoint_alignment=16))
    (1984, 2)
    """
    start = seq_len - query_len
    position = reference_checkpoint_position(
        seq_len, geometry.cache_hit_alignment_tokens, geometry.drop_eagle_block, geometry.num_hash_lookahead_tokens
    )
    sizes = geometry.hash_block_size, geometry.state_block_size, geometry.checkpoint_alignment
    if not reference_is_checkpoint_valid(start, seq_len, position, *sizes):
        return 0, -1
    return position - start, reference_state_col(seq_len, geometry.state_block_size) - 1


def reference_plan(
    seq_lens: Sequence[int], query_lens: Sequence[int], geometry: CheckpointGeometry
) -> tuple[list[int], list[int]]:
    """Return the offsets and the columns of a batch, row by row.

    Parameters
    ----------
    seq_lens, query_lens : sequence of int
        [N], as `compute_prefill_checkpoints` takes them.
    geometry : CheckpointGeometry
        The sizes that place a checkpoint.

    Examples
    --------
    >>> reference_plan([2000, 41], [2000, 1], CheckpointGeometry(16, 512, 16, checkpoint_alignment=16))
    ([1984, 0], [2, -1])
    """
    rows = [
        reference_checkpoint(int(seq_len), int(query_len), geometry)
        for seq_len, query_len in zip(seq_lens, query_lens, strict=True)
    ]
    return [offset for offset, _ in rows], [col for _, col in rows]


class ReferenceChunks(NamedTuple):
    """What `reference_chunk_layout` returns: lists with the names and the meaning of `ChunkLayout`."""

    cu_chunk_seqlens: list[int]
    chunk_rows: list[int]
    last_chunk_indices: list[int]
    checkpoint_chunk_indices: list[int]


def _chunk_ends(first: int, end: int, chunk_size: int) -> list[int]:
    """Return the sequence positions at which the chunks of the tokens [first, end) end.

    Tokens that begin off the grid open with a partial chunk even if there are none of them, as upstream records it.
    """
    starts = [position for position in range(first, end) if position % chunk_size == 0]
    if first % chunk_size:
        starts.insert(0, first)
    return [*starts[1:], end] if starts else []


def reference_chunk_layout(
    num_computed_tokens: Sequence[int],
    query_start_loc: Sequence[int],
    chunk_size: int,
    checkpoint_offsets: Sequence[int] | None = None,
) -> ReferenceChunks:
    """Cut the rows of a batch into chunks, token by token.

    Parameters
    ----------
    num_computed_tokens : sequence of int
        [N], tokens of each sequence before the step.
    query_start_loc : sequence of int
        [N + 1], first token of each row in the batch; need not begin at 0.
    chunk_size : int
        Tokens per chunk of the sequence-position grid.
    checkpoint_offsets : sequence of int, optional
        [N], tokens into the query after which a chunk must end; 0 for none.

    Returns
    -------
    ReferenceChunks
        Chunk boundaries in the batch (from 0), the row of each chunk, each row's last chunk (that of the row before it
        where a row has none) and the chunk that ends on each checkpoint (-1 for none).

    Examples
    --------
    >>> reference_chunk_layout([0, 6], [0, 10, 13], 4, [7, 0]).cu_chunk_seqlens
    [0, 4, 7, 8, 10, 12, 13]
    """
    chunks = ReferenceChunks([0], [], [], [])
    for row, first in enumerate(map(int, num_computed_tokens)):
        batch_start = int(query_start_loc[row]) - int(query_start_loc[0])
        end = first + int(query_start_loc[row + 1]) - int(query_start_loc[row])
        checkpoint = first + (0 if checkpoint_offsets is None else int(checkpoint_offsets[row]))
        before = _chunk_ends(first, checkpoint, chunk_size) if checkpoint > first else []
        ends = before + _chunk_ends(checkpoint, end, chunk_size)
        chunks.checkpoint_chunk_indices.append(len(chunks.chunk_rows) + len(before) - 1 if before else -1)
        chunks.cu_chunk_seqlens.extend(batch_start + stop - first for stop in ends)
        chunks.chunk_rows.extend(row for _ in ends)
        chunks.last_chunk_indices.append(len(chunks.chunk_rows) - 1)
    return chunks


def reference_conv_window(tokens: Any, first: int, offset: int, state_len: int, initial: Any = None) -> list[Any]:
    """Return the `state_len` tokens before the checkpoint, oldest first.

    Parameters
    ----------
    tokens : sequence
        The batch's tokens, or rows of values.
    first : int
        Index in `tokens` of the row's first token.
    offset : int
        Tokens from there to the checkpoint.
    state_len : int
        Tokens in a window.
    initial : sequence, optional
        The row's window of `state_len` tokens before its first token; tokens older than the row are taken from it.

    Returns
    -------
    list
        `state_len` elements of `tokens` or `initial`.

    Raises
    ------
    IndexError
        The window reaches back beyond the row and no `initial` is given.

    Examples
    --------
    >>> reference_conv_window("abcdef", first=2, offset=3, state_len=3)
    ['c', 'd', 'e']
    >>> reference_conv_window("abcdef", first=2, offset=1, state_len=3, initial="xyz")
    ['y', 'z', 'c']
    """
    window = []
    for token in range(offset - state_len, offset):
        if token >= 0:
            window.append(tokens[first + token])
        elif initial is None:
            raise IndexError(f"token {token} of the row that starts at {first} lies before it and no window is given")
        else:
            window.append(initial[state_len + token])
    return window
