import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.replay.trace import TraceRequest, output_tokens, prompt_tokens, reuse_ceiling


def _request(ids, num_tokens, tokens_per_id=4):
    return TraceRequest(0.0, num_tokens, 0, np.array(ids, np.int64), tokens_per_id)


def test_tokens_are_a_function_of_id_and_place():
    whole = prompt_tokens(_request([3, -5, 3], 12))
    assert whole.dtype == np.int32
    assert (whole >= 0).all()
    np.testing.assert_array_equal(whole[:4], whole[8:])
    assert len(set(whole.tolist())) == 8
    np.testing.assert_array_equal(prompt_tokens(_request([3, -5], 7)), whole[:7])


def test_outputs_belong_to_one_request():
    first, second = output_tokens(0, 100), output_tokens(1, 100)
    assert (
        len(set(first.tolist()) | set(second.tolist()) | set(prompt_tokens(_request(range(25), 100)).tolist())) == 300
    )
    np.testing.assert_array_equal(output_tokens(0, 40), first[:40])
    assert output_tokens(0, 0).size == 0


IDS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@given(st.lists(st.tuples(IDS, st.integers(0, 3)), min_size=1, max_size=8))
def test_the_ceiling_is_the_longest_prefix_of_ids_seen_before(prompts):
    requests = [_request(ids, 4 * len(ids) - missing) for ids, missing in prompts]
    seen, expected = set(), []
    for request in requests:
        prefixes = [tuple(request.block_ids[: end + 1].tolist()) for end in range(request.block_ids.size)]
        shared = sum(prefix in seen for prefix in prefixes)
        expected.append(min(4 * shared, request.num_input_tokens - 1))
        seen.update(prefixes)
    assert reuse_ceiling(requests).tolist() == expected


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4)])
def test_ids_of_other_sizes_share_nothing(sizes):
    assert reuse_ceiling([_request([1, 2], 7, size) for size in sizes]).tolist() == [0, 0]
