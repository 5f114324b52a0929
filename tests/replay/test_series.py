from itertools import pairwise

import pytest

from numba_ckpt.replay.series import Sample, Series


@pytest.mark.parametrize("num_steps", [1, 7, 8, 9, 100, 1000])
def test_long_series_are_thinned_evenly(num_steps):
    series = Series(capacity=8)
    for step in range(num_steps):
        if series.is_due(step):
            series.append(Sample(float(step), step, *[0] * 7))
    steps = [sample.step for sample in series.samples]
    assert min(num_steps, 5) <= len(steps) <= 8
    distances = {second - first for first, second in pairwise(steps)}
    assert len(distances) <= 1
    assert num_steps - steps[-1] <= max(distances, default=1)
