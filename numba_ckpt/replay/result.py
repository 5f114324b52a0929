"""What a replay has counted and timed."""

from dataclasses import dataclass, field
from time import perf_counter_ns

from numba_ckpt.prefix_cache import CacheCounters
from numba_ckpt.replay.series import Series

__all__ = ["Chunk", "ReplayCounts", "ReplayResult", "RequestTimeline", "StageTimes"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, end) of a request, computed in one step; `checkpoint` is the position of a state inside, or 0."""

    step: int
    start: int
    end: int
    checkpoint: int


@dataclass(slots=True)
class ReplayCounts:
    """Sums over a replay.

    Attributes
    ----------
    requests, resumed_requests : int
        Requests served, and those of them that began from a stored state.
    input_tokens, hit_tokens : int
        Prompt tokens, and those of them that the cache spared when their request first began.
    ceiling_tokens : int
        Prompt tokens that a cache which keeps everything could have spared: the trace's own ceiling.
    lost_to_boundaries, lost_attention, lost_states : int
        What lies between: beyond the last boundary that a hit can end on; where attention blocks were evicted or not
        yet written; where attention was there and no state.
    output_tokens, recomputed_tokens : int
        Output tokens computed, and tokens computed again after preemptions.
    steps, prefills : int
        Batched model passes, and prefill passes of single requests in them (a request of several chunks has several).
    passes_saved : int
        Prefill passes whose checkpoint lies inside the prompt's last chunk: without it each would have been cut in two.
    preemptions : int
        Times that a running request gave its blocks to an earlier one.
    checkpoints_written, running_states_written : int
        States exported from the middle and from the end of a pass.
    blocks_published, blocks_evicted : int
        Blocks of attention and states that a prefix key led to; that lost it because their place was needed.
    bytes_moved : int
        Bytes of window and state that exports wrote.
    verified_requests : int
        Resumed requests that were recomputed from scratch and found equal to the bit.
    skipped_lines : int
        Bad lines of the trace that were left out.
    """

    requests: int = 0
    resumed_requests: int = 0
    input_tokens: int = 0
    hit_tokens: int = 0
    ceiling_tokens: int = 0
    lost_to_boundaries: int = 0
    lost_attention: int = 0
    lost_states: int = 0
    output_tokens: int = 0
    recomputed_tokens: int = 0
    steps: int = 0
    prefills: int = 0
    passes_saved: int = 0
    preemptions: int = 0
    checkpoints_written: int = 0
    running_states_written: int = 0
    blocks_published: int = 0
    blocks_evicted: int = 0
    bytes_moved: int = 0
    verified_requests: int = 0
    skipped_lines: int = 0

    @property
    def hit_share(self) -> float:
        """Share of the prompt tokens that the cache spared."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def ceiling_share(self) -> float:
        """Share of the prompt tokens that a cache which keeps everything could have spared."""
        return self.ceiling_tokens / self.input_tokens if self.input_tokens else 0.0


class _Stage:
    """Adds the time inside a `with` block to a stage; not to be nested in itself."""

    __slots__ = ("_name", "_start", "_times")

    def __init__(self, times: dict[str, int], name: str) -> None:
        self._times, self._name, self._start = times, name, 0

    def __enter__(self) -> None:
        self._start = perf_counter_ns()

    def __exit__(self, *exception: object) -> None:
        self._times[self._name] += perf_counter_ns() - self._start


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

    STAGES = (
        "tokens",
        "hash",
        "lookup",
        "split",
        "reserve",
        "plan",
        "gather",
        "model",
        "export",
        "running",
        "commit",
        "verify",
    )

    def __init__(self) -> None:
        self.nanoseconds = dict.fromkeys(self.STAGES, 0)
        self._stages = {name: _Stage(self.nanoseconds, name) for name in self.STAGES}

    def measure(self, stage: str) -> _Stage:
        """Return a context manager that adds the time inside to a stage."""
        return self._stages[stage]


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """How one request was served.

    Attributes
    ----------
    number : int
        Place in the trace, from 0.
    num_tokens, num_hit_tokens : int
        Tokens of the prompt, and those that the cache spared.
    chunks : tuple of Chunk
        Its passes since it last began, in order.
    """

    number: int
    num_tokens: int
    num_hit_tokens: int
    chunks: tuple[Chunk, ...]


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
    series : Series
        Pool and hits over time.
    cache : CacheCounters
        The cache's own counts: of every look-up, also those of requests that had to wait or to start over.
    elapsed_ns : int
        Wall time of the whole replay.
    preparation_ns : int
        Wall time of compiling beforehand; 0 if that was not done apart.
    """

    counts: ReplayCounts = field(default_factory=ReplayCounts)
    times: StageTimes = field(default_factory=StageTimes)
    timelines: list[RequestTimeline] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    cache: CacheCounters = field(default_factory=CacheCounters)
    elapsed_ns: int = 0
    preparation_ns: int = 0
