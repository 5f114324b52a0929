"""Fast prefill: layers that only read another layer's cache compute only the tokens that logits are wanted of.

The layers that write caches come first; the rest of the model is a tail whose hidden states nobody reads except where
a logit is asked for::

    layer      0   1   2   3 | 4   5   6   7
    cache      own own own own| of 2, 3, 2, 3         prefill: all tokens | the logits' tokens
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from numba_ckpt._array import Array
from numba_ckpt._check import check_array, check_bool, check_int, check_integers, check_writable, refuse
from numba_ckpt.attention.backend import AttentionLayer
from numba_ckpt.attention.check_layers import check_layer_names
from numba_ckpt.cache import EngineConfig
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels.stage_logits_indices import stage_logits_indices

__all__ = [
    "DispatchTokens",
    "FastPrefillBatchMetadata",
    "FastPrefillHelper",
    "get_kv_sharing_fast_prefill_eligible_layers",
]


def get_kv_sharing_fast_prefill_eligible_layers(
    layers: Mapping[str, AttentionLayer], config: EngineConfig, draft_layer_names: Collection[str] | None = None
) -> frozenset[str]:
    """Return the layers at the model's end that all share another layer's cache.

    Parameters
    ----------
    layers : mapping of str to AttentionLayer
        In forward order.
    config : EngineConfig
        Nothing is eligible unless ``cache.kv_sharing_fast_prefill``.
    draft_layer_names : collection of str, optional
        Layers of a draft model, which come after the target's; they are passed over.

    Returns
    -------
    frozenset of str
        Names of eligible layers.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A single name in place of a collection.
    """
    if not config.cache.kv_sharing_fast_prefill:
        return frozenset()
    drafts = check_layer_names("draft_layer_names", draft_layer_names or (), None)
    eligible = set()
    for name in reversed(list(layers)):
        if name in drafts:
            continue
        if not layers[name].kv_sharing_target_layer_name:
            break
        eligible.add(name)
    return frozenset(eligible)


@dataclass(frozen=True, eq=False, slots=True)
class FastPrefillBatchMetadata:
    """What the eligible layers need to know of a step.

    Attributes
    ----------
    logits_indices_padded : ndarray or cupy.ndarray
        int32, token of the batch for each logit; padded to a captured size by repeating the last one.
    num_logits_indices : int
        Entries before the padding.
    max_logits_per_req : int
        Most logits of a request.
    cu_num_logits_cpu : ndarray
        int64 [N + 1], where each request's logits begin; on the host.
    """

    logits_indices_padded: Array
    num_logits_indices: int
    max_logits_per_req: int
    cu_num_logits_cpu: np.ndarray


class DispatchTokens(Protocol):
    """Says which captured size a batch is padded to."""

    def __call__(self, *, num_reqs: int, num_tokens: int, num_active_loras: int) -> int:
        """Return the padded number of tokens; `num_tokens` itself where nothing was captured."""


class FastPrefillHelper:
    """Decides in each step whether the fast path is taken, and stages the logits' tokens for it.

    Parameters
    ----------
    dispatch : callable
        Takes ``num_reqs``, ``num_tokens`` and ``num_active_loras`` by name and returns the number of tokens to run,
        at least ``num_tokens``.
    buffer : ndarray or cupy.ndarray
        int32 [most tokens of a step], kept and overwritten in each step; captured graphs read it at its address.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The buffer is not a writable, contiguous int32 vector.

    Examples
    --------
    >>> import numpy as np
    >>> helper = FastPrefillHelper(lambda num_tokens, **_: -(-num_tokens // 4) * 4, np.zeros(16, np.int32))
    >>> step = helper.prepare(np.array([8, 9, 30]), np.array([0, 2, 3]), has_prefill=True)
    >>> step.logits_indices_padded.tolist(), step.num_logits_indices, step.max_logits_per_req
    ([8, 9, 30, 30], 3, 2)
    """

    def __init__(self, dispatch: DispatchTokens | Callable[..., int], buffer: Array) -> None:
        if not callable(dispatch):
            do = "pass a function of num_reqs, num_tokens and num_active_loras"
            refuse("dispatch", "a callable", type(dispatch).__name__, do, ArgumentTypeError)
        check_array("buffer", buffer, 1, "i")
        if buffer.dtype != np.int32 or not buffer.flags.c_contiguous or not buffer.size:
            refuse("buffer", "contiguous int32 [max_num_tokens]", f"{buffer.dtype} {buffer.shape}", "allocate it so")
        check_writable("buffer", buffer)
        self.dispatch = dispatch
        self.buffer = buffer

    def prepare(
        self,
        logits_indices: Array | None,
        cu_num_logits_cpu: np.ndarray,
        has_prefill: bool,
        full_graph: bool = False,
        num_ubatches: int = 1,
        num_active_loras: int = 0,
    ) -> FastPrefillBatchMetadata | None:
        """Stage a step's logits, if the fast path applies.

        Parameters
        ----------
        logits_indices : ndarray or cupy.ndarray, optional
            Integers [logits], token of the batch for each logit; None in a dummy run.
        cu_num_logits_cpu : ndarray
            Integers [N + 1], where each request's logits begin, from 0.
        has_prefill : bool
            Whether a request is in its prefill.
        full_graph : bool
            Whether the whole step is one captured graph, whose shapes are fixed.
        num_ubatches : int
            Micro-batches of the step.
        num_active_loras : int
            Handed on to `dispatch`.

        Returns
        -------
        FastPrefillBatchMetadata or None
            None without a prefill, in a full graph, with several micro-batches, or without logits.

        Raises
        ------
        ArgumentError, ArgumentTypeError, BackendMixError
            Counts that contradict each other, more logits than the buffer holds, a token outside [0, 2^31) (seen on a
            host), or a dispatch to fewer tokens than there are. Nothing is staged then.

        Notes
        -----
        One launch on a device, no synchronisation.
        """
        applies = check_bool("has_prefill", has_prefill) and not check_bool("full_graph", full_graph)
        if check_int("num_ubatches", num_ubatches, 1) > 1 or not applies:
            return None
        if logits_indices is None:
            return None
        check_array("logits_indices", logits_indices, 1, "iu")
        if logits_indices.size == 0:
            return None
        counts = self._check_logits(logits_indices, cu_num_logits_cpu)
        num_logits = logits_indices.size
        num_padded = self._dispatch(num_reqs=counts.size, num_tokens=num_logits, num_active_loras=num_active_loras)
        stage_logits_indices(logits_indices, self.buffer)
        cu_num_logits = np.concatenate(([0], np.cumsum(counts)))
        return FastPrefillBatchMetadata(self.buffer[:num_padded], num_logits, int(counts.max()), cu_num_logits)

    def _check_logits(self, logits_indices: Array, cu_num_logits_cpu: np.ndarray) -> np.ndarray:
        """Return the number of logits of each request."""
        counts: np.ndarray = np.diff(check_integers("cu_num_logits_cpu", cu_num_logits_cpu).astype(np.int64))
        num_logits = logits_indices.size
        if not counts.size or cu_num_logits_cpu[0] != 0 or counts.min() < 0 or counts.sum() != num_logits:
            expected = f"counts that rise from 0 to the {num_logits} logits"
            got = np.asarray(cu_num_logits_cpu).tolist()
            refuse("cu_num_logits_cpu", expected, got, "sum up the logits of the requests in order")
        if num_logits > self.buffer.size:
            refuse("logits_indices", f"at most {self.buffer.size}", num_logits, "enlarge the buffer")
        return counts

    def _dispatch(self, *, num_reqs: int, num_tokens: int, num_active_loras: int) -> int:
        got = self.dispatch(num_reqs=num_reqs, num_tokens=num_tokens, num_active_loras=num_active_loras)
        # Captured sizes may go beyond the buffer; a step never does.
        return min(check_int("dispatch()", got, num_tokens), int(self.buffer.size))
