"""The one list of all benches, and the two ways of running one: under pytest-benchmark and interleaved."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

MIN_ROUNDS = 25
MIN_SECONDS = 1.5
# Long enough for the clock, short enough that most samples meet no other process on a shared machine.
SAMPLE_SECONDS = 0.0005
SIDES = ("baseline", "ours")


class Sides(NamedTuple):
    """Two calls that do the same work, and a gate that raises unless they do."""

    baseline: Callable[[], Any]
    ours: Callable[[], Any]
    check: Callable[[], None]


class Result(NamedTuple):
    """Median seconds of both sides, and the median of the rounds' ratios."""

    baseline: float
    ours: float
    ratio: float


@dataclass(eq=False)
class Comparison:
    """How many times faster than a baseline something is.

    Attributes
    ----------
    module, name, inputs : str
        Where it is defined, what a reader sees, and what was run on.
    goal : float
        Least ratio that the project promises; 0 for a figure without a promise.
    make : callable
        Makes the inputs and returns the `Sides`; called once, when it is needed.
    """

    module: str
    name: str
    inputs: str
    goal: float
    make: Callable[[], Sides]

    @cached_property
    def sides(self) -> Sides:
        sides = self.make()
        sides.check()
        return sides

    def run_under_pytest(self, benchmark: Any, side: str) -> None:
        """Time one side, once the gate is passed."""
        benchmark.group = self.name
        call = getattr(self.sides, side)
        call()
        benchmark(call)
        self.sides.check()

    def run_interleaved(self) -> Result:
        """Time both sides in turns (A B A B), so that what else the machine does meets both."""
        calls = self.sides[:2]
        loops = [_loops_of(call) for call in calls]
        gc.collect()
        gc.disable()
        try:
            times, end = [], time.perf_counter() + MIN_SECONDS
            while len(times) < MIN_ROUNDS or time.perf_counter() < end:
                times.append([_seconds(call, loop) for call, loop in zip(calls, loops, strict=True)])
        finally:
            gc.enable()
        self.sides.check()
        baseline, ours = (statistics.median(column) for column in zip(*times, strict=True))
        return Result(baseline, ours, statistics.median(a / b for a, b in times))

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Budget:
    """How long something takes at most, in seconds; `measure` returns one sample."""

    module: str
    name: str
    inputs: str
    limit: float
    measure: Callable[[], float]

    def run(self, rounds: int = 5) -> float:
        """Return the median of some samples, after one that warms caches."""
        self.measure()
        return statistics.median(self.measure() for _ in range(rounds))

    def __str__(self) -> str:
        return self.name


COMPARISONS: list[Comparison] = []
BUDGETS: list[Budget] = []


def comparison(name: str, inputs: str, goal: float = 0.0) -> Callable[[Callable[[], Sides]], Callable[[], Sides]]:
    """Register a function that returns `Sides`."""

    def register(make: Callable[[], Sides]) -> Callable[[], Sides]:
        COMPARISONS.append(Comparison(make.__module__, name, inputs, goal, make))
        return make

    return register


def budget(name: str, inputs: str, limit: float) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Register a function that returns seconds."""

    def register(measure: Callable[[], float]) -> Callable[[], float]:
        BUDGETS.append(Budget(measure.__module__, name, inputs, limit, measure))
        return measure

    return register


def of_module(module: str) -> list[Comparison]:
    """Return the comparisons that a bench file defines."""
    return [bench for bench in COMPARISONS if bench.module == module]


def _seconds(call: Callable[[], Any], loops: int) -> float:
    """Return the seconds of one of `loops` calls in a row."""
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - start) / loops


def _loops_of(call: Callable[[], Any]) -> int:
    """Warm a call up; return how many in a row make a sample long enough to time."""
    call()
    loops = 1
    while _seconds(call, loops) * loops < SAMPLE_SECONDS:
        loops *= 2
    return loops
