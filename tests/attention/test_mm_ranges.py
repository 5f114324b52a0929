"""Multimodal ranges: the recordings, a list oracle, windows, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.attention import MMFeature, compute_mm_prefix_ranges
from numba_ckpt.errors import ArgumentError
from tests.golden.pack import read_records


def features_of(records):
    return [
        MMFeature(
            record["modality"],
            record["offset"],
            record["length"],
            None if record["is_embed"] is None else np.array(record["is_embed"], bool),
        )
        for record in records
    ]


def test_recordings():
    cases = read_records("g1_mm_prefix_ranges")
    assert len(cases) == 60
    for case in cases:
        mm_features = {req_id: features_of(records) for req_id, records in case["features"].items()}
        ranges = compute_mm_prefix_ranges(case["req_ids"], mm_features, case["sliding_window"])
        assert [[list(pair) for pair in pairs] for pairs in ranges.values()] == case["ranges"]


def oracle(features, window):
    """Inclusive ranges, token by token."""
    ranges = []
    for modality, offset, mask in features:
        run = []
        for index, is_embed in enumerate([*mask, False]):
            if is_embed and modality in {"image", "video"}:
                run.append(offset + index)
            elif run:
                ranges.append((run[0], run[-1]))
                run = []
    return [pair for pair in ranges if window is None or pair[1] - pair[0] + 1 <= window]


@st.composite
def requests(draw):
    """Features one after the other, with gaps."""
    features, position = [], 0
    for mask in draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=20), max_size=5)):
        position += draw(st.integers(0, 5))
        features.append((draw(st.sampled_from(["image", "video", "audio"])), position, mask))
        position += len(mask)
    return features


@given(st.lists(requests(), max_size=5), st.none() | st.integers(1, 8), st.booleans())
def test_ranges_agree_with_an_oracle(batch, window, kernel_clamps):
    mm_features = {
        str(row): [MMFeature(modality, offset, len(mask), np.array(mask)) for modality, offset, mask in features]
        for row, features in enumerate(batch)
    }
    ranges = compute_mm_prefix_ranges([str(row) for row in range(len(batch))], mm_features, window, kernel_clamps)
    kept = None if kernel_clamps else window
    assert ranges == {row: oracle(features, kept) for row, features in enumerate(batch)}
    assert [ranges.of(row).tolist() for row in ranges] == [[list(pair) for pair in pairs] for pairs in ranges.values()]


def test_strided_masks_and_positions_near_the_limit():
    mask = np.array([1, 0, 1, 1, 0, 0, 1, 1], bool)[::2]
    feature = MMFeature("video", 2**31 - 5, 4, mask)
    assert feature.ranges.tolist() == [[2**31 - 5, 2**31 - 4], [2**31 - 2, 2**31 - 2]]
    assert feature.longest == 2


def test_b66_a_span_longer_than_the_window():
    mm_features = {"r": [MMFeature("image", 7, 1120), MMFeature("image", 2000, 1024)]}
    dropped = compute_mm_prefix_ranges(["r"], mm_features, sliding_window=1024)
    kept = compute_mm_prefix_ranges(["r"], mm_features, sliding_window=1024, kernel_clamps=True)
    assert dict(dropped) == {0: [(2000, 3023)]}
    assert dict(kept) == {0: [(7, 1126), (2000, 3023)]}


def test_rows_follow_the_batch_and_a_request_may_come_twice():
    mm_features = {"a": [MMFeature("image", 0, 2)], "b": []}
    ranges = compute_mm_prefix_ranges(["b", "a", "gone", "a"], mm_features)
    assert dict(ranges) == {0: [], 1: [(0, 1)], 2: [], 3: [(0, 1)]}
    assert ranges.row_starts.tolist() == [0, 0, 1, 1, 2]
    with pytest.raises(KeyError):
        ranges[4]
    assert dict(compute_mm_prefix_ranges([], {})) == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MMFeature(3, 0, 1), "modality: expected a string"),
        (lambda: MMFeature("image", -1, 1), "offset: expected an integer in"),
        (lambda: MMFeature("image", 0, 0), "length: expected an integer in"),
        (lambda: MMFeature("image", 2**31 - 2, 2), "length: expected an integer in \\[1, 1\\]"),
        (lambda: MMFeature("image", 0, 2, [True, False]), "is_embed: expected a bool array"),
        (lambda: MMFeature("image", 0, 2, np.ones(2, np.int8)), "is_embed: expected a bool dtype"),
        (lambda: MMFeature("image", 0, 2, np.ones(3, bool)), "is_embed: expected shape \\(2,\\)"),
        (lambda: MMFeature("image", 0, 2, np.ones((2, 1), bool)), "is_embed: expected 1 dimension"),
        (lambda: compute_mm_prefix_ranges(["a"], {"a": ["image"]}), "mm_features: expected records of MMFeature"),
        (lambda: compute_mm_prefix_ranges([], {}, sliding_window=0), "sliding_window: expected an integer in"),
        (lambda: compute_mm_prefix_ranges([], {}, kernel_clamps=1), "kernel_clamps: expected True or False"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
