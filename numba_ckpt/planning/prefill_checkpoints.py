"""Rows of a batch in, the checkpoint of each row out: the planner, on the host.

A call tries the compiled fast path, which refuses (a type it was not compiled for, or `_REFUSED`) rather than guess::

    plan_into ─► _plan_contiguous_rows ─► _plan_rows          contiguous int32 or int64, below 2^31 tokens
        └─ refused ─► _plan_checked: says what is wrong, or compiles the fast path for the next call and plans int64
                      copies ─► _plan_rows ─ refused ─► _plan_wide_rows          2^31 tokens and more
"""

from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._check import (
    INT32_MAX,
    check_array,
    check_int64_range,
    check_integers,
    check_no_overlap,
    check_shape,
    check_writable,
    refuse,
)
from numba_ckpt._jit import closed_loop, fused_loop, inlined_loop, int64, open_loop
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.planning.geometry import CheckpointGeometry
from numba_ckpt.rules import prefill_checkpoint

__all__ = ["CheckpointPlan", "compute_prefill_checkpoints", "plan_into"]


class CheckpointPlan(NamedTuple):
    """The checkpoints of a batch, one entry per row.

    Attributes
    ----------
    offsets : ndarray
        int32 [N], tokens from the row's query start to its checkpoint; 0 where the row has none.
    block_cols : ndarray
        int64 [N], block-table column of the checkpoint's state; -1 where the row has none.
    any : bool
        Whether some row has a checkpoint.

    Examples
    --------
    >>> plan = CheckpointPlan(np.array([1984, 0], np.int32), np.array([2, -1]), any=True)
    >>> np.nonzero(plan.offsets)[0].tolist()  # rows with a checkpoint
    [0]
    """

    offsets: np.ndarray
    block_cols: np.ndarray
    any: bool


_REFUSED = -1
_ALL_BITS = -1


@inlined_loop
def _plan_row(seq_lens, query_lens, params, row, mask):  # type: ignore[no-untyped-def]
    end = int64(seq_lens[row]) & mask
    start = end - (int64(query_lens[row]) & mask)
    unit, hash_block, state_block = params[0] & mask, params[1] & mask, params[2] & mask
    return prefill_checkpoint(
        start, end, unit, hash_block, state_block, params[3] & mask, params[4] != 0, params[5] & mask
    )


@inlined_loop
def _write_rows(seq_lens, query_lens, params, offsets, block_cols, mask):  # type: ignore[no-untyped-def]
    bits = int64(0)
    for row in range(seq_lens.size):
        offset, col = _plan_row(seq_lens, query_lens, params, row, mask)
        offsets[row] = offset
        block_cols[row] = col
        bits |= offset
    return bits


@fused_loop
def _plan_rows(seq_lens, query_lens, params, offsets, block_cols):  # type: ignore[no-untyped-def]
    """Plan all rows; 1 if some row has a checkpoint, 0 if none has, `_REFUSED` if a length is negative or wide."""
    size = seq_lens.size
    if query_lens.size != size or offsets.size != size or block_cols.size != size:
        return _REFUSED
    bits = int64(0)
    for row in range(size):
        seq_len, query_len = int64(seq_lens[row]), int64(query_lens[row])
        bits |= seq_len | query_len | (seq_len - query_len)
    if bits & ~INT32_MAX:
        return _REFUSED
    # The mask changes nothing; it tells the compiler that all lengths are small, which lets it vectorise.
    return int64(_write_rows(seq_lens, query_lens, params, offsets, block_cols, INT32_MAX) != 0)


@fused_loop
def _plan_wide_rows(seq_lens, query_lens, params, offsets, block_cols):  # type: ignore[no-untyped-def]
    """`_plan_rows` for sequences of 2^31 tokens and more; `_REFUSED` if an offset does not fit int32."""
    for row in range(seq_lens.size):
        if _plan_row(seq_lens, query_lens, params, row, _ALL_BITS)[0] > INT32_MAX:
            return _REFUSED
    return int64(_write_rows(seq_lens, query_lens, params, offsets, block_cols, _ALL_BITS) != 0)


@inlined_loop
def _overlap(a, b):  # type: ignore[no-untyped-def]
    start_a, start_b = a.ctypes.data, b.ctypes.data
    return (start_a < start_b + b.size * b.itemsize) & (start_b < start_a + a.size * a.itemsize)


