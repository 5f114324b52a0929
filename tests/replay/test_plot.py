import matplotlib
import matplotlib.image
import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.replay.plot import check_picture_name, choose_timeline, write_timeline
from numba_ckpt.replay.result import RequestTimeline
from numba_ckpt.replay.scheduler import Chunk

COLD = RequestTimeline(0, 1000, 0, (Chunk(0, 0, 512, 448), Chunk(1, 512, 1000, 960)))
ONE_CHUNK = RequestTimeline(1, 1000, 512, (Chunk(2, 512, 1000, 960),))
TWO_CHUNKS = RequestTimeline(2, 2000, 960, (Chunk(3, 960, 1472, 1408), Chunk(4, 1472, 2000, 1984)))
NO_CHECKPOINT = RequestTimeline(3, 970, 960, (Chunk(5, 960, 970, 0),))
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
    ("timeline", "state_block_size"),
    [(COLD, 64), (TWO_CHUNKS, 16), (NO_CHECKPOINT, 5000)],
    ids=["cold", "hit", "short"],
)
def test_any_timeline_becomes_a_picture(tmp_path, timeline, state_block_size):
    path = tmp_path / "timeline.png"
    write_timeline(str(path), timeline, state_block_size)
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[:2] == (570, 1800)
    assert len(np.unique(pixels[::4, ::4].reshape(-1, pixels.shape[2]), axis=0)) > 10
    check_picture_name(str(path))
    assert matplotlib.get_backend().lower() == "agg"
