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
from numba_ckpt.replay.series import Sample

__all__ = ["print_report", "report_record", "write_json"]

_FORMAT = 3
_STAGE_LABELS = {
    "tokens": "making tokens",
    "hash": "hashing",
    "lookup": "look-up",
    "split": "chunk split",
    "reserve": "reserve",
    "plan": "plan",
    "gather": "gather",
    "model": "the layer",
    "export": "export",
    "running": "running states",
    "commit": "commit",
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
    skipped = f", {_count(counts.skipped_lines)} bad lines skipped" if counts.skipped_lines else ""
    yield "requests", _count(counts.requests), f"{_count(counts.resumed_requests)} resumed from a stored state{skipped}"
    yield "prompt tokens", _count(counts.input_tokens), ""
    ceiling = f"{counts.hit_share:.2%}; the trace's ceiling is {counts.ceiling_share:.2%}"
    yield "hit tokens", _count(counts.hit_tokens), ceiling
    yield from _losses(counts)
    if counts.output_tokens:
        yield "output tokens", _count(counts.output_tokens), ""
    yield "prefill passes", _count(counts.prefills), f"in {_count(counts.steps)} batched steps"
    share = counts.passes_saved / max(counts.prefills + counts.passes_saved, 1)
    yield "passes saved", _count(counts.passes_saved), f"{share:.1%} less than cutting in two"
    if counts.preemptions:
        yield "preemptions", _count(counts.preemptions), f"{_count(counts.recomputed_tokens)} tokens computed again"
    yield "verified requests", _count(counts.verified_requests), _verification(counts)


def _losses(counts: ReplayCounts) -> Iterator[tuple[str, str, str]]:
    for lost, cause in (
        (counts.lost_states, "attention longer than state"),
        (counts.lost_attention, "attention evicted or not yet written"),
        (counts.lost_to_boundaries, "beyond the last boundary of a hit"),
    ):
        yield "lost tokens", _count(lost), f"{lost / max(counts.input_tokens, 1):.2%}: {cause}"


def _verification(counts: ReplayCounts) -> str:
    if counts.verified_requests:
        return "equal to a cold run to the bit"
    return "ask for some with --verify" if counts.resumed_requests else "none resumed, so none to compare"


def _states(result: ReplayResult) -> Iterator[tuple[str, str, str]]:
    counts, samples = result.counts, result.series.samples
    yield "checkpoints written", _count(counts.checkpoints_written), "from the middle of a pass"
    yield "running states written", _count(counts.running_states_written), "from the end of a pass"
    yield "blocks published", _count(counts.blocks_published), f"{_count(counts.blocks_evicted)} evicted"
    held = max((sample.held_blocks for sample in samples), default=0)
    most = max((sample.held_blocks + sample.idle_blocks for sample in samples), default=0)
    yield "blocks in use at most", _count(most), f"{_count(held)} held at a time"
    states = [sample.states for sample in samples] or [0]
    yield "states resident at most", _count(max(states)), f"{_count(round(sum(states) / len(states)))} on average"
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
        "counts": asdict(result.counts)
        | {"hit_share": result.counts.hit_share, "ceiling_share": result.counts.ceiling_share},
        "cache": {name: value for name, value in asdict(result.cache).items() if not name.startswith("_")},
        "seconds": {stage: nanoseconds / 1e9 for stage, nanoseconds in result.times.nanoseconds.items()}
        | {"total": result.elapsed_ns / 1e9, "preparation": result.preparation_ns / 1e9},
        "series": {
            name: list(values)
            for name, values in zip(Sample._fields, zip(*result.series.samples, strict=True), strict=True)
        },
    }


def write_json(path: str, record: dict[str, Any]) -> None:
    """Write a record as indented JSON."""
    msgspec = require("msgspec", "--json")
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
