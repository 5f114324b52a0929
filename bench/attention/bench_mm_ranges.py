"""Multimodal ranges of a batch: the runs of each image's mask found in each step, against once per image."""

import numpy as np
import pytest

from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.attention import MMFeature, compute_mm_prefix_ranges

NUM_REQUESTS = 64
NUM_IMAGES = 4


def one_call_per_image(req_ids, images):
    """Ranges as lists by row, each image's edges from its mask in a call."""
    ranges = {}
    for row, req_id in enumerate(req_ids):
        ranges[row] = []
        for modality, offset, _, is_embed in images.get(req_id, ()):
            if modality not in ("image", "video"):
                continue
            edges = np.flatnonzero(np.diff(is_embed, prepend=False, append=False)) + offset
            ranges[row].extend(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))
    return ranges


def mm_ranges_sides(num_tokens):
    generator = np.random.default_rng(20260101)
    req_ids = [f"request-{index}" for index in range(NUM_REQUESTS)]
    images = {
        req_id: [
            ("image", 10 + index * (num_tokens + 20), num_tokens, generator.random(num_tokens) < 0.5)
            for index in range(NUM_IMAGES)
        ]
        for req_id in req_ids
    }
    mm_features = {req_id: [MMFeature(*image) for image in features] for req_id, features in images.items()}

    def baseline():
        return one_call_per_image(req_ids, images)

    def ours():
        return compute_mm_prefix_ranges(req_ids, mm_features)

    def check():
        assert dict(ours()) == baseline()

    return Sides(baseline, ours, check)


for tokens in (256, 1024):
    comparison(
        f"`compute_mm_prefix_ranges`, images of {tokens:,}",
        f"{NUM_REQUESTS} requests of {NUM_IMAGES} images, half of whose {tokens:,} positions are masked at random",
        50.0,
    )(lambda tokens=tokens: mm_ranges_sides(tokens))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_mm_ranges(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
