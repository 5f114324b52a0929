"""Prefix-reuse traces: one request a line, its prompt given as the identities of its token blocks."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import Any

import numpy as np

from numba_ckpt._check import INT32_MAX
from numba_ckpt.errors import TraceError
from numba_ckpt.replay._extras import require
from numba_ckpt.rules import ceil_div

__all__ = ["TOKENS_PER_ID", "TraceRequest", "read_mooncake"]

TOKENS_PER_ID = 512
"""Tokens that one ``hash_ids`` entry of a Mooncake trace stands for; the last entry covers the remainder."""
_GZIP_MAGIC = b"\x1f\x8b"


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
        int64 [ceil(num_input_tokens / TOKENS_PER_ID)]. Equal ids stand for equal tokens, so prompts share exactly the
        tokens of their common leading ids.
    """

    timestamp: float
    num_input_tokens: int
    num_output_tokens: int
    block_ids: np.ndarray


def read_mooncake(path: str | PathLike[str], limit: int | None = None) -> list[TraceRequest]:
    """Read a trace in Mooncake's JSON-lines format.

    Parameters
    ----------
    path : path-like
        The file. Each line is an object with ``timestamp`` (milliseconds), ``input_length`` and ``output_length``
        (tokens) and ``hash_ids`` (one per 512 tokens of the prompt). Blank lines are skipped, other keys ignored.
    limit : int, optional
        Read at most this many requests; later lines are not looked at.

    Returns
    -------
    list of TraceRequest
        In the order of the file.

    Raises
    ------
    TraceError
        The file cannot be opened or holds no request, or a line is torn, lacks a key, has a value of a wrong type, a
        length out of range or the wrong number of ids. Carries file and line number.
    MissingDependencyError
        msgspec is not installed.
    """
    name = str(path)
    try:
        with open(path, "rb") as lines:
            requests = list(islice(_requests(name, lines), limit))
    except OSError as cause:
        raise TraceError(name, 0, f"expected a readable trace file, got {cause.strerror or cause}") from cause
    if not requests:
        raise TraceError(name, 0, "expected at least one request, got none; give a JSON-lines file that is not empty")
    return requests


def _requests(path: str, lines: Any) -> Iterator[TraceRequest]:
    msgspec = require("msgspec", "reading traces")
    decode = msgspec.json.Decoder(_line_type(msgspec)).decode
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = _checked_start(path, line)
        if not line.strip():
            continue
        try:
            fields = decode(line)
        except msgspec.DecodeError as cause:
            problem = f"expected one JSON object of a request, got {_excerpt(line)} ({cause})"
            raise TraceError(path, number, problem) from cause
        yield _checked(path, number, *fields)


def _checked_start(path: str, line: bytes) -> bytes:
    """Return the first line without a byte order mark; refuse a compressed file, of which no line says anything."""
    if line.startswith(_GZIP_MAGIC):
        raise TraceError(path, 0, "expected lines of JSON, got a gzip file; unpack it first: gunzip --keep FILE")
    return line.removeprefix(codecs.BOM_UTF8)


def _line_type(msgspec: Any) -> Any:
    """Return the decoder's record: a struct made at run time, since msgspec may be missing at import."""
    fields = [("timestamp", float), ("input_length", int), ("output_length", int), ("hash_ids", list[int])]
    return msgspec.defstruct("MooncakeLine", fields, namespace={"__iter__": _values})


def _values(line: Any) -> Iterator[Any]:
    return iter((line.timestamp, line.input_length, line.output_length, line.hash_ids))


def _excerpt(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _checked(path: str, number: int, timestamp: float, num_input: int, num_output: int, ids: list[int]) -> TraceRequest:
    """Make the record of one line, or say what is wrong with it."""
    if not timestamp >= 0:
        raise TraceError(path, number, f"timestamp: expected at least 0, got {timestamp}; a torn or foreign line?")
    for key, value, low in (("input_length", num_input, 1), ("output_length", num_output, 0)):
        if not low <= value <= INT32_MAX:
            limit = f"at least {low}" if value < low else f"at most {INT32_MAX}"
            raise TraceError(path, number, f"{key}: expected {limit}, got {value}; a torn or foreign line?")
    num_ids = ceil_div(num_input, TOKENS_PER_ID)
    if len(ids) != num_ids:
        expected = f"{num_ids} entries for input_length {num_input} ({TOKENS_PER_ID} tokens each)"
        raise TraceError(path, number, f"hash_ids: expected {expected}, got {len(ids)}; the line is torn or foreign")
    try:
        return TraceRequest(timestamp, num_input, num_output, np.array(ids, np.int64))
    except OverflowError as cause:
        wide = max(ids, key=abs)
        raise TraceError(path, number, f"hash_ids: expected ids of 64 bits, got {wide}; renumber them") from cause
