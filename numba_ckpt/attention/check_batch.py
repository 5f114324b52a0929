"""Checks of a step's batch that look at values; on the host, in one pass."""

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from numba_ckpt._check import check_int, check_kind, refuse
from numba_ckpt._jit import host_loop, int64
from numba_ckpt.attention.mm_ranges import MMPrefixRanges
from numba_ckpt.cache import LimitsConfig
from numba_ckpt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from numba_ckpt.attention.step_batch import StepBatch

__all__: list[str] = []

_COMPILED_DTYPES = np.dtype(np.int32), np.dtype(np.int64)
_NO_LENS = np.empty(0, np.int64)


@host_loop
def _first_bad_row(starts, seq_lens, max_query_len, max_seq_len):  # type: ignore[no-untyped-def]
    """First row whose start falls, or whose lengths exceed a bound or each other; -1 if there is none."""
    for row in range(starts.size - 1):
        query_len = int64(starts[row + 1]) - int64(starts[row])
        if query_len < 0 or query_len > max_query_len:
            return row
        if seq_lens.size and not query_len <= seq_lens[row] <= max_seq_len:
            return row
    return -1


@host_loop
def _extremes(values):  # type: ignore[no-untyped-def]
    low, high = int64(0), int64(0)
    for value in values.flat:
        low, high = min(low, int64(value)), max(high, int64(value))
    return low, high


def check_limits(batch: "StepBatch") -> None:
    """Refuse a batch larger than the engine was configured for."""
    limits = batch.limits
    if limits is None:
        return
    check_kind("limits", limits, LimitsConfig)
    for name, limit in (
        ("num_reqs", limits.max_num_requests),
        ("num_tokens", limits.max_num_batched_tokens),
        ("max_seq_len", limits.max_model_len),
    ):
        if getattr(batch, name) > limit:
            refuse(name, f"at most {limit}", getattr(batch, name), "raise the limit, or make the batch smaller")


def check_rows(batch: "StepBatch") -> None:
    """Refuse starts that fall or end beyond the batch, and lengths beyond the bounds."""
    starts = batch.query_start_loc_cpu
    bounds, lens = batch.seq_lens_cpu_upper_bound, batch.seq_lens if batch.backend.is_host else None
    if starts[0] != 0:
        refuse("query_start_loc_cpu", "0 first", int(starts[0]), "count tokens from the batch's first")
    given = {name: of for name, of in (("seq_lens_cpu_upper_bound", bounds), ("seq_lens", lens)) if of is not None}
    for name, values in (given or {"seq_lens": _NO_LENS}).items():
        _check_lens(batch, name, starts, values)
    if bounds is not None and lens is not None and (short := np.flatnonzero(bounds < lens)).size:
        row = int(short[0])
        got = f"{bounds[row]} for {lens[row]} tokens in row {row}"
        refuse("seq_lens_cpu_upper_bound", "at least seq_lens", got, "count tokens that may be rejected, too")
    _check_local_lens(batch)
    if starts[-1] > batch.num_tokens:
        refuse("query_start_loc_cpu", f"at most {batch.num_tokens} tokens", int(starts[-1]), "raise num_tokens")


def _check_local_lens(batch: "StepBatch") -> None:
    """Refuse tokens of this rank that no sequence of the batch can have."""
    arrays = {"dcp_local_seq_lens_cpu_upper_bound": batch.dcp_local_seq_lens_cpu_upper_bound}
    if batch.backend.is_host:
        arrays["dcp_local_seq_lens"] = batch.dcp_local_seq_lens
    for name, lens in arrays.items():
        if lens is None:
            continue
        low, high = _extremes(lens)
        if low < 0 or high > batch.max_seq_len:
            expected = f"tokens of this rank, in [0, {batch.max_seq_len}]"
            refuse(name, expected, low if low < 0 else high, "count them from seq_lens")


def _check_lens(batch: "StepBatch", name: str, starts: np.ndarray, lens: np.ndarray) -> None:
    # Smaller dtypes would each compile a loop of their own, and int32 holds any batch.
    starts, lens = (a if a.dtype in _COMPILED_DTYPES else a.astype(np.int64) for a in (starts, lens))
    row = int(_first_bad_row(starts, lens, batch.max_query_len, batch.max_seq_len))
    if row >= 0:
        _refuse_row(batch, row, starts, name, lens)


def _refuse_row(batch: "StepBatch", row: int, starts: np.ndarray, name: str, lens: np.ndarray) -> NoReturn:
    query_len = int(starts[row + 1]) - int(starts[row])
    if query_len < 0:
        got = f"{starts[row]} then {starts[row + 1]} for row {row}"
        refuse("query_start_loc_cpu", "starts that never fall", got, "accumulate the query lengths")
    if query_len > batch.max_query_len:
        got = f"{query_len} tokens in row {row}"
        refuse("max_query_len", "a bound of all query lengths", f"{batch.max_query_len}, but {got}", "take the maximum")
    expected = f"lengths from the row's {query_len} query tokens to max_seq_len {batch.max_seq_len}"
    do = "count all tokens after the step, and bound them with max_seq_len"
    refuse(name, expected, f"{lens[row]} in row {row}", do)


def check_positions(batch: "StepBatch") -> None:
    """Refuse positions outside the model's length, where they can be read without waiting."""
    if batch.positions is None or batch.limits is None or not batch.backend.is_host:
        return
    low, high = _extremes(batch.positions)
    if low < 0 or high >= batch.limits.max_model_len:
        got = low if low < 0 else high
        refuse("positions", f"token positions in [0, {batch.limits.max_model_len})", got, "see how they were computed")


def check_mm_ranges(batch: "StepBatch") -> None:
    """Refuse ranges of rows that are not in the batch."""
    ranges = batch.mm_req_doc_ranges
    if ranges is None:
        return
    if not hasattr(ranges, "keys"):
        do = "pass what compute_mm_prefix_ranges returned"
        refuse("mm_req_doc_ranges", "a mapping from row to ranges", type(ranges).__name__, do, ArgumentTypeError)
    if not isinstance(ranges, MMPrefixRanges):
        for row in ranges:
            check_int("mm_req_doc_ranges", row, 0)
    if ranges and not 0 <= min(ranges) <= max(ranges) < batch.num_reqs:
        row = min(ranges) if min(ranges) < 0 else max(ranges)
        refuse("mm_req_doc_ranges", f"rows in [0, {batch.num_reqs})", row, "count rows in the order of the batch")
