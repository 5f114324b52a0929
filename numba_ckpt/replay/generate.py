"""A trace for those who have none: multi-turn conversations under shared system prompts, from a seed."""

from dataclasses import dataclass
from itertools import count

import numpy as np

from numba_ckpt._check import check_int
from numba_ckpt.replay.trace import TOKENS_PER_ID, TraceRequest
from numba_ckpt.rules import ceil_div

__all__ = ["generate_trace"]

_SYSTEM_PROMPTS = 6
_MEAN_TURNS = 4.0
_MAX_INPUT_TOKENS = 120_000
_SESSION_GAP_MS = 900.0
_THINK_TIME_MS = 25_000.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request before its blocks are named."""

    timestamp: float
    session: int
    system_prompt: int
    num_shared_tokens: int
    num_input_tokens: int
    num_output_tokens: int


def generate_trace(num_requests: int = 2000, seed: int = 0) -> list[TraceRequest]:
    """Make a trace of conversations; the same seed gives the same trace.

    Parameters
    ----------
    num_requests : int
        Requests to make, at least 1.
    seed : int
        Seed of the random generator, at least 0.

    Returns
    -------
    list of TraceRequest
        Sorted by arrival.

    Notes
    -----
    Conversations start at random times under one of a few system prompts, some far more popular than others. A turn's
    prompt is the previous prompt, its answer, and a new message; message and answer lengths are log-normal, so that a
    few prompts are very long. As in recorded traces, a block that a prompt only begins has an id of its own, and the
    same block once full has another.

    Examples
    --------
    >>> trace = generate_trace(3)
    >>> [request.block_ids.size == -(-request.num_input_tokens // 512) for request in trace]
    [True, True, True]
    """
    num_requests = check_int("num_requests", num_requests, 1)
    rng = np.random.default_rng(check_int("seed", seed, 0))
    turns: list[_Turn] = []
    lengths = _lognormal(rng, 1800, 0.9, size=_SYSTEM_PROMPTS)
    start = 0.0
    # Later conversations could only arrive after the requests that are kept: enough of them settles the order.
    while len(turns) < 3 * num_requests or start < sorted(turn.timestamp for turn in turns)[num_requests]:
        start += float(rng.exponential(_SESSION_GAP_MS))
        turns.extend(_conversation(rng, len(turns), start, lengths))
    turns.sort(key=lambda turn: turn.timestamp)
    return _name_blocks(turns[:num_requests])


def _lognormal(rng: np.random.Generator, median: float, sigma: float, size: int = 1) -> np.ndarray:
    return np.maximum(rng.lognormal(np.log(median), sigma, size), 1.0).astype(np.int64)


def _conversation(rng: np.random.Generator, session: int, start: float, system_lengths: np.ndarray) -> list[_Turn]:
    # The k-th system prompt is used in proportion to 1 / k.
    weights = 1.0 / np.arange(1, _SYSTEM_PROMPTS + 1)
    system_prompt = int(rng.choice(_SYSTEM_PROMPTS, p=weights / weights.sum()))
    shared = int(system_lengths[system_prompt])
    num_tokens = shared + int(_lognormal(rng, 2500, 1.1)[0])
    turns: list[_Turn] = []
    for _ in range(int(rng.geometric(1.0 / _MEAN_TURNS))):
        if num_tokens > _MAX_INPUT_TOKENS:
            break
        num_output = int(_lognormal(rng, 250, 0.8)[0])
        turns.append(_Turn(float(round(start)), session, system_prompt, shared, num_tokens, num_output))
        num_tokens += num_output + int(_lognormal(rng, 400, 1.3)[0])
        start += 20.0 * num_output + float(rng.exponential(_THINK_TIME_MS))
    return turns


def _name_blocks(turns: list[_Turn]) -> list[TraceRequest]:
    """Give each distinct block a number, in the order of first appearance."""
    names: dict[tuple[str, int, int], int] = {}
    fresh = count()
    return [
        TraceRequest(
            turn.timestamp,
            turn.num_input_tokens,
            turn.num_output_tokens,
            np.array([_name(names, fresh, turn, block) for block in range(_num_blocks(turn))], np.int64),
            session=turn.session,
        )
        for turn in turns
    ]


def _num_blocks(turn: _Turn) -> int:
    return ceil_div(turn.num_input_tokens, TOKENS_PER_ID)


def _name(names: dict[tuple[str, int, int], int], fresh: "count[int]", turn: _Turn, block: int) -> int:
    end = (block + 1) * TOKENS_PER_ID
    if end > turn.num_input_tokens:
        return next(fresh)
    shared = end <= turn.num_shared_tokens
    key = ("system", turn.system_prompt, block) if shared else ("session", turn.session, block)
    if key not in names:
        names[key] = next(fresh)
    return names[key]
