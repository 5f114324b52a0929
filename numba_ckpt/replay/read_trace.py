"""A trace file in, its requests out: plain or gzip, in the formats of `line_formats`."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import IO, Any, cast

from numba_ckpt.errors import TraceError
from numba_ckpt.replay.line_formats import LineFormat, format_of
from numba_ckpt.replay.trace import TraceRequest

__all__ = ["Trace", "read_trace"]

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(slots=True)
class Trace:
    """The requests of a trace, and what was left out.

    Attributes
    ----------
    requests : list of TraceRequest
        In the order of the file.
    problems : list of TraceError
        One for each line that was skipped.
    """

    requests: list[TraceRequest] = field(default_factory=list)
    problems: list[TraceError] = field(default_factory=list)


def read_trace(path: str | PathLike[str], limit: int | None = None, skip_bad: bool = False) -> Trace:
    """Read a trace of JSON lines, in Mooncake's or the run-length Claude Code format, plain or compressed by gzip.

    Parameters
    ----------
    path : path-like
        The file. Blank lines are skipped, keys that the format does not know ignored.
    limit : int, optional
        Read at most this many requests; later lines are not looked at.
    skip_bad : bool
        Leave bad lines out instead of raising; the rest of a torn gzip file counts as one bad line.

    Returns
    -------
    Trace
        Requests in the order of the file.

    Raises
    ------
    TraceError
        The file cannot be opened or holds no request, or a line is torn, lacks a key, has a value of a wrong type, an
        earlier time than the line before (for Claude Code: of its session), a length out of range or the wrong number
        of ids. Carries file and line number.
    MissingDependencyError
        msgspec is not installed.
    """
    name, trace = str(path), Trace()
    try:
        with open(path, "rb") as file:
            _read(name, file, trace, limit, skip_bad)
    except OSError as cause:
        raise TraceError(name, 0, f"expected a readable trace file, got {cause.strerror or cause}") from cause
    if not trace.requests:
        got = f"none but {len(trace.problems)} bad lines ({trace.problems[0]})" if trace.problems else "none"
        raise TraceError(name, 0, f"expected at least one request, got {got}; give a JSON-lines file that is not empty")
    return trace


def _read(name: str, file: Any, trace: Trace, limit: int | None, skip_bad: bool) -> None:
    lines = _numbered(name, _unpacked(file))
    line_format: LineFormat | None = None
    while limit is None or len(trace.requests) < limit:
        try:
            number, line = next(lines)
            line_format = line_format or format_of(name, line)
            trace.requests.append(line_format.request(number, line))
        except StopIteration:
            break
        except TraceError as problem:
            if not skip_bad:
                raise
            trace.problems.append(problem)
            # A first line that tells nothing must not decide for the rest.
            line_format = line_format if trace.requests else None


def _unpacked(file: Any) -> IO[bytes]:
    is_packed = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
    return cast("IO[bytes]", gzip.open(file)) if is_packed else cast("IO[bytes]", file)


def _numbered(name: str, lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers; the first without a byte order mark."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if text.strip():
                yield number, text
    except (EOFError, zlib.error, gzip.BadGzipFile) as cause:
        problem = f"expected a whole gzip file, got one that ends or breaks here ({cause}); fetch it again"
        raise TraceError(name, number + 1, problem) from cause
