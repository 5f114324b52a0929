"""A replay's result as a table and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numba_ckpt import __version__
from numba_ckpt.replay._extras import require
from numba_ckpt.replay.console import make_console, make_table
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.result import ReplayCounts, ReplayResult

__all__ = ["print_report", "report_record", "write_json"]

_FORMAT = 1
_STAGE_LABELS = {
    "lookup": "lookup and split",
    "plan": "plan",
    "gather": "gather",
    "export": "export",
    "running": "running states",
    "model": "the layer",
    "verify": "verification",
}


def print_report(result: ReplayResult, title: str) -> None:
    """Print the result as a table to standard output."""
    table = make_table(title, what="left", value="right", note="left")
    for section in (_work(result), _states(result), _times(result)):
        for row in section:
            table.add_row(*row)
        table.add_section()
    make_console().print(table)


def _work(result: ReplayResult) -> Iterator[tuple[str, str, str]]:
    counts = result.counts
    yield "requests", _count(counts.requests), f"{_count(counts.resumed_requests)} resumed from a stored state"
    yield "prompt tokens", _count(counts.input_tokens), ""
    yield "hit tokens", _count(counts.hit_tokens), f"{counts.hit_share:.2%} of the prompt tokens"
    yield "prefill passes", _count(counts.prefills), f"in {_count(counts.steps)} batched steps"
    share = counts.passes_saved / max(counts.prefills + counts.passes_saved, 1)
    yield "passes saved", _count(counts.passes_saved), f"{share:.1%} less than cutting in two"
    yield "verified requests", _count(counts.verified_requests), _verification(counts)


def _verification(counts: ReplayCounts) -> str:
    if counts.verified_requests:
        return "equal to a cold run to the bit"
    return "ask for some with --verify" if counts.resumed_requests else "none resumed, so none to compare"


def _states(result: ReplayResult) -> Iterator[tuple[str, str, str]]:
    counts = result.counts
    yield "checkpoints written", _count(counts.checkpoints_written), "from the middle of a pass"
    yield "running states written", _count(counts.running_states_written), "from the end of a pass"
    duplicates = f", {_count(counts.duplicate_states)} were there already" if counts.duplicate_states else ""
    yield "states published", _count(counts.states_published), f"{_count(counts.states_evicted)} evicted{duplicates}"
    yield "bytes moved", _bytes(counts.bytes_moved), "windows and recurrent states"


def _times(result: ReplayResult) -> Iterator[tuple[str, str, str]]:
    for stage, nanoseconds in result.times.nanoseconds.items():
        per_step = f"{nanoseconds / 1e3 / max(result.counts.steps, 1):,.1f} µs a step" if stage != "verify" else ""
        yield f"time in {_STAGE_LABELS[stage]}", _seconds(nanoseconds), per_step
    yield "time in all", _seconds(result.elapsed_ns), f"{_seconds(result.preparation_ns)} more to compile"


def _count(number: int) -> str:
    return f"{number:,}"


def _bytes(number: int) -> str:
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if unit != "B" else f"{number} B"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:,.3f} s"


def report_record(result: ReplayResult, trace: str, options: ReplayOptions) -> dict[str, Any]:
    """Return the result as plain dicts, lists and numbers, with a unit in every name that needs one.

    ``format`` rises whenever a name is taken away or changes its meaning; new names may come at any time.
    """
    chosen = asdict(options)
    del chosen["geometry"]["params"]
    return {
        "format": _FORMAT,
        "numba_ckpt": __version__,
        "trace": trace,
        "options": chosen,
        "counts": asdict(result.counts) | {"hit_share": result.counts.hit_share},
        "seconds": {stage: nanoseconds / 1e9 for stage, nanoseconds in result.times.nanoseconds.items()}
        | {"total": result.elapsed_ns / 1e9, "preparation": result.preparation_ns / 1e9},
    }


def write_json(path: str, record: dict[str, Any]) -> None:
    """Write a record as indented JSON."""
    msgspec = require("msgspec", "--json")
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
