"""The command as a user meets it: a process with arguments, output and an exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from numba_ckpt.cli import main

ROOT = Path(__file__).parents[2]
LINE = '{"timestamp": 0, "input_length": 1100, "output_length": 52, "hash_ids": [1, 2, 3]}\n'
PNG = b"\x89PNG\r\n\x1a\n"
ESCAPE = "\x1b"


def _run(*arguments: object, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{before}\nfrom numba_ckpt.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


def _refusal(*arguments: object, before: str = "") -> str:
    """Run a command that must be refused, and return what it says about that."""
    done = _run(*arguments, before=before)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_replay_reports_writes_and_draws(tmp_path):
    result, picture = tmp_path / "result.json", tmp_path / "timeline.png"
    done = _run("replay", "--limit", 60, "--verify-sample", 5, "--json", result, "--plot", picture)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert ESCAPE not in done.stdout
    for label in ("requests", "hit tokens", "passes saved", "checkpoints written", "bytes moved", "time in gather"):
        assert label in done.stdout
    record = json.loads(result.read_text())
    assert set(record) == {"format", "numba_ckpt", "trace", "options", "counts", "cache", "seconds", "series"}
    assert record["format"] == 3
    assert len({len(values) for values in record["series"].values()}) == 1
    assert record["series"]["input_tokens"][-1] == record["counts"]["input_tokens"]
    assert record["counts"]["requests"] == 60
    assert record["cache"]["checkpoints_written"] == record["counts"]["checkpoints_written"]
    assert record["counts"]["verified_requests"] == 5
    assert record["options"]["geometry"]["hash_block_size"] == 512
    stages = {"tokens", "hash", "lookup", "split", "reserve", "plan", "gather", "model", "export", "running"}
    stages |= {"commit", "verify"}
    assert set(record["seconds"]) == stages | {"total", "preparation"}
    assert picture.read_bytes().startswith(PNG)
    assert picture.stat().st_size > 10_000


def test_a_trace_and_a_geometry_can_be_given(tmp_path):
    trace, result = tmp_path / "trace.jsonl", tmp_path / "result.json"
    trace.write_text(2 * LINE)
    sizes = ("--hash-block", 16, "--state-block", 64, "--alignment", 16, "--eagle", "--max-running", 1, "--blocks", 128)
    done = _run("replay", trace, *sizes, "--verify", "--json", result)
    assert done.returncode == 0, done.stderr
    assert "Replay of trace.jsonl on cpu" in done.stdout
    counts = json.loads(result.read_text())["counts"]
    assert (counts["requests"], counts["verified_requests"]) == (2, 1)
    # The boundary before the last one of 1100 tokens, in units of 16.
    assert counts["hit_tokens"] == 1072


def test_prompts_that_can_never_be_hit_are_pointed_out_in_a_line(tmp_path):
    trace = tmp_path / "short.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 90, "output_length": 52, "hash_ids": [1]}\n' * 2)
    done = _run("replay", trace)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("numba-ckpt: warning: a prompt of 90 tokens can never be hit: ")
    assert done.stderr.count("\n") == 1


def test_a_wrong_state_ends_with_status_1():
    damage = """
from numba_ckpt.replay.state_store import StateStore
read = StateStore.read
StateStore.read = lambda store, blocks: tuple(array + 1 for array in read(store, blocks))
"""
    done = _run("replay", "--limit", 20, "--verify", before=damage)
    assert done.returncode == 1
    assert "numba-ckpt: error: request " in done.stderr
    assert "to equal the one computed from scratch" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_state_that_the_ledger_knows_otherwise_ends_with_status_1():
    damage = """
