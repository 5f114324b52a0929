"""The command line: ``numba-ckpt replay``, ``plan``, ``layout`` and ``doctor``. Argument parsing only."""

import io
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

from numba_ckpt import __version__
from numba_ckpt._check import refuse
from numba_ckpt.errors import LedgerError, NumbaCkptError, VerificationError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.prefix_cache import DENSE, PROVEN, Retention
from numba_ckpt.replay.commands import ReplayJob, replay
from numba_ckpt.replay.doctor import print_diagnosis
from numba_ckpt.replay.layout_report import layout
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.plan_table import print_plan
from numba_ckpt.replay.pool_sizes import MODELS, blocks_in_gib, blocks_of_tokens

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
        0; 1 when a verified state or its entry in the ledger differs; 2 when arguments, a trace or an installation do
        not do.
    """
    _print_whatever_the_encoding()
    parsed = _parser().parse_args(arguments)
    try:
        parsed.run(parsed)
    except (LedgerError, VerificationError) as error:
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
        ("layout", _add_layout, "print where a model's caches lie, and draw them", _LAYOUT),
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
  numba-ckpt replay conversation_trace.jsonl --pool-tokens 4000000 --json result.json --plot replay.png

Serve the requests of a trace from a hybrid prefix cache over one small recurrent layer: look up the
longest prefix that attention and states can serve, prefill the rest in chunks, and store a state
wherever the rules allow one. Without TRACE, a trace is generated from the seed."""
_PLAN = """\
  numba-ckpt plan --seq-lens 5000,900 --query-lens 4992,388 --hash-block 8 --state-block 2048 --alignment 8

Print for each row of a batch where its prefill leaves a checkpoint: tokens from the query's start
(offset), from the sequence's start (boundary), and block-table column; or every rule against one."""
_LAYOUT = """\
  numba-ckpt layout docs/examples/hybrid.json --plot memory.png

Plan the caches of a model's layers: which of them share a block table, which share bytes, how large
pages are, how each layer addresses its own, and how many requests fit. Nothing is allocated."""
_DOCTOR = """\
Print the versions of what is installed, the CUDA driver and its devices, and the command that
installs what is missing. Always exits with 0."""


