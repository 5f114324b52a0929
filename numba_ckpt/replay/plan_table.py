"""The plan of a batch as a table: where each row is checkpointed, or which rule says no."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numba_ckpt.planning import CheckpointGeometry, compute_prefill_checkpoints
from numba_ckpt.replay.console import make_console, make_table
from numba_ckpt.rules import checkpoint_col, checkpoint_position, is_multiple, running_state_col

__all__ = ["PlannedRow", "explain_batch", "print_plan", "reasons_against"]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One row of a batch: tokens [query_start, seq_len) are computed.

    Attributes
    ----------
    query_start, seq_len : int
        Token positions.
    offset : int
        Tokens from the query's start to the checkpoint; 0 for none.
    block_col : int
        Block-table column of the checkpoint; -1 for none.
    reasons : tuple of str
        Why there is none; empty where there is one.
    """

    query_start: int
    seq_len: int
    offset: int
    block_col: int
    reasons: tuple[str, ...]


def reasons_against(query_start: int, query_end: int, geometry: CheckpointGeometry) -> Iterator[str]:
    """Yield each rule that forbids the query [query_start, query_end) a checkpoint, in words; none if it has one.

    Examples
    --------
    >>> list(reasons_against(24, 100, CheckpointGeometry(16, 32, 16, checkpoint_alignment=8)))
    ['start 24 is not on the hash grid (16)']
    """
    position = int(
        checkpoint_position(
            query_end,
            geometry.cache_hit_alignment_tokens,
            geometry.drop_eagle_block,
            geometry.num_hash_lookahead_tokens,
        )
    )
    hash_block, alignment = geometry.hash_block_size, geometry.checkpoint_alignment
    col = int(checkpoint_col(query_end, geometry.state_block_size))
    initial_col = int(running_state_col(query_start, geometry.state_block_size))
    if alignment is None:
        yield "the backend exports no states (no alignment)"
    if not is_multiple(query_start, hash_block):
        yield f"start {query_start} is not on the hash grid ({hash_block})"
    if col <= initial_col:
        yield f"column {col} is not beyond the initial state (column {initial_col})"
    if position < query_start + hash_block:  # a hash block has a token or more, so this covers position <= start too
        yield f"boundary {position} is less than a hash block ({hash_block}) past the start {query_start}"
    if position >= query_end:
        yield f"boundary {position} is not before the query's end {query_end}"
    if alignment is not None and not is_multiple(position - query_start, alignment):
        yield f"offset {position - query_start} is no multiple of the alignment {alignment}"


def explain_batch(seq_lens: Sequence[int], query_lens: Sequence[int], geometry: CheckpointGeometry) -> list[PlannedRow]:
    """Plan a batch and say for each row without a checkpoint why.

    Parameters
    ----------
    seq_lens, query_lens : sequence of int
        [N], tokens of each sequence after the step, and those computed in it.
    geometry : CheckpointGeometry
        The sizes that place a checkpoint.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `compute_prefill_checkpoints`.
    """
    plan = compute_prefill_checkpoints(list(seq_lens), list(query_lens), geometry)
    rows = zip(seq_lens, query_lens, plan.offsets.tolist(), plan.block_cols.tolist(), strict=True)
    return [
        PlannedRow(end - query, end, offset, col, () if offset else tuple(reasons_against(end - query, end, geometry)))
        for end, query, offset, col in rows
    ]


def print_plan(seq_lens: Sequence[int], query_lens: Sequence[int], geometry: CheckpointGeometry) -> None:
    """Print the plan of a batch to standard output."""
    rows = explain_batch(seq_lens, query_lens, geometry)
    console = make_console()
    title = f"{sum(row.offset > 0 for row in rows)} of {len(rows)} rows have a checkpoint"
    table = make_table(
        title, row="right", start="right", end="right", offset="right", boundary="right", column="right", why_not="left"
    )
    for index, row in enumerate(rows):
        place = (row.offset, row.query_start + row.offset, row.block_col) if row.offset else ("–",) * 3
        table.add_row(*map(str, (index, row.query_start, row.seq_len, *place)), "\n".join(row.reasons))
    console.print(table)
