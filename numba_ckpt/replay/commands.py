"""What the commands of the command line do, once their arguments are parsed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from warnings import catch_warnings, simplefilter

from numba_ckpt._check import check_int, refuse
from numba_ckpt.prefix_cache import CacheWarning
from numba_ckpt.replay._extras import require
from numba_ckpt.replay.console import make_console
from numba_ckpt.replay.engine import ReplayEngine
from numba_ckpt.replay.generate import generate_trace
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.plot import check_picture_name, choose_timeline, write_picture
from numba_ckpt.replay.read_trace import Trace, read_trace
from numba_ckpt.replay.report import print_report, report_record, write_json
from numba_ckpt.replay.result import ReplayResult

__all__ = ["ReplayJob", "replay"]

_SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A replay as the command line asks for it.

    Attributes
    ----------
    options : ReplayOptions
        How to replay.
    trace : str or None
        Trace file; None generates a trace.
    limit : int or None
        Requests to read, or to generate.
    skip_bad : bool
        Leave bad lines of the trace out.
    json_path, plot_path : str or None
        Where to write the result and the picture.
    plot_request : int or None
        Request to draw; None picks one.
    """

    options: ReplayOptions
    trace: str | None = None
    limit: int | None = None
    skip_bad: bool = False
    json_path: str | None = None
    plot_path: str | None = None
    plot_request: int | None = None


def replay(job: ReplayJob) -> None:
    """Run a replay, with a progress bar, and report it.

    Raises
    ------
    NumbaCkptError
        What the parts raise: `TraceError`, `VerificationError`, `MissingDependencyError`, `ArgumentError`.
    """
    _check_outputs(job)
    trace, name = _load(job)
    requests = trace.requests
    if job.plot_request is not None:
        check_int("plot_request", job.plot_request, 0, len(requests) - 1)
    engine = ReplayEngine(requests, job.options)
    preparation = _compile(job.options)
    with _warnings_said(), _progress(sum(request.num_input_tokens for request in requests)) as advance:
        result = engine.run(advance)
    result.preparation_ns, result.counts.skipped_lines = preparation, len(trace.problems)
    print_report(result, f"Replay of {name} on {job.options.device}")
    _write_outputs(job, result, name)


def _check_outputs(job: ReplayJob) -> None:
    """Find out before the work, not after it, that its result cannot be kept."""
    require("rich", "this command")
    for module, path in (("msgspec", job.json_path), ("matplotlib", job.plot_path)):
        if path is not None:
            require(module, "this command")
            _check_output(path)
    if job.plot_path is not None:
        check_picture_name(job.plot_path)
    elif job.plot_request is not None:
        refuse("plot_request", "a file to draw into", "none", "add --plot FILE.png")


def _check_output(path: str) -> None:
    if not Path(path).parent.is_dir():
        refuse("output", "a file in an existing directory", path, "make the directory first")
    if Path(path).is_dir():
        refuse("output", "a file", f"the directory {path}", "name a file in it")


def _load(job: ReplayJob) -> tuple[Trace, str]:
    if job.limit is not None:
        check_int("limit", job.limit, 1)
    if job.trace is not None:
        trace = read_trace(job.trace, job.limit, job.skip_bad)
        for problem in trace.problems[:_SHOWN_PROBLEMS]:
            print(f"numba-ckpt: skipped {problem}", file=sys.stderr)
        return trace, Path(job.trace).name
    requests = (
        generate_trace(seed=job.options.seed) if job.limit is None else generate_trace(job.limit, job.options.seed)
    )
    return Trace(requests), f"a generated trace (seed {job.options.seed})"


def _compile(options: ReplayOptions) -> int:
    """Replay a few requests, so that compiling is over when the clocks start; return the nanoseconds it took."""
    start = perf_counter_ns()
    requests = generate_trace(16, options.seed)
    enough = sum(options.blocks_for(request.num_input_tokens + request.num_output_tokens) for request in requests)
    with catch_warnings():
        simplefilter("ignore", CacheWarning)
        ReplayEngine(requests, replace(options, num_blocks=enough, verify_sample=1)).run()
    return perf_counter_ns() - start


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Say the cache's warnings as the command says things."""
    with catch_warnings(record=True) as caught:
        simplefilter("always", CacheWarning)
        yield
    for warning in caught:
        print(f"numba-ckpt: warning: {warning.message}", file=sys.stderr)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if that is a terminal; yield what advances it."""
    progress = require("rich.progress", "the progress bar")
    console = make_console(stderr=True)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("replaying", total=total)
        yield lambda num_tokens: bar.advance(task, num_tokens)


def _write_outputs(job: ReplayJob, result: ReplayResult, name: str) -> None:
    if job.json_path is not None:
        write_json(job.json_path, report_record(result, name, job.options))
    if job.plot_path is not None:
        timeline = choose_timeline(result.timelines, job.plot_request)
        write_picture(job.plot_path, timeline, result.series, job.options)
