"""Causal attention over a plain key-value store per request: the other half of a hybrid stack."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_ckpt._check import check_int, refuse
from numba_ckpt._jit import host_loop
from numba_ckpt.models._varlen import check_floats, check_starts

__all__ = ["KvStore", "causal_attention"]


class KvStore:
    """Keys and values of one request, in token order; NaN where nothing was stored.

    Parameters
    ----------
    capacity : int
        Tokens that fit.
    heads, head_dim : int
        Shape of a token's keys and of its values.

    Examples
    --------
    >>> store = KvStore(4, heads=1, head_dim=2)
    >>> store.append(np.ones((3, 1, 2), np.float32), np.ones((3, 1, 2), np.float32))
    >>> store.fork(2).num_tokens
    2
    """

    def __init__(self, capacity: int, heads: int, head_dim: int) -> None:
        shape = tuple(check_int(name, size, 1) for name, size in zip(_AXES, (capacity, heads, head_dim), strict=True))
        self.keys, self.values = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        self.num_tokens = 0

    def append(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Store the next tokens, float32 [tokens, heads, head_dim] each."""
        keys = check_floats("keys", keys, (None, *self.keys.shape[1:]))
        values = check_floats("values", values, keys.shape)
        end = self.num_tokens + keys.shape[0]
        self.check_room(end)
        self.keys[self.num_tokens : end], self.values[self.num_tokens : end] = keys, values
        self.num_tokens = end

    def check_room(self, num_tokens: int) -> None:
        """Refuse a sequence of `num_tokens` if it does not fit."""
        if num_tokens > self.keys.shape[0]:
            refuse("kv_store", f"at most {self.keys.shape[0]} tokens", num_tokens, "make a larger store")

    def fork(self, num_tokens: int) -> "KvStore":
        """Return a store of its own for a request that shares the first `num_tokens` tokens."""
        shared = check_int("num_tokens", num_tokens, 0, self.num_tokens)
        store = KvStore(*self.keys.shape)
        store.append(self.keys[:shared], self.values[:shared])
        return store


_AXES = ("capacity", "heads", "head_dim")


@host_loop
def _attend_host(query, keys, values, start, outputs):  # type: ignore[no-untyped-def]
    """Attend from one row's tokens, of which the first has `start` tokens before it; sums run in token order."""
    num_tokens, heads, head_dim = query.shape
    scale = np.float32(1) / np.sqrt(np.float32(head_dim))
    weights = np.empty(start + num_tokens, np.float32)
    for token in range(num_tokens):
        for head in range(heads):
            top = np.float32(-np.inf)
            for other in range(start + token + 1):
                score = np.float32(0)
                for i in range(head_dim):
                    score += query[token, head, i] * keys[other, head, i]
                weights[other] = score * scale
                # Not max(): a NaN score has to reach the outputs.
                top = weights[other] if not weights[other] <= top else top
            total = np.float32(0)
            outputs[token, head] = np.float32(0)
            for other in range(start + token + 1):
                weight = math.exp(weights[other] - top)
                total += weight
                for i in range(head_dim):
                    outputs[token, head, i] += weight * values[other, head, i]
            for i in range(head_dim):
                outputs[token, head, i] /= total


def causal_attention(query: Any, query_start_loc: Any, stores: Sequence[KvStore]) -> np.ndarray:
    """Attend from each token of a batch to its row's tokens up to itself.

    Parameters
    ----------
    query : ndarray
        float32 [T, heads, head_dim], the rows one after the other.
    query_start_loc : sequence of int or ndarray
        [N+1], first token of each row and T at the end.
    stores : sequence of KvStore
        One per row; ends with the row's tokens of this step.

    Returns
    -------
    ndarray
        float32 [T, heads, head_dim].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Shapes or dtypes do not fit, or a store lacks tokens of its row.

    Examples
    --------
    >>> store, zeros = KvStore(2, 1, 1), np.zeros((2, 1, 1), np.float32)
    >>> store.append(zeros, np.float32([4, 8]).reshape(2, 1, 1))
    >>> causal_attention(zeros, [0, 2], [store]).ravel().tolist()
    [4.0, 6.0]
    """
    query = check_floats("query", query, (None, None, None))
    starts = check_starts(query_start_loc, query.shape[0])
    if len(stores) != starts.size - 1:
        refuse("stores", f"{starts.size - 1} stores, one per row", len(stores), "pass the batch's stores in its order")
    outputs = np.empty_like(query)
    for row, store in enumerate(stores):
        tokens = slice(starts[row], starts[row + 1])
        before = store.num_tokens - int(starts[row + 1] - starts[row])
        if before < 0 or store.keys.shape[1:] != query.shape[1:]:
            got = f"{store.num_tokens} tokens of shape {store.keys.shape[1:]}"
            refuse(f"stores[{row}]", "this step's keys and values", got, "append them first")
        _attend_host(query[tokens], store.keys, store.values, before, outputs[tokens])
    return outputs  # type: ignore[no-any-return]
