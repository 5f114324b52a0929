"""What all attention groups read of one step: made and checked once, then shared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from numba_ckpt._array import Array, Backend, backend_of
from numba_ckpt._check import check_array, check_bool, check_int, describe, refuse
from numba_ckpt.attention.check_batch import check_limits, check_mm_ranges, check_positions, check_rows
from numba_ckpt.attention.fast_prefill import FastPrefillBatchMetadata
from numba_ckpt.cache import LimitsConfig
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.token_to_req_indices import token_to_req_indices

__all__ = ["MetadataOptions", "ModelSpecificMetadata", "StepBatch"]

# Name, dtype kind, entries beyond one per request, and whether the array stays on the host.
_ROW_ARRAYS = (
    ("query_start_loc", "i", 1, False),
    ("query_start_loc_cpu", "i", 1, True),
    ("seq_lens", "i", 0, False),
    ("seq_lens_cpu_upper_bound", "i", 0, True),
    ("dcp_local_seq_lens", "i", 0, False),
    ("dcp_local_seq_lens_cpu_upper_bound", "i", 0, True),
    ("is_prefilling", "b", 0, True),
    ("req_idx", "i", 0, True),
)
_REQUIRED = frozenset({"query_start_loc", "query_start_loc_cpu", "seq_lens"})


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """The rows and tokens of one step (or of one micro-batch of it).

    Arrays may be longer than the batch, as an engine's buffers are: the record keeps views of their first entries, so
    that addresses stay the same from step to step.

    Parameters
    ----------
    num_reqs : int
        N, rows of the batch; with the rows that pad it to a captured size, which have no tokens.
    num_tokens : int
        T, tokens of the batch, padding included.
    query_start_loc : ndarray or cupy.ndarray
        int32 or int64 [>= N+1], where each row's tokens begin; entry N is where padding begins.
    query_start_loc_cpu : ndarray
        The same on the host.
    seq_lens : ndarray or cupy.ndarray
        int32 or int64 [>= N], tokens of each sequence after the step.
    max_query_len, max_seq_len : int
        Bounds of the rows' query and sequence lengths, in tokens.
    seq_lens_cpu_upper_bound : ndarray, optional
        int32 or int64 [>= N], on the host: `seq_lens` as if every draft were accepted.
    dcp_local_seq_lens, dcp_local_seq_lens_cpu_upper_bound : ndarray or cupy.ndarray, optional
        Integer [>= N], tokens of each sequence on this rank of a context-parallel group; the second on the host.
    positions : ndarray or cupy.ndarray, optional
        Integer [T] or [sections, T], position of each token in its sequence.
    is_prefilling : ndarray, optional
        bool [>= N], on the host: whether a row computes prompt tokens.
    mm_req_doc_ranges : mapping of int to list of tuple of int, optional
        Row to its inclusive token ranges that see each other both ways.
    req_idx : ndarray, optional
        Integer [>= N], on the host: where the engine keeps each row's request.
    limits : LimitsConfig, optional
        What the batch is checked against.
    token_to_req_buffer : ndarray or cupy.ndarray, optional
        int32 [>= T], memory that `token_to_req_indices` writes to instead of new memory.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Arrays too short or of wrong dtypes, starts that fall, lengths beyond the bounds, a batch beyond the limits.

    Notes
    -----
    Checks cost one pass over the host arrays and read nothing from a device.

    Examples
    --------
    >>> starts, seq_lens = np.array([0, 3, 4, 4]), np.array([3, 9, 0])  # a prefill, a decode and a row of padding
    >>> batch = StepBatch(3, 6, starts, starts, seq_lens, max_query_len=3, max_seq_len=9)
    >>> batch.token_to_req_indices().tolist()
    [0, 0, 0, 1, -1, -1]
    """

    num_reqs: int
    num_tokens: int
    query_start_loc: Array
    query_start_loc_cpu: np.ndarray
    seq_lens: Array
    max_query_len: int
    max_seq_len: int
    seq_lens_cpu_upper_bound: np.ndarray | None = None
    dcp_local_seq_lens: Array = None
    dcp_local_seq_lens_cpu_upper_bound: np.ndarray | None = None
    positions: Array = None
    is_prefilling: np.ndarray | None = None
    mm_req_doc_ranges: Mapping[int, list[tuple[int, int]]] | None = None
    req_idx: np.ndarray | None = None
    limits: LimitsConfig | None = None
    token_to_req_buffer: Array = None
    backend: Backend = field(init=False, repr=False)
    _token_to_req: Array = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        for name in ("num_reqs", "num_tokens", "max_query_len", "max_seq_len"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                object.__setattr__(self, name, check_int(name, value, 0))
        for row_array in _ROW_ARRAYS:
            self._fit(*row_array)
        for name in ("positions", "token_to_req_buffer"):
            self._fit_tokens(name)
        backend = backend_of(
            query_start_loc=self.query_start_loc,
            seq_lens=self.seq_lens,
            dcp_local_seq_lens=self.dcp_local_seq_lens,
            positions=self.positions,
            token_to_req_buffer=self.token_to_req_buffer,
        )
        object.__setattr__(self, "backend", backend)
        check_limits(self)
        check_rows(self)
        check_positions(self)
        check_mm_ranges(self)

    def _fit(self, name: str, kind: str, num_more: int, on_host: bool) -> None:
        """Check a row array, and cut it to the batch."""
        array = getattr(self, name)
        length = self.num_reqs + num_more
        if type(array) is np.ndarray and array.shape == (length,) and array.dtype.kind == kind:
            return
        if array is None and name not in _REQUIRED:
            return
        if on_host and not isinstance(array, np.ndarray):
            do = "keep a copy on the host, which the step's layout is decided from"
            refuse(name, "a NumPy array", describe(array), do, ArgumentTypeError)
        check_array(name, array, 1, kind)
        if array.shape[0] < length:
            expected = f"at least {length} entries for {self.num_reqs} requests"
            refuse(name, expected, array.shape[0], "size it for the batch, padding rows included")
        if array.shape[0] > length:
            object.__setattr__(self, name, array[:length])

    def _fit_tokens(self, name: str) -> None:
        """Check a token array, and cut it to the batch."""
        array = getattr(self, name)
        if array is None:
            return
        check_array(name, array, 2 if name == "positions" and getattr(array, "ndim", 1) == 2 else 1, "i")
        if array.shape[-1] < self.num_tokens:
            expected = f"at least {self.num_tokens} entries, one per token"
            refuse(name, expected, array.shape[-1], "size it for the batch, padding included")
        if array.shape[-1] > self.num_tokens:
            object.__setattr__(self, name, array[..., : self.num_tokens])

    @property
    def seq_lens_cpu(self) -> np.ndarray:
        """Sequence lengths on the host, integer [N]; upper bounds where drafts may be rejected."""
        if self.seq_lens_cpu_upper_bound is not None:
            return self.seq_lens_cpu_upper_bound
        if not self.backend.is_host:
            do = "pass what the scheduler knows, so that nothing has to be read back from the device"
            refuse("seq_lens_cpu_upper_bound", "an array, for a group that plans on the host", "None", do)
        return self.seq_lens  # type: ignore[no-any-return]

    def token_to_req_indices(self) -> Array:
        """Return the row of each token, int32 [T]; `rules.NO_REQUEST` for padding.

        Computed when it is first asked for, once for all groups; on a device one launch, no synchronisation.
        """
        if self._token_to_req is None:
            out = self.token_to_req_buffer
            if out is None:
                out = self.backend.empty((self.num_tokens,), np.int32)
            indices = token_to_req_indices(self.query_start_loc, self.num_reqs, self.max_query_len, out)
            object.__setattr__(self, "_token_to_req", indices)
        return self._token_to_req


class ModelSpecificMetadata(Protocol):
    """What a model adds to the metadata of its own layers; both methods are called in every step."""

    def get_extra_common_attn_kwargs(self, kv_cache_group_id: int, num_reqs: int) -> Mapping[str, Any]:
        """Return fields for one cache group: `is_prefilling` replaces the batch's, others are kept as extras."""

    def get_extra_attn_kwargs(self, builder: Any, num_reqs: int) -> Mapping[str, Any]:
        """Return keyword arguments for a builder's `build`; not asked while a graph is captured."""


