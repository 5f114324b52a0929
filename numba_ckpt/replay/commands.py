"""What the commands of the command line do, once their arguments are parsed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns

from numba_ckpt._check import check_int, refuse
from numba_ckpt.replay._extras import require
from numba_ckpt.replay.console import make_console
from numba_ckpt.replay.engine import ReplayEngine
from numba_ckpt.replay.generate import generate_trace
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.plot import check_picture_name, choose_timeline, write_timeline
from numba_ckpt.replay.report import print_report, report_record, write_json
from numba_ckpt.replay.result import ReplayResult
from numba_ckpt.replay.trace import TraceRequest, read_mooncake

__all__ = ["ReplayJob", "replay"]


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A replay as the command line asks for it.

    Attributes
    ----------
    options : ReplayOptions
        How to replay.
    trace : str or None
        Mooncake trace file; None generates a trace.
    limit : int or None
        Requests to read, or to generate.
    json_path, plot_path : str or None
        Where to write the result and the picture.
    plot_request : int or None
        Request to draw; None picks one.
    """

    options: ReplayOptions
    trace: str | None = None
    limit: int | None = None
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
    requests, name = _load(job)
    if job.plot_request is not None:
        check_int("plot_request", job.plot_request, 0, len(requests) - 1)
    preparation = _compile(job.options)
    with _progress(sum(request.num_input_tokens for request in requests)) as advance:
        result = ReplayEngine(requests, job.options).run(advance)
    result.preparation_ns = preparation
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


def _load(job: ReplayJob) -> tuple[Sequence[TraceRequest], str]:
    if job.limit is not None:
        check_int("limit", job.limit, 1)
    if job.trace is not None:
        return read_mooncake(job.trace, job.limit), Path(job.trace).name
    requests = (
        generate_trace(seed=job.options.seed) if job.limit is None else generate_trace(job.limit, job.options.seed)
    )
    return requests, f"a generated trace (seed {job.options.seed})"


def _compile(options: ReplayOptions) -> int:
    """Replay a few requests, so that compiling is over when the clocks start; return the nanoseconds it took."""
    start = perf_counter_ns()
    few = replace(options, num_blocks=max(1024, 3 * options.max_rows + 1), verify_sample=1)
    ReplayEngine(generate_trace(16, options.seed), few).run()
    return perf_counter_ns() - start


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
        write_timeline(job.plot_path, timeline, job.options.geometry.state_block_size)
