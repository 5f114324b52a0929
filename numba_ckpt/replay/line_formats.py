"""The lines of a trace file, in the formats that are read: JSON to a request, or what is wrong with the line."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from numba_ckpt._check import INT32_MAX
from numba_ckpt.errors import TraceError
from numba_ckpt.replay._extras import require
from numba_ckpt.replay.trace import TOKENS_PER_ID, TraceRequest
from numba_ckpt.rules import ceil_div

__all__ = ["ClaudeCodeLines", "LineFormat", "MooncakeLines", "format_of"]

_SESSION_BITS = 32
_CLAUDE_CODE_TOKENS_PER_ID = 64


class LineFormat(Protocol):
    """Makes requests of a file's lines, and remembers what it needs of the lines before."""

    def request(self, number: int, line: bytes) -> TraceRequest:
        """Return the request of line `number`, or raise TraceError."""


def format_of(path: str, line: bytes) -> LineFormat:
    """Return the format that a file's first line is in: Claude Code if it has runs ``h``, else Mooncake."""
    msgspec = require("msgspec", "reading traces")
    try:
        keys = msgspec.json.decode(line)
    except msgspec.DecodeError:
        keys = {}
    is_runs = isinstance(keys, dict) and "h" in keys and "hash_ids" not in keys
    return ClaudeCodeLines(path) if is_runs else MooncakeLines(path)


class MooncakeLines:
    """Mooncake's format: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` (one per 512 tokens).

    Parameters
    ----------
    path : str
        The file, for messages.
    """

    FIELDS = (("timestamp", float), ("input_length", int), ("output_length", int), ("hash_ids", list[int]))

    def __init__(self, path: str) -> None:
        self._path = path
        self._decoder = _Decoder(path, "MooncakeLine", self.FIELDS)
        self._last = 0.0

    def request(self, number: int, line: bytes) -> TraceRequest:
        """Return the request of line `number`, or raise TraceError."""
        timestamp, num_input, num_output, ids = self._decoder.values(number, line)
        where = self._path, number
        _check_time(where, "timestamp", timestamp, self._last)
        _check_length(where, "input_length", num_input, 1)
        _check_length(where, "output_length", num_output, 0)
        if len(ids) != (num_ids := ceil_div(num_input, TOKENS_PER_ID)):
            expected = f"{num_ids} entries for input_length {num_input} ({TOKENS_PER_ID} tokens each)"
            raise TraceError(*where, f"hash_ids: expected {expected}, got {len(ids)}; the line is torn or foreign")
        try:
            request = TraceRequest(timestamp, num_input, num_output, np.array(ids, np.int64))
        except OverflowError as cause:
            wide = max(ids, key=abs)
            raise TraceError(*where, f"hash_ids: expected ids of 64 bits, got {wide}; renumber them") from cause
        self._last = timestamp
        return request


class ClaudeCodeLines:
    """Runs of session-local ids: ``s`` session, ``t`` (s), ``in``, ``out``, ``h`` runs ``[first_id, count]``.

    Sub-agents, if there are any (``a``), take their turns beside the session's. An id stands for 64 tokens of its
    session. The last ``in`` mod 64 tokens of a prompt have no id: they are its own.

    Parameters
    ----------
    path : str
        The file, for messages.
    """

    FIELDS = (("s", str), ("t", float), ("in_", int), ("out", int), ("h", list[tuple[int, int]]))
    OPTIONAL = (("a", Any, None),)

    def __init__(self, path: str) -> None:
        self._path = path
        self._decoder = _Decoder(path, "ClaudeCodeLine", self.FIELDS, self.OPTIONAL)
        self._sessions: dict[str, int] = {}
        self._agents: dict[tuple[str, str], int] = {}
        self._last: dict[str, float] = {}

    def request(self, number: int, line: bytes) -> TraceRequest:
        """Return the request of line `number`, or raise TraceError."""
        session, time, num_input, num_output, runs, agent = self._decoder.values(number, line)
        where = self._path, number
        _check_time(where, "t", time, self._last.get(session, 0.0))
        _check_length(where, "in", num_input, 1)
        _check_length(where, "out", num_output, 0)
        self._check_runs(number, num_input, runs)
        base = self._sessions.setdefault(session, len(self._sessions)) << _SESSION_BITS
        ids = [np.arange(first, first + count, dtype=np.int64) + base for first, count in runs]
        if num_input % _CLAUDE_CODE_TOKENS_PER_ID:
            ids.append(np.array([-number], np.int64))
        self._last[session] = time
        turns = self._agents.setdefault((session, str(agent)), len(self._agents))
        all_ids = np.concatenate(ids)
        return TraceRequest(1000 * time, num_input, num_output, all_ids, _CLAUDE_CODE_TOKENS_PER_ID, turns)

    def _check_runs(self, number: int, num_input: int, runs: Sequence[tuple[int, int]]) -> None:
        for first, count in runs:
            if not (first >= 0 and count >= 1 and first + count <= 1 << _SESSION_BITS):
                expected = f"runs [first_id, count] of ids in [0, 2^{_SESSION_BITS})"
                raise TraceError(self._path, number, f"h: expected {expected}, got [{first}, {count}]; renumber them")
        num_ids, got = num_input // _CLAUDE_CODE_TOKENS_PER_ID, sum(count for _, count in runs)
        if got != num_ids:
            expected = f"runs of {num_ids} ids for in {num_input} ({_CLAUDE_CODE_TOKENS_PER_ID} tokens each)"
            raise TraceError(self._path, number, f"h: expected {expected}, got {got}; the line is torn or foreign")


class _Decoder:
    """Decodes lines into the values of a struct made at run time, since msgspec may be missing at import."""

    def __init__(
        self, path: str, name: str, fields: Sequence[tuple[str, Any]], optional: Sequence[tuple[str, Any, Any]] = ()
    ) -> None:
        self._path, self._names = path, [entry[0] for entry in (*fields, *optional)]
        self._msgspec = require("msgspec", "reading traces")
        rename = {name: name.removesuffix("_") for name in self._names}
        self._decode = self._msgspec.json.Decoder(
            self._msgspec.defstruct(name, (*fields, *optional), rename=rename)
        ).decode

    def values(self, number: int, line: bytes) -> list[Any]:
        try:
            struct = self._decode(line)
        except self._msgspec.DecodeError as cause:
            problem = f"expected one JSON object of a request, got {_excerpt(line)} ({cause})"
            raise TraceError(self._path, number, problem) from cause
        return [getattr(struct, name) for name in self._names]


def _excerpt(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _check_time(where: tuple[str, int], key: str, time: float, last: float) -> None:
    if not time >= 0:
        raise TraceError(*where, f"{key}: expected at least 0, got {time}; a torn or foreign line?")
    if time < last:
        expected = f"at least {last}, the time of an earlier line"
        raise TraceError(*where, f"{key}: expected {expected}, got {time}; sort the lines by time")


def _check_length(where: tuple[str, int], key: str, value: int, low: int) -> None:
    if not low <= value <= INT32_MAX:
        limit = f"at least {low}" if value < low else f"at most {INT32_MAX}"
        raise TraceError(*where, f"{key}: expected {limit}, got {value}; a torn or foreign line?")