@closed_loop
def _plan_contiguous_rows(seq_lens, query_lens, params, offsets, block_cols):  # type: ignore[no-untyped-def]
    """`_plan_rows` for contiguous int32 or int64 lengths, refusing outputs that overlap anything."""
    inputs_hit = _overlap(offsets, seq_lens) | _overlap(offsets, query_lens) | _overlap(block_cols, seq_lens)
    if inputs_hit | _overlap(block_cols, query_lens) | _overlap(block_cols, offsets):
        return _REFUSED
    return _plan_rows(seq_lens, query_lens, params, offsets, block_cols)


def _check_rows(seq_lens: Any, query_lens: Any, geometry: Any, offsets: Any, block_cols: Any) -> None:
    """Raise for whatever is wrong with the arguments of `plan_into`."""
    if not isinstance(geometry, CheckpointGeometry):
        got = type(geometry).__name__
        refuse("geometry", "a CheckpointGeometry", got, "make one from the block sizes", ArgumentTypeError)
    for name, lengths in (("seq_lens", seq_lens), ("query_lens", query_lens)):
        _check_host_array(name, lengths, "iu")
    check_shape("query_lens", query_lens, seq_lens.shape, "pass one query length for each entry of seq_lens")
    for name, output, dtype in (("offsets", offsets, np.int32), ("block_cols", block_cols, np.int64)):
        _check_host_array(name, output)
        if output.dtype != dtype:
            refuse(name, np.dtype(dtype).name, output.dtype, "allocate it with this dtype", ArgumentTypeError)
        check_shape(name, output, seq_lens.shape, "allocate one entry for each entry of seq_lens")
        check_writable(name, output)
        check_no_overlap((name, output), (("seq_lens", seq_lens), ("query_lens", query_lens)))
    check_no_overlap(("block_cols", block_cols), (("offsets", offsets),))
    _check_lengths(seq_lens, query_lens)


def _check_host_array(name: str, array: Any, kinds: str = "") -> None:
    if not isinstance(array, np.ndarray):
        do = "the planner runs on the host: make it a NumPy array"
        refuse(name, "a 1-d NumPy array", type(array).__name__, do, ArgumentTypeError)
    check_array(name, array, 1, kinds)


def _check_lengths(seq_lens: np.ndarray, query_lens: np.ndarray) -> None:
    seqs, queries = check_int64_range("seq_lens", seq_lens), check_int64_range("query_lens", query_lens)
    for name, lens, bad, expected in (
        ("seq_lens", seqs, seqs < 0, "lengths of at least 0"),
        ("query_lens", queries, queries < 0, "lengths of at least 0"),
        ("query_lens", queries, queries > seqs, "at most the row's seq_lens"),
    ):
        if bad.any():
            row = int(bad.argmax())
            got = f"{lens[row]} in row {row} (seq_lens {seqs[row]}, query_lens {queries[row]})"
            refuse(name, expected, got, "seq_lens counts all tokens after the step, query_lens those computed in it")


def _plan_checked(seq_lens: Any, query_lens: Any, geometry: Any, offsets: Any, block_cols: Any) -> bool:
    """Plan what the fast path does not take (other dtypes and strides, wide lengths), or say what is wrong."""
    _check_rows(seq_lens, query_lens, geometry, offsets, block_cols)
    arguments = seq_lens, query_lens, geometry.params, offsets, block_cols
    if seq_lens.dtype == query_lens.dtype and seq_lens.dtype in (np.int32, np.int64):
        if all(array.flags.c_contiguous and array.flags.writeable for array in arguments):
            open_loop(_plan_contiguous_rows, arguments)
    # One compiled loop serves all dtypes, strides and byte orders: a copy is cheaper than compiling another.
    seqs, queries = seq_lens.astype(np.int64, order="C"), query_lens.astype(np.int64, order="C")
    status = _plan_rows(seqs, queries, geometry.params, offsets, block_cols)
    if status == _REFUSED:
        status = _plan_wide_rows(seqs, queries, geometry.params, offsets, block_cols)
    if status == _REFUSED:
        got = f"a query of {int(query_lens.max())} tokens"
        expected = f"checkpoint offsets that fit int32 (at most {INT32_MAX})"
        refuse("query_lens", expected, got, "split the prefill into shorter chunks")
    return bool(status)