@dataclass(frozen=True, slots=True, eq=False)
class MetadataOptions:
    """How a step's metadata is built.

    Parameters
    ----------
    causal : bool, ndarray or mapping of int to bool
        Whether a token sees no later ones: for all, bool [N] by row, or by cache group (True for groups left out).
    for_cudagraph_capture : bool
        Whether the launches of a dummy step are being captured.
    ubatch_idx : int
        Micro-batch whose builders are used.
    fast_prefill : FastPrefillBatchMetadata, optional
        The tokens that logits are wanted of; None where the fast path does not apply.
    model_specific : ModelSpecificMetadata, optional
        What the model adds.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value of a wrong type, or a negative micro-batch or group.

    Examples
    --------
    >>> MetadataOptions(causal={1: False}).ubatch_idx
    0
    """

    causal: Any = True
    for_cudagraph_capture: bool = False
    ubatch_idx: int = 0
    fast_prefill: FastPrefillBatchMetadata | None = None
    model_specific: ModelSpecificMetadata | None = None

    def __post_init__(self) -> None:
        check_bool("for_cudagraph_capture", self.for_cudagraph_capture)
        check_int("ubatch_idx", self.ubatch_idx, 0)
        _check_causal(self.causal)
        if self.fast_prefill is not None and not isinstance(self.fast_prefill, FastPrefillBatchMetadata):
            got, do = type(self.fast_prefill).__name__, "pass what FastPrefillHelper.prepare returned"
            refuse("fast_prefill", "a FastPrefillBatchMetadata or None", got, do, ArgumentTypeError)
        for method in ("get_extra_common_attn_kwargs", "get_extra_attn_kwargs"):
            if self.model_specific is not None and not callable(getattr(self.model_specific, method, None)):
                got = type(self.model_specific).__name__
                refuse("model_specific", f"an object with {method}", got, "add the method", ArgumentTypeError)


def _check_causal(causal: Any) -> None:
    if isinstance(causal, (bool, np.bool_)):
        return
    if not isinstance(causal, Mapping):
        check_array("causal", causal, 1, "b")
        return
    for group_id, flag in causal.items():
        check_int("causal", group_id, 0)
        check_bool(f"causal[{group_id}]", flag)
