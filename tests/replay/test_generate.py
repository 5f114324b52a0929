import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.replay.generate import generate_trace


def test_the_same_seed_gives_the_same_trace():
    first, second, other = generate_trace(60, 3), generate_trace(60, 3), generate_trace(60, 4)
    assert [request.block_ids.tolist() for request in first] == [request.block_ids.tolist() for request in second]
    assert [request.timestamp for request in first] == [request.timestamp for request in second]
    assert [request.block_ids.tolist() for request in first] != [request.block_ids.tolist() for request in other]


@pytest.mark.parametrize("num_requests", [1, 2, 77])
def test_requests_are_whole_and_sorted(num_requests):
    trace = generate_trace(num_requests)
    assert len(trace) == num_requests
    assert all(request.num_input_tokens >= 1 and request.num_output_tokens >= 1 for request in trace)
    assert all(request.block_ids.size == -(-request.num_input_tokens // 512) for request in trace)
    times = [request.timestamp for request in trace]
    assert times == sorted(times)


def test_ids_are_numbered_by_first_appearance():
    seen: list[int] = []
    for request in generate_trace(60):
        seen.extend(name for name in request.block_ids.tolist() if name not in seen)
    assert seen == list(range(len(seen)))


def test_a_block_has_one_past():
    """Equal ids stand for equal tokens only if everything before them is equal too."""
    past: dict[int, tuple[int, ...]] = {}
    for request in generate_trace(200):
        ids = tuple(request.block_ids.tolist())
        for block, name in enumerate(ids):
            assert past.setdefault(name, ids[:block]) == ids[:block]


def test_prompts_share_prefixes_and_vary_in_length():
    trace = generate_trace()
    lengths = np.array([request.num_input_tokens for request in trace])
    assert lengths.max() > 5 * np.median(lengths)
    seen: set[int] = set()
    shared = 0
    for request in trace:
        shared += 512 * sum(name in seen for name in request.block_ids.tolist())
        seen.update(request.block_ids.tolist())
    assert 0.5 < shared / lengths.sum() < 0.8


@pytest.mark.parametrize(("num_requests", "seed"), [(0, 0), (-1, 0), (1, -1), (1.5, 0), (True, 0)])
def test_bad_arguments_are_refused(num_requests, seed):
    with pytest.raises(ArgumentError):
        generate_trace(num_requests, seed)
