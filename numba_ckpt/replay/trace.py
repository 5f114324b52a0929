"""Requests of a prefix-reuse trace: prompts as identities of token blocks, and the tokens that these stand for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_ckpt._jit import host_loop, inlined_loop, uint64

__all__ = ["TOKENS_PER_ID", "TraceRequest", "output_tokens", "prompt_tokens", "reuse_ceiling"]

TOKENS_PER_ID = 512
"""Tokens that one ``hash_ids`` entry of a Mooncake trace stands for; the last entry covers the remainder."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceRequest:
    """One request of a trace.

    Attributes
    ----------
    timestamp : float
        Arrival, in milliseconds from the start of the trace.
    num_input_tokens : int
        Tokens of the prompt, at least 1.
    num_output_tokens : int
        Tokens generated after it, at least 0.
    block_ids : ndarray
        int64 [ceil(num_input_tokens / tokens_per_id)]. Equal ids stand for equal tokens, so prompts share exactly the
        tokens of their common leading ids.
    tokens_per_id : int
        Tokens that an id stands for; the last one covers the remainder.
    session : int or None
        A request begins when the one before it in its session is done; None if that is not known.
    """

    timestamp: float
    num_input_tokens: int
    num_output_tokens: int
    block_ids: np.ndarray
    tokens_per_id: int = TOKENS_PER_ID
    session: int | None = None


def prompt_tokens(request: TraceRequest) -> np.ndarray:
    """Return token ids for a prompt: int32 [num_input_tokens], a function of block id and place in the block.

    Examples
    --------
    >>> first, second = TraceRequest(0.0, 900, 0, np.array([5, 7])), TraceRequest(0.0, 700, 0, np.array([5, 9]))
    >>> same = prompt_tokens(first)[:700] == prompt_tokens(second)
    >>> bool(same[:512].all()), bool(same[512:].any())
    (True, False)
    """
    tokens = np.empty(request.num_input_tokens, np.int32)
    _fill_prompt(request.block_ids, request.tokens_per_id, tokens)
    return tokens


def output_tokens(number: int, num_tokens: int) -> np.ndarray:
    """Return token ids for the outputs of request `number`, int32 [num_tokens]: shared with no other request."""
    tokens = np.empty(num_tokens, np.int32)
    _fill_block(uint64(number) ^ uint64(_OUTPUTS), tokens)
    return tokens


def reuse_ceiling(requests: Sequence[TraceRequest]) -> np.ndarray:
    """Tokens of each prompt that earlier prompts began with: what a cache that keeps everything could skip.

    Returns
    -------
    ndarray
        int64 [N], in whole ids, and at most the prompt less one token.
    """
    starts = np.concatenate(([0], np.cumsum([request.block_ids.size for request in requests], dtype=np.int64)))
    chains = np.empty(starts[-1], np.uint64)
    for request, start, end in zip(requests, starts, starts[1:], strict=False):
        _chain(request.block_ids, uint64(request.tokens_per_id), chains[start:end])
    _, first, inverse = np.unique(chains, return_index=True, return_inverse=True)
    shared = np.add.reduceat(first[inverse] < np.repeat(starts[:-1], np.diff(starts)), starts[:-1], dtype=np.int64)
    sizes, lengths = (
        np.array([getattr(request, name) for request in requests], np.int64)
        for name in ("tokens_per_id", "num_input_tokens")
    )
    return np.minimum(shared * sizes, lengths - 1)


_OUTPUTS = 0x5851F42D4C957F2D


@inlined_loop
def _mix(bits: Any) -> Any:
    """Mix 64 bits by the golden-ratio step and the finaliser of splitmix64."""
    bits = (bits + uint64(1)) * uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> uint64(27))) * uint64(0x94D049BB133111EB)
    return bits ^ (bits >> uint64(31))


@host_loop
def _fill_block(name: Any, tokens: np.ndarray) -> None:
    seed = _mix(name)
    for index in range(tokens.size):
        tokens[index] = _mix(seed + uint64(index)) >> uint64(33)


@host_loop
def _fill_prompt(block_ids: np.ndarray, tokens_per_id: int, tokens: np.ndarray) -> None:
    for block in range(block_ids.size):
        _fill_block(uint64(block_ids[block]), tokens[block * tokens_per_id : (block + 1) * tokens_per_id])


@host_loop
def _chain(block_ids: np.ndarray, start: Any, chains: np.ndarray) -> None:
    """Name each prefix of whole blocks by 64 bits; enough to count with, not to serve by."""
    bits = start
    for block in range(block_ids.size):
        bits = _mix(bits ^ _mix(uint64(block_ids[block])))
        chains[block] = bits
