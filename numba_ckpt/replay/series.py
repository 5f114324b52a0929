"""What changes in the course of a replay, sampled so that long ones stay small."""

from typing import NamedTuple

__all__ = ["Sample", "Series"]


class Sample(NamedTuple):
    """How things stand after a step.

    Attributes
    ----------
    seconds : float
        The replay's clock: what steps last, and the waits for arrivals.
    step : int
        Steps so far.
    running : int
        Requests that hold blocks.
    input_tokens, hit_tokens : int
        Prompt tokens of all requests that have begun, and those that were spared.
    held_blocks, idle_blocks : int
        Blocks of the pool that requests hold, and those that are cached and held by nobody.
    states : int
        Blocks of the pool with a state in them, held or cached.
    evictions : int
        Blocks that lost their key so far.
    """

    seconds: float
    step: int
    running: int
    input_tokens: int
    hit_tokens: int
    held_blocks: int
    idle_blocks: int
    states: int
    evictions: int


class Series:
    """Samples at equal distances in steps; the distance doubles whenever there are too many.

    Parameters
    ----------
    capacity : int
        Most samples kept; even.

    Examples
    --------
    >>> series = Series(capacity=4)
    >>> for step in range(10):
    ...     if series.is_due(step):
    ...         series.append(Sample(0.1 * step, step, *[0] * 7))
    >>> [sample.step for sample in series.samples]
    [0, 4, 8]
    """

    def __init__(self, capacity: int = 256) -> None:
        self.samples: list[Sample] = []
        self._capacity = capacity
        self._stride = 1

    def is_due(self, step: int) -> bool:
        """Say whether a sample of this step would be kept."""
        return step % self._stride == 0

    def append(self, sample: Sample) -> None:
        """Keep a sample that is due."""
        if len(self.samples) == self._capacity:
            del self.samples[1::2]
            self._stride *= 2
            if not self.is_due(sample.step):
                return
        self.samples.append(sample)