def plan_into(
    seq_lens: np.ndarray,
    query_lens: np.ndarray,
    geometry: CheckpointGeometry,
    offsets: np.ndarray,
    block_cols: np.ndarray,
) -> bool:
    """Plan the checkpoints of a batch into preallocated arrays.

    Parameters
    ----------
    seq_lens : ndarray
        Integer [N], tokens of each sequence after the step.
    query_lens : ndarray
        Integer [N], tokens that the step computes of each.
    geometry : CheckpointGeometry
        The sizes that place a checkpoint.
    offsets : ndarray
        int32 [N], overwritten: tokens from the query start to the checkpoint, 0 for none.
    block_cols : ndarray
        int64 [N], overwritten: block-table column of the checkpoint, -1 for none.

    Returns
    -------
    bool
        Whether some row has a checkpoint.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Lengths are negative, a query is longer than its sequence, an offset does not fit int32, shapes or dtypes
        differ from the above, outputs are read-only or overlap another argument. Nothing is written then.

    Notes
    -----
    Host arrays only. Contiguous, writable arrays with int32 or int64 lengths (both of one dtype) take the fast path,
    which allocates nothing; lengths of another dtype, stride or byte order are copied first.

    Examples
    --------
    >>> import numpy as np
    >>> offsets, block_cols = np.empty(2, np.int32), np.empty(2, np.int64)
    >>> geometry = CheckpointGeometry(8, 2048, 8, checkpoint_alignment=8)
    >>> plan_into(np.array([5000, 7]), np.array([4992, 7]), geometry, offsets, block_cols)
    True
    >>> offsets.tolist(), block_cols.tolist()
    ([4984, 0], [1, -1])
    """
    try:
        status = _plan_contiguous_rows(seq_lens, query_lens, geometry.params, offsets, block_cols)
    except (TypeError, AttributeError):
        status = _REFUSED
    if status == _REFUSED:
        return _plan_checked(seq_lens, query_lens, geometry, offsets, block_cols)
    return status == 1  # type: ignore[no-any-return]


def compute_prefill_checkpoints(
    seq_lens: Any, query_lens: Any, geometry: CheckpointGeometry, out: CheckpointPlan | None = None
) -> CheckpointPlan:
    """Plan the checkpoint of each row of a batch.

    Parameters
    ----------
    seq_lens : sequence of int or ndarray
        [N], tokens of each sequence after the step; a list or an array of any integer dtype and stride.
    query_lens : sequence of int or ndarray
        [N], tokens that the step computes of each.
    geometry : CheckpointGeometry
        The sizes that place a checkpoint.
    out : CheckpointPlan, optional
        A plan of N rows whose arrays are overwritten instead of new ones being made.

    Returns
    -------
    CheckpointPlan
        Offsets (int32 [N]), block-table columns (int64 [N]) and whether there is any checkpoint.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `plan_into`; nothing is written then.

    Notes
    -----
    Runs on the host and does not synchronise with a device. Behaviour follows vLLM's
    ``compute_mamba_prefill_checkpoints``.

    Examples
    --------
    >>> geometry = CheckpointGeometry(16, 512, 16, checkpoint_alignment=16)
    >>> plan = compute_prefill_checkpoints([2000, 900, 41], [2000, 388, 1], geometry)
    >>> plan.offsets.tolist(), plan.block_cols.tolist(), plan.any
    ([1984, 0, 0], [2, -1, -1], True)
    """
    if type(seq_lens) is not np.ndarray:
        seq_lens = check_integers("seq_lens", seq_lens)
    if type(query_lens) is not np.ndarray:
        query_lens = check_integers("query_lens", query_lens)
    if out is None:
        shape = seq_lens.shape
        offsets, block_cols = np.empty(shape, np.int32), np.empty(shape, np.int64)
    elif not isinstance(out, CheckpointPlan):
        refuse("out", "a CheckpointPlan or None", type(out).__name__, "pass an earlier result", ArgumentTypeError)
    else:
        offsets, block_cols = out.offsets, out.block_cols
    return CheckpointPlan(offsets, block_cols, plan_into(seq_lens, query_lens, geometry, offsets, block_cols))
