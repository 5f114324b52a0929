"""Run all benches interleaved and write their table into README.md: ``python -m bench.report [--print]``."""

import argparse
import importlib
import os
import platform
from pathlib import Path

import numba
import numpy as np

from bench.registry import BUDGETS, COMPARISONS, Budget, Comparison

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
START, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"
FLOORS = ("planning", "kernels", "cache", "checkpoint", "attention", "prefix_cache", "replay", "bench")
HEADER = ("what", "inputs", "baseline", "numba_ckpt", "ratio", "goal")


def load_benches() -> None:
    paths = (ROOT / "bench").rglob("bench_*.py")
    for path in sorted(paths, key=lambda path: (FLOORS.index(path.parent.name), path.name)):
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def machine() -> str:
    """Say what it ran on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    versions = f"Python {platform.python_version()}, numba {numba.__version__}, NumPy {np.__version__}"
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}; {versions}"


def human_time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def human_ratio(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2f}×"


def comparison_row(bench: Comparison) -> tuple[str, ...]:
    result = bench.run_interleaved()
    goal = f"≥ {bench.goal:g}×" if bench.goal else "–"
    missed = " (missed)" if result.ratio < bench.goal else ""
    times = human_time(result.baseline), human_time(result.ours)
    return bench.name, bench.inputs, *times, human_ratio(result.ratio) + missed, goal


def budget_row(bench: Budget) -> tuple[str, ...]:
    seconds = bench.run()
    missed = " (missed)" if seconds > bench.limit else ""
    return bench.name, bench.inputs, "–", human_time(seconds) + missed, "–", f"≤ {human_time(bench.limit)}"


def table() -> str:
    rows = [HEADER, ("---",) * 2 + ("---:",) * 4]
    for bench in (*COMPARISONS, *BUDGETS):
        row = comparison_row(bench) if isinstance(bench, Comparison) else budget_row(bench)
        print(" | ".join((row[0], *row[2:])), flush=True)
        rows.append(row)
        vars(bench).pop("sides", None)  # lets go of its arrays
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    note = (
        "Medians, both sides in turns in one process. A ratio is how many times faster than the baseline:\n"
        "the row-by-row list algorithm where nothing else is said. `./scripts/bench` measures again."
    )
    return "\n".join([f"{machine()}.", note, "", *lines])


def write_readme(text: str) -> None:
    before, _, rest = README.read_text().partition(START)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{README.name}: expected the lines {START} and {END}, found none; add them")
    README.write_text(f"{before}{START}\n{text}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="leave README.md alone")
    options = parser.parse_args()
    load_benches()
    text = table()
    if not options.print:
        write_readme(text)


if __name__ == "__main__":
    main()
