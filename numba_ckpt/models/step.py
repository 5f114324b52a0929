"""One step of an engine, as every layer of a stack reads it: which states it starts from and which it leaves."""

from dataclasses import dataclass

import numpy as np

from numba_ckpt._check import check_array, check_int64_range, check_integers, check_shape, refuse
from numba_ckpt.checkpoint import CheckpointTargets, PrefillCheckpointMetadata
from numba_ckpt.models._varlen import check_starts
from numba_ckpt.planning import BatchLayout, ChunkLayout, compute_chunk_layout
from numba_ckpt.rules import NULL_BLOCK_ID, running_state_col

__all__ = ["Step", "make_step"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one pass reads and writes, for rows of N requests.

    Attributes
    ----------
    query_start_loc : ndarray
        int64 [N+1].
    initial_blocks : ndarray
        int64 [N], block of the state before each row's first token; the null block where there is none.
    has_initial_state : ndarray
        bool [N], False where a sequence starts.
    targets : CheckpointTargets
        The checkpoints, then every row's running state: to a layer, a state at the query's end is one more checkpoint.
    chunks : ChunkLayout
        For layers that scan by chunks.
    """

    query_start_loc: np.ndarray
    initial_blocks: np.ndarray
    has_initial_state: np.ndarray
    targets: CheckpointTargets
    chunks: ChunkLayout


def _blocks_at(
    block_table: np.ndarray, num_tokens: np.ndarray, blocks_of: tuple[int, np.ndarray], purpose: str
) -> np.ndarray:
    """Return the block of each wanted row's running column after `num_tokens`, the null block for other rows."""
    state_block_size, wanted = blocks_of
    cols = np.array([running_state_col(int(count), state_block_size) for count in num_tokens], np.int64)
    rows = np.flatnonzero(wanted)
    if rows.size and cols[rows].max() >= block_table.shape[1]:
        refuse("block_table", f"{cols[rows].max() + 1} columns", block_table.shape[1], "widen it to the sequences")
    blocks = np.full(cols.size, NULL_BLOCK_ID, np.int64)
    blocks[rows] = block_table[rows, cols[rows]]
    missing = rows[blocks[rows] == NULL_BLOCK_ID]
    if missing.size:
        got = f"the null block for row {missing[0]}"
        refuse(f"block_table, column {cols[missing[0]]}", f"a block for the {purpose}", got, "allocate it")
    return blocks


def make_step(
    batch: BatchLayout, checkpoint: PrefillCheckpointMetadata | None, state_block_size: int, chunk_size: int
) -> Step:
    """Find the blocks and the chunks of a step.

    Parameters
    ----------
    batch : BatchLayout
        The rows; a host block table.
    checkpoint : PrefillCheckpointMetadata or None
        What the builder planned for some of the rows.
    state_block_size : int
        Tokens per block-table column.
    chunk_size : int
        Tokens per chunk of a chunked scan.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Lengths do not fit, or a row has no block for its initial or running state.

    Examples
    --------
    >>> batch = BatchLayout(np.array([10, 3]), np.array([0, 4, 7]), np.array([[5, 6], [7, 0]], np.int32))
    >>> step = make_step(batch, None, state_block_size=8, chunk_size=4)
    >>> step.initial_blocks.tolist(), step.targets.offsets.tolist(), step.targets.state_indices.tolist()
    ([5, 0], [4, 3], [6, 7])
    """
    starts, seq_lens = _lengths_of(batch)
    query_lens = np.diff(starts)
    computed = seq_lens - query_lens
    planned = _planned(checkpoint)
    at_row = np.zeros(seq_lens.size, np.int64)
    at_row[planned[2]] = planned[0]
    chunks = compute_chunk_layout(computed, starts, chunk_size, at_row)
    running = _blocks_at(batch.block_table, seq_lens, (state_block_size, query_lens > 0), "running state")
    initial = _blocks_at(batch.block_table, computed, (state_block_size, computed > 0), "initial state")
    ends = query_lens, running, np.arange(seq_lens.size)
    targets = CheckpointTargets(*(np.concatenate(parts).astype(np.int64) for parts in zip(planned, ends, strict=True)))
    return Step(starts, initial, computed > 0, targets, chunks)


def _lengths_of(batch: BatchLayout) -> tuple[np.ndarray, np.ndarray]:
    """Return query starts (int64 [N+1]) and sequence lengths (int64 [N])."""
    starts = check_integers("query_start_loc_cpu", batch.query_start_loc_cpu)
    starts = check_starts(starts, int(starts[-1]) if starts.size else 0, "query_start_loc_cpu")
    seq_lens = check_int64_range("seq_lens_cpu", check_integers("seq_lens_cpu", batch.seq_lens_cpu))
    check_shape("seq_lens_cpu", seq_lens, (starts.size - 1,), "query_start_loc_cpu has one entry more")
    check_array("block_table", batch.block_table, 2, "iu")
    if batch.block_table.shape[0] < seq_lens.size:
        refuse("block_table", f"{seq_lens.size} rows", batch.block_table.shape[0], "pass a table row for each request")
    return starts, seq_lens


def _planned(checkpoint: PrefillCheckpointMetadata | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return offsets, blocks and rows of the planned checkpoints."""
    if checkpoint is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    if checkpoint.request_rows is None:
        refuse("checkpoint.request_rows", "the planned rows", "None", "keep what the builder returned")
    return checkpoint.checkpoint_offsets, checkpoint.state_indices, checkpoint.request_rows
