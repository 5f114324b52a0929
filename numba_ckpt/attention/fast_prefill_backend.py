"""A backend as the layers see it that are eligible for fast prefill: its batch is the logits' tokens alone."""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from numba_ckpt._array import Array
from numba_ckpt._check import refuse
from numba_ckpt.attention.backend import AttentionBackend, MetadataBuilder
from numba_ckpt.attention.fast_prefill import FastPrefillBatchMetadata
from numba_ckpt.kernels.logits_start_loc import logits_start_loc

if TYPE_CHECKING:
    from numba_ckpt.attention.common_metadata import CommonAttentionMetadata

__all__ = ["FastPrefillMetadata", "fast_prefill_backend", "logits_batch"]


@dataclass(frozen=True, eq=False, slots=True)
class FastPrefillMetadata:
    """What an eligible layer reads in a step on the fast path.

    Attributes
    ----------
    inner : object
        The backend's own metadata, of a batch of the logits' tokens.
    logits_indices_padded : ndarray or cupy.ndarray
        int32, the tokens to take from the hidden states.
    num_logits_indices : int
        How many of them are no padding.
    """

    inner: Any
    logits_indices_padded: Array
    num_logits_indices: int


def _checked_logits(common: "CommonAttentionMetadata") -> tuple[FastPrefillBatchMetadata, np.ndarray]:
    """Return a step's logits and where each row's begin, refusing those of another batch."""
    batch, step = common.batch, common.fast_prefill
    if step is None:
        refuse("common.fast_prefill", "what FastPrefillHelper.prepare returned", "None", "build for all tokens instead")
    if step.cu_num_logits_cpu.size > batch.num_reqs + 1:
        expected = f"logits of at most {batch.num_reqs} requests"
        refuse("common.fast_prefill", expected, step.cu_num_logits_cpu.size - 1, "prepare it for this step's batch")
    num_logits = step.num_logits_indices
    if step.logits_indices_padded.shape[0] < num_logits or batch.num_tokens < num_logits:
        got = f"{num_logits} of {step.logits_indices_padded.shape[0]} staged"
        refuse("common.fast_prefill", f"logits of at most {batch.num_tokens} tokens", got, "prepare it for this batch")
    # Rows that pad the batch have no logits.
    starts = np.full(batch.num_reqs + 1, num_logits, batch.query_start_loc_cpu.dtype)
    starts[: step.cu_num_logits_cpu.size] = step.cu_num_logits_cpu
    if batch.backend.is_host:
        _check_last_tokens(step.logits_indices_padded[:num_logits], starts, batch.query_start_loc_cpu)
    return step, starts


def logits_batch(common: "CommonAttentionMetadata") -> "CommonAttentionMetadata":
    """Return a step's metadata as if its queries were the logits' tokens alone.

    Sequence lengths stay what they are: the caches were filled by the layers before. A request's logits are those of
    its last tokens.

    Parameters
    ----------
    common : CommonAttentionMetadata
        With `fast_prefill`.

    Returns
    -------
    CommonAttentionMetadata
        Its own batch, without positions.

    Raises
    ------
    ArgumentError
        A step off the fast path, or prepared for more requests than the batch has rows, or for more tokens; on a host
        also logits that are not a request's last tokens.

    Notes
    -----
    One launch on a device, no synchronisation: how many logits a request has is known on the host.
    """
    batch = common.batch
    step, starts = _checked_logits(common)
    num_logits = step.num_logits_indices
    reduced = replace(
        batch,
        num_tokens=num_logits,
        query_start_loc=logits_start_loc(batch.query_start_loc, step.logits_indices_padded[:num_logits]),
        query_start_loc_cpu=starts,
        max_query_len=step.max_logits_per_req,
        positions=None,
        token_to_req_buffer=None,
    )
    return common._replace(batch=reduced, fast_prefill=None)


def _check_last_tokens(logits_indices: np.ndarray, starts: np.ndarray, query_start_loc: np.ndarray) -> None:
    """Refuse logits that are not those of each request's last tokens: a causal mask would be of other tokens."""
    last_tokens = np.arange(logits_indices.size) + np.repeat(query_start_loc[1:] - starts[1:], np.diff(starts))
    wrong = np.flatnonzero(logits_indices != last_tokens)
    if wrong.size:
        logit = int(wrong[0])
        expected = f"each request's last tokens: token {last_tokens[logit]} for logit {logit}"
        do = "leave the fast path in steps that want other logits"
        refuse("common.fast_prefill", expected, int(logits_indices[logit]), do)


@functools.cache
def fast_prefill_backend(backend: type[AttentionBackend]) -> type[AttentionBackend]:
    """Return a backend whose builders build for the logits' tokens in steps on the fast path.

    There they return `FastPrefillMetadata`; in other steps what the backend's own builder returns.

    Parameters
    ----------
    backend : type of AttentionBackend
        The layer's own.

    Returns
    -------
    type of AttentionBackend
        The same class for the same backend, named after it.

    Examples
    --------
    >>> from numba_ckpt.attention import NoOpBackend
    >>> fast_prefill_backend(NoOpBackend).name
    'FastPrefillNoOpBackend'
    """
    inner = backend.builder_class()

    def check(self: Any, common: Any, **extra: Any) -> None:
        if common.fast_prefill is not None:
            _checked_logits(common)
        inner.check(self, common, **extra)

    def build(self: Any, common: Any, common_prefix_len: int = 0, **extra: Any) -> Any:
        step = common.fast_prefill
        if step is None:
            return inner.build(self, common, common_prefix_len, **extra)
        metadata = inner.build(self, logits_batch(common), common_prefix_len, **extra)
        return FastPrefillMetadata(metadata, step.logits_indices_padded, step.num_logits_indices)

    # Metadata of all tokens must never be taken over for a batch of logits.
    fields = {"check": check, "build": build, "supports_update_block_table": False, "__doc__": inner.__doc__}
    builder: type[MetadataBuilder] = type(f"FastPrefill{inner.__name__}", (inner,), fields)
    fields = {"builder_class": classmethod(lambda cls: builder), "name": f"FastPrefill{backend.name}"}
    return type(f"FastPrefill{backend.__name__}", (backend,), fields)
