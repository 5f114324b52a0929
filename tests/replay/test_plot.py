import matplotlib
import matplotlib.image
import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.plot import check_picture_name, choose_timeline, write_picture
from numba_ckpt.replay.result import Chunk, RequestTimeline
from numba_ckpt.replay.series import Sample, Series

COLD = RequestTimeline(0, 1000, 0, (Chunk(0, 0, 512, 448), Chunk(1, 512, 1000, 960)))
ONE_CHUNK = RequestTimeline(1, 1000, 512, (Chunk(2, 512, 1000, 960),))
TWO_CHUNKS = RequestTimeline(2, 2000, 960, (Chunk(3, 960, 1472, 1408), Chunk(4, 1472, 2000, 1984)))
NO_CHECKPOINT = RequestTimeline(3, 970, 960, (Chunk(5, 960, 970, 0),))


def _series(num_samples: int) -> Series:
    series = Series()
    for step in range(num_samples):
        series.append(Sample(0.1 * step, step, 1, 1000 * step, 300 * step, step, 2 * step, step, 0))
    return series


ALL = [COLD, ONE_CHUNK, TWO_CHUNKS, NO_CHECKPOINT]


def test_what_shows_most_is_drawn():
    assert choose_timeline(ALL) is TWO_CHUNKS
    assert choose_timeline([COLD, ONE_CHUNK, NO_CHECKPOINT]) is ONE_CHUNK
    assert choose_timeline([COLD]) is COLD


def test_a_request_can_be_asked_for():
    assert choose_timeline(ALL, 3) is NO_CHECKPOINT
    with pytest.raises(ArgumentError, match="plot_request: expected one of the 4 requests replayed, got 7"):
        choose_timeline(ALL, 7)


@pytest.mark.parametrize(
    ("timeline", "state_block_size", "num_samples"),
    [(COLD, 64, 50), (TWO_CHUNKS, 16, 1), (NO_CHECKPOINT, 5000, 0)],
    ids=["cold", "hit", "short"],
)
def test_any_timeline_becomes_a_picture(tmp_path, timeline, state_block_size, num_samples):
    path = tmp_path / "timeline.png"
    geometry = CheckpointGeometry(1, state_block_size, 1, checkpoint_alignment=1)
    write_picture(str(path), timeline, _series(num_samples), ReplayOptions(geometry, num_blocks=100))
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[:2] == (1140, 1800)
    assert len(np.unique(pixels[::4, ::4].reshape(-1, pixels.shape[2]), axis=0)) > 10
    check_picture_name(str(path))
    assert matplotlib.get_backend().lower() == "agg"