def _add_replay(parser: ArgumentParser) -> None:
    parser.set_defaults(run=_run_replay)
    add = parser.add_argument
    add("trace", metavar="TRACE", nargs="?", help="JSON lines, Mooncake's or run-length Claude Code; .gz will do")
    add("--limit", type=int, metavar="N", help="replay the first N requests, or generate N")
    add("--skip-bad", action="store_true", help="leave bad lines of the trace out, and say which")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where states live (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of layer, tokens, sample and generated trace")
    add("--verify", action="store_true", help="recompute a sample of resumed requests and compare to the bit")
    add("--verify-sample", type=int, metavar="N", help="requests to recompute, implies --verify (default: 64)")
    add("--json", metavar="FILE", help="write the result as JSON")
    add("--plot", metavar="FILE.png", help="draw one request, and hit share and pool over time")
    add("--plot-request", type=int, metavar="N", help="which request to draw (default: one that shows much)")
    _add_engine(parser)
    _add_pool(parser)
    _add_geometry(parser, state_block=512)


def _add_engine(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("engine").add_argument
    arrivals = "requests arrive as soon as there is room, or at their time stamps (default: %(default)s)"
    add("--arrivals", choices=("closed", "trace"), default="closed", help=arrivals)
    speed = "how fast steps are on the clock that arrivals follow (default: %(default)s)"
    add("--tokens-per-second", type=int, default=50_000, metavar="N", help=speed)
    add("--step-ms", type=int, default=10, metavar="N", help="what a step takes besides (default: %(default)s)")
    add("--budget", type=int, default=8192, metavar="N", help="tokens of a step at most (default: %(default)s)")
    add("--max-running", type=int, default=16, metavar="N", help="requests at a time (default: %(default)s)")
    add("--long-prefill", type=int, metavar="N", help="tokens of a step for one prefill (default: the budget)")
    decode = "output tokens of a request in a step; 0 leaves outputs out (default: %(default)s)"
    add("--decode", type=int, default=0, metavar="N", help=decode)


def _add_pool(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("cache")
    size = group.add_mutually_exclusive_group().add_argument
    size("--blocks", type=int, metavar="N", help="blocks of the pool (default: 65536)")
    size("--pool-tokens", type=int, metavar="N", help="size of the pool, as tokens of attention")
    size("--pool-gib", type=float, metavar="GIB", help="size of the pool, as memory of --model")
    add = group.add_argument
    add("--model", choices=tuple(MODELS), help="whose layers --pool-gib is for")
    retention = "keep every state, those of proven reuse, or also multiples of N tokens (default: %(default)s)"
    add("--retention", type=_retention, default="proven", metavar="dense|proven|N", help=retention)
    junction = "stop a prefill where an earlier prompt went another way (default: %(default)s)"
    add("--junction", choices=("exact", "block", "none"), default="exact", help=junction)
    add("--attention-block", type=int, metavar="N", help="tokens of an attention block (default: the hash block)")


def _add_plan(parser: ArgumentParser) -> None:
    parser.set_defaults(run=_run_plan)
    add = parser.add_argument
    add("--seq-lens", type=_ints, required=True, metavar="N,N,...", help="tokens of each sequence after the step")
    add("--query-lens", type=_ints, metavar="N,N,...", help="tokens computed in it (default: all of each sequence)")
    _add_geometry(parser, state_block=None)


def _add_layout(parser: ArgumentParser) -> None:
    parser.set_defaults(run=lambda parsed: layout(parsed.config, parsed.plot))
    parser.add_argument("config", metavar="CONFIG.json", help="engine, layers and pool size")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the memory map")


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
    add("--hit-alignment", type=int, metavar="N", help="unit of a hit's length (default: the smallest that will do)")
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
    geometry = _geometry(parsed)
    options = ReplayOptions(
        geometry,
        parsed.device,
        num_blocks=_num_blocks(parsed),
        budget_tokens=parsed.budget,
        max_running=parsed.max_running,
        verify_sample=parsed.verify_sample if parsed.verify_sample is not None else 64 * parsed.verify,
        seed=parsed.seed,
        attention_block=parsed.attention_block,
        retention=parsed.retention,
        junction=parsed.junction,
        long_prefill_tokens=parsed.long_prefill,
        decode_tokens=parsed.decode,
        arrivals=parsed.arrivals,
        tokens_per_second=parsed.tokens_per_second,
        step_ms=parsed.step_ms,
    )
    outputs = parsed.json, parsed.plot, parsed.plot_request
    replay(ReplayJob(options, parsed.trace, parsed.limit, parsed.skip_bad, *outputs))


def _num_blocks(parsed: Namespace) -> int:
    attention_block = parsed.hash_block if parsed.attention_block is None else parsed.attention_block
    if (parsed.pool_gib is None) != (parsed.model is None):
        refuse("pool_gib", "both --pool-gib and --model, or neither", "one of them", "add the other")
    if parsed.pool_gib is not None:
        return blocks_in_gib(parsed.pool_gib, parsed.model, attention_block)
    if parsed.pool_tokens is not None:
        return blocks_of_tokens(parsed.pool_tokens, attention_block)
    return 65_536 if parsed.blocks is None else int(parsed.blocks)


def _run_plan(parsed: Namespace) -> None:
    print_plan(parsed.seq_lens, parsed.query_lens or parsed.seq_lens, _geometry(parsed))


def _geometry(parsed: Namespace) -> CheckpointGeometry:
    state_block = parsed.hash_block if parsed.state_block is None else parsed.state_block
    # Attention blocks are shared whole: no hit ends inside of one.
    smallest = getattr(parsed, "attention_block", None) or parsed.hash_block
    hit_alignment = smallest if parsed.hit_alignment is None else parsed.hit_alignment
    return CheckpointGeometry(
        parsed.hash_block, state_block, hit_alignment, parsed.alignment, parsed.eagle, parsed.lookahead
    )


def _ints(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected integers separated by commas, got {text!r}") from None


def _retention(text: str) -> Retention:
    if text.lower() in ("dense", "proven"):
        return {"dense": DENSE, "proven": PROVEN}[text.lower()]
    try:
        return Retention(int(text))
    except ValueError:
        raise ArgumentTypeError(f"expected dense, proven or a number of tokens, got {text!r}") from None


def _int_or_none(text: str) -> int | None:
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected an integer or none, got {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