from numba_ckpt.replay.worker import Worker
write = Worker._write_entry
Worker._write_entry = lambda worker, active, block, position: write(worker, active, block, max(position - 512, 512))
"""
    done = _run("replay", "--limit", 20, "--verify", before=damage)
    assert done.returncode == 1
    assert "of group 1: expected the state after " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("replya",), "invalid choice: 'replya'"),
        (("replay", "--device", "tpu"), "argument --device: invalid choice: 'tpu'"),
        (("replay", "--limit", "many"), "argument --limit: invalid int value: 'many'"),
        (("replay", "--limit", 0), "limit: expected an integer in [1, 2147483647], got 0"),
        (("replay", "--budget", 0), "budget_tokens: expected an integer in [1, 2147483647], got 0"),
        (("replay", "--blocks", 5), "num_blocks: expected at least "),
        (("replay", "--blocks", 5, "--pool-tokens", 5), "argument --pool-tokens: not allowed with argument --blocks"),
        (("replay", "--blocks", 2**31 - 1), "num_blocks: expected a pool that fits into memory, got 2147483647"),
        (("replay", "--pool-tokens", 100), "pool_tokens: expected an integer in [512, 2147483647], got 100"),
        (("replay", "--pool-gib", 4), "pool_gib: expected both --pool-gib and --model, or neither, got one of them"),
        (
            ("replay", "--pool-gib", 0.01, "--model", "nemotron-h-8b"),
            "pool_gib: expected at least one block of 0.0951 GiB, got 0.01; give the pool more memory",
        ),
        (("replay", "--pool-gib", "nan", "--model", "nemotron-h-8b"), "pool_gib: expected at least one block"),
        (("replay", "--pool-tokens", 9, "--attention-block", 0), "attention_block: expected an integer in"),
        (("replay", "--retention", "some"), "argument --retention: expected dense, proven or a number of tokens"),
        (("replay", "--attention-block", 100), "attention_block: expected a multiple of the hash block 512, got 100"),
        (("replay", "--decode", -1), "decode_tokens: expected an integer in"),
        (("replay", "--hash-block", 0), "hash_block_size: expected an integer in [1, 2147483647], got 0"),
        (("replay", "--alignment", "some"), "argument --alignment: expected an integer or none, got 'some'"),
        (("replay", "--verify-sample", -1), "verify_sample: expected an integer in"),
        (
            ("replay", "--limit", 4, "--plot", "x.png", "--plot-request", 4),
            "plot_request: expected an integer in [0, 3], got 4",
        ),
        (
            ("replay", "--json", "nowhere/result.json"),
            "expected a file in an existing directory, got nowhere/result.json",
        ),
        (("replay", "nowhere.jsonl"), "nowhere.jsonl:0: expected a readable trace file"),
        (("plan", "--seq-lens", "5,x", "--state-block", 8), "expected integers separated by commas, got '5,x'"),
        (("plan", "--query-lens", "5"), "the following arguments are required: --seq-lens"),
        (("replay", "--plot", "timeline.doc"), "plot: expected a file name that ends in .png, .svg or .pdf"),
        (("replay", "--plot", "timeline"), "plot: expected a file name that ends in .png, .svg or .pdf"),
        (("replay", "--json", "."), "output: expected a file, got the directory ."),
        (("replay", "--plot-request", 3), "plot_request: expected a file to draw into, got none"),
        (("plan", "--seq-lens", "5", "--query-lens", "6", "--state-block", 8), "expected at most the row's seq_lens"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_does_not_do_is_refused_with_status_2(arguments, message, capsys):
    try:
        status = main(list(map(str, arguments)))
    except SystemExit as parsing:
        status = parsing.code
    output = capsys.readouterr()
    assert status == 2
    assert message in output.err
    assert output.out == ""


def test_a_torn_trace_names_file_and_line(tmp_path):
    trace = tmp_path / "torn.jsonl"
    trace.write_text(LINE + LINE[:40])
    assert f"{trace}:2: expected one JSON object of a request" in _refusal("replay", trace)


def test_the_good_part_of_a_bad_trace_can_be_replayed(tmp_path):
    trace = tmp_path / "torn.jsonl"
    trace.write_text(LINE + LINE[:40] + "\n" + LINE)
    done = _run("replay", trace, "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"numba-ckpt: skipped {trace}:2: expected one JSON object of a request")
    assert "1 bad lines skipped" in done.stdout


def test_every_policy_can_be_asked_for(tmp_path):
    result = tmp_path / "result.json"
    engine = ("--arrivals", "trace", "--decode", 16, "--max-running", 32, "--long-prefill", 2048, "--tokens-per-second")
    cache = ("--pool-tokens", 150_000, "--retention", 4096, "--junction", "block", "--attention-block", 512)
    done = _run("replay", "--limit", 60, *engine, 5000, *cache, "--verify", "--json", result)
    assert done.returncode == 0, done.stderr
    for label in ("output tokens", "preemptions", "attention evicted or not yet written"):
        assert label in done.stdout
    counts = json.loads(result.read_text())["counts"]
    assert counts["preemptions"] > 0
    assert counts["verified_requests"] > 0


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("rich", ("replay", "--limit", 2)),
        ("rich", ("plan", "--seq-lens", "5", "--state-block", 8)),
        ("matplotlib", ("replay", "--limit", 2, "--plot", "timeline.png")),
        ("msgspec", ("replay", "--limit", 2, "--json", "result.json")),
    ],
)
def test_a_missing_extra_is_named(module, arguments):
    stderr = _refusal(*arguments, before=f"import sys; sys.modules[{module!r}] = None")
    assert f"numba-ckpt: error: {module}: expected to be installed" in stderr
    assert 'pip install "numba-ckpt[cli]"' in stderr


def test_without_extras_doctor_and_version_work():
    blocked = "import sys; sys.modules.update(dict.fromkeys(('rich', 'matplotlib', 'msgspec')))"
    done = _run("doctor", before=blocked)
    assert done.returncode == 0
    assert "Python" in done.stdout
    assert _run("--version", before=blocked).stdout.startswith("numba-ckpt ")


def test_plan_prints_places_and_reasons():
    sizes = ("--hash-block", 8, "--state-block", 2048, "--hit-alignment", 8, "--alignment", 8)
    done = _run("plan", "--seq-lens", "5000,7", "--query-lens", "4992,7", *sizes)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 rows have a checkpoint" in done.stdout
    assert "column -1 is not beyond the initial state (column -1)" in done.stdout
    assert ESCAPE not in done.stdout


def test_plan_needs_no_state_block():
    done = _run("plan", "--seq-lens", "5000", "--query-lens", "4992", "--hash-block", 8, "--alignment", 8)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 rows have a checkpoint" in done.stdout


@pytest.mark.parametrize("arguments", [("plan", "--seq-lens", "7,5000"), ("plan", "--help"), ("replay", "--help")])
def test_any_encoding_of_the_output_will_do(arguments):
    done = _run(*arguments, before="import sys; sys.stdout.reconfigure(encoding='ascii', errors='strict')")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_plan_takes_none_as_an_alignment():
    done = _run("plan", "--seq-lens", "5000", "--state-block", 512, "--alignment", "none")
    assert "the backend exports no states" in done.stdout


def test_the_progress_bar_shows_on_a_terminal_only(tmp_path):
    pty = pytest.importorskip("pty")
    ours, terminal = pty.openpty()
    code = "from numba_ckpt.cli import main; raise SystemExit(main(['replay', '--limit', '20']))"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=terminal, check=False, env=environment, timeout=300
    )
    os.close(terminal)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "replaying" in shown
    assert "tokens" in shown
    assert ESCAPE.encode() not in done.stdout
