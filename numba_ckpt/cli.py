"""The command line: ``numba-ckpt replay``, ``plan`` and ``doctor``. Argument parsing only."""

import io
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

from numba_ckpt import __version__
from numba_ckpt.errors import NumbaCkptError, VerificationError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.replay.commands import ReplayJob, replay
from numba_ckpt.replay.doctor import print_diagnosis
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.plan_table import print_plan

__all__ = ["main"]

_EXIT_DIFFERENT, _EXIT_REFUSED = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; taken from the process by default.

    Returns
    -------
    int
        0; 1 when a verified state differs; 2 when arguments, a trace or an installation do not do.
    """
    _print_whatever_the_encoding()
    parsed = _parser().parse_args(arguments)
    try:
        parsed.run(parsed)
    except VerificationError as error:
        return _fail(error, _EXIT_DIFFERENT)
    except (NumbaCkptError, OSError) as error:
        return _fail(error, _EXIT_REFUSED)
    except KeyboardInterrupt:
        return 130
    return 0


def _print_whatever_the_encoding() -> None:
    # A report is worth more with a question mark in it than as a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _fail(error: Exception, code: int) -> int:
    print(f"numba-ckpt: error: {error}", file=sys.stderr)
    return code


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="numba-ckpt", description="Recurrent-state checkpoints for hybrid LLM serving.")
    parser.add_argument("--version", action="version", version=f"numba-ckpt {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, add, summary, description in (
        ("replay", _add_replay, "replay a prefix-reuse trace, and check what the cache served", _REPLAY),
        ("plan", _add_plan, "print the checkpoints of a batch, or why there are none", _PLAN),
        ("doctor", _add_doctor, "say what is installed, and what CUDA still needs", _DOCTOR),
    ):
        add(
            commands.add_parser(
                name, help=summary, description=description, formatter_class=RawDescriptionHelpFormatter
            )
        )
    return parser


_REPLAY = """\
  numba-ckpt replay --verify
  numba-ckpt replay conversation_trace.jsonl --limit 1000 --json result.json --plot timeline.png

Serve the requests of a trace through a prefix index over one small recurrent layer: look up the
longest stored prefix state, prefill the rest in chunks, and plan, gather and export a checkpoint
wherever the rules allow one. TRACE is a file of JSON lines in Mooncake's format; without it, a
trace is generated from the seed."""
_PLAN = """\
  numba-ckpt plan --seq-lens 5000,900 --query-lens 4992,388 --hash-block 8 --state-block 2048 --alignment 8

Print for each row of a batch where its prefill leaves a checkpoint: tokens from the query's start
(offset), from the sequence's start (boundary), and block-table column; or every rule against one."""
_DOCTOR = """\
Print the versions of what is installed, the CUDA driver and its devices, and the command that
installs what is missing. Always exits with 0."""


def _add_replay(parser: ArgumentParser) -> None:
    parser.set_defaults(run=_run_replay)
    add = parser.add_argument
    add("trace", metavar="TRACE", nargs="?", help="JSON lines with timestamp, input_length, output_length, hash_ids")
    add("--limit", type=int, metavar="N", help="replay the first N requests, or generate N")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where states live (default: %(default)s)")
    add("--blocks", type=int, default=65_536, metavar="N", help="state blocks of the pool (default: %(default)s)")
    add("--budget", type=int, default=8192, metavar="N", help="tokens of a step at most (default: %(default)s)")
    add("--max-rows", type=int, default=16, metavar="N", help="requests of a step at most (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of layer, tokens, sample and generated trace")
    add("--verify", action="store_true", help="recompute a sample of resumed requests and compare to the bit")
    add("--verify-sample", type=int, metavar="N", help="requests to recompute, implies --verify (default: 64)")
    add("--json", metavar="FILE", help="write the result as JSON")
    add("--plot", metavar="FILE.png", help="draw the timeline of one request")
    add("--plot-request", type=int, metavar="N", help="which request to draw (default: one that shows much)")
    _add_geometry(parser, state_block=512)


def _add_plan(parser: ArgumentParser) -> None:
    parser.set_defaults(run=_run_plan)
    add = parser.add_argument
    add("--seq-lens", type=_ints, required=True, metavar="N,N,...", help="tokens of each sequence after the step")
    add("--query-lens", type=_ints, metavar="N,N,...", help="tokens computed in it (default: all of each sequence)")
    _add_geometry(parser, state_block=None)


def _add_doctor(parser: ArgumentParser) -> None:
    parser.set_defaults(run=lambda parsed: print_diagnosis())


def _add_geometry(parser: ArgumentParser, state_block: int | None) -> None:
    add = parser.add_argument_group("geometry, in tokens").add_argument
    add("--hash-block", type=int, default=512, metavar="N", help="tokens of a prefix hash (default: %(default)s)")
    add(
        "--state-block",
        type=int,
        default=state_block,
        metavar="N",
        help=f"tokens of a column of state blocks (default: {state_block or 'the hash block'})",
    )
    add("--hit-alignment", type=int, metavar="N", help="unit of a hit's length (default: the hash block)")
    add(
        "--alignment",
        type=_int_or_none,
        default=16,
        metavar="N|none",
        help="the backend exports states at multiples of N from the query's start (default: %(default)s)",
    )
    add("--eagle", action="store_true", help="drop the last unit of every hit, for an EAGLE draft head")
    add("--lookahead", type=int, default=0, metavar="N", help="tokens that a boundary's hash needs beyond it")


def _run_replay(parsed: Namespace) -> None:
    sample = parsed.verify_sample if parsed.verify_sample is not None else 64 * parsed.verify
    options = ReplayOptions(
        _geometry(parsed), parsed.device, parsed.blocks, parsed.budget, parsed.max_rows, sample, parsed.seed
    )
    replay(ReplayJob(options, parsed.trace, parsed.limit, parsed.json, parsed.plot, parsed.plot_request))


def _run_plan(parsed: Namespace) -> None:
    print_plan(parsed.seq_lens, parsed.query_lens or parsed.seq_lens, _geometry(parsed))


def _geometry(parsed: Namespace) -> CheckpointGeometry:
    state_block, hit_alignment = (
        parsed.hash_block if size is None else size for size in (parsed.state_block, parsed.hit_alignment)
    )
    return CheckpointGeometry(
        parsed.hash_block, state_block, hit_alignment, parsed.alignment, parsed.eagle, parsed.lookahead
    )


def _ints(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected integers separated by commas, got {text!r}") from None


def _int_or_none(text: str) -> int | None:
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected an integer or none, got {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
