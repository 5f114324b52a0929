"""What a replay has counted and timed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns

from numba_ckpt.replay.scheduler import ActiveRequest, Chunk

__all__ = ["ReplayCounts", "ReplayResult", "RequestTimeline", "StageTimes"]


@dataclass(slots=True)
class ReplayCounts:
    """Sums over a replay.

    Attributes
    ----------
    requests, resumed_requests : int
        Requests served, and those of them that began from a stored state.
    input_tokens, hit_tokens : int
        Prompt tokens, and those of them that a stored state spared.
    steps, prefills : int
        Batched model passes, and prefill passes of single requests in them (a request of several chunks has several).
    passes_saved : int
        Prefill passes whose checkpoint lies inside the prompt's last chunk: without it each would have been cut in two.
    checkpoints_written, running_states_written : int
        States exported from the middle and from the end of a pass.
    states_published, duplicate_states, states_evicted : int
        States that a prefix key led to; that another state had been published for already; that lost their block.
    bytes_moved : int
        Bytes of window and state that exports wrote.
    verified_requests : int
        Resumed requests that were recomputed from scratch and found equal to the bit.
    """

    requests: int = 0
    resumed_requests: int = 0
    input_tokens: int = 0
    hit_tokens: int = 0
    steps: int = 0
    prefills: int = 0
    passes_saved: int = 0
    checkpoints_written: int = 0
    running_states_written: int = 0
    states_published: int = 0
    duplicate_states: int = 0
    states_evicted: int = 0
    bytes_moved: int = 0
    verified_requests: int = 0

    @property
    def hit_share(self) -> float:
        """Share of the prompt tokens that a stored state spared."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0


class StageTimes:
    """Nanoseconds of host time by stage.

    On a device, a stage's time is that of enqueueing its work, not of the work.

    Examples
    --------
    >>> times = StageTimes()
    >>> with times.measure("plan"):
    ...     pass
    >>> times.nanoseconds["plan"] > 0
    True
    """

    STAGES = ("lookup", "plan", "gather", "export", "running", "model", "verify")

    def __init__(self) -> None:
        self.nanoseconds = dict.fromkeys(self.STAGES, 0)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time inside to a stage."""
        start = perf_counter_ns()
        yield
        self.nanoseconds[stage] += perf_counter_ns() - start


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """How one request was served.

    Attributes
    ----------
    number : int
        Place in the trace, from 0.
    num_tokens, num_hit_tokens : int
        Tokens of the prompt, and those that a stored state spared.
    chunks : tuple of Chunk
        Its passes, in order.
    """

    number: int
    num_tokens: int
    num_hit_tokens: int
    chunks: tuple[Chunk, ...]

    @classmethod
    def of(cls, active: ActiveRequest) -> "RequestTimeline":
        """Return the timeline of a request that is done."""
        return cls(active.number, active.num_tokens, active.num_hit_tokens, tuple(active.chunks))


@dataclass(slots=True)
class ReplayResult:
    """Everything that a replay leaves.

    Attributes
    ----------
    counts : ReplayCounts
        Sums.
    times : StageTimes
        Host time by stage.
    timelines : list of RequestTimeline
        One per request, in the order in which they were done.
    elapsed_ns : int
        Wall time of the whole replay.
    preparation_ns : int
        Wall time of compiling beforehand; 0 if that was not done apart.
    """

    counts: ReplayCounts = field(default_factory=ReplayCounts)
    times: StageTimes = field(default_factory=StageTimes)
    timelines: list[RequestTimeline] = field(default_factory=list)
    elapsed_ns: int = 0
    preparation_ns: int = 0
