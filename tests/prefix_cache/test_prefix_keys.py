import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError
from numba_ckpt.prefix_cache import PrefixKeys

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def _tokens(ids: list[int], tokens_per_id: int, position: int) -> list[tuple[int, int]]:
    return [(ids[at // tokens_per_id], at % tokens_per_id) for at in range(position)]


@given(IDS, IDS, st.integers(1, 4), st.data())
def test_keys_are_equal_exactly_where_tokens_are(first, second, tokens_per_id, data):
    position = data.draw(st.integers(0, tokens_per_id * min(len(first), len(second))))
    keys = [PrefixKeys(np.array(ids), tokens_per_id).at(position) for ids in (first, second)]
    tokens = [_tokens(ids, tokens_per_id, position) for ids in (first, second)]
    assert (keys[0] == keys[1]) == (tokens[0] == tokens[1])


@given(IDS, st.integers(1, 4))
def test_each_position_has_its_own_key(ids, tokens_per_id):
    keys = PrefixKeys(np.array(ids), tokens_per_id)
    positions = range(tokens_per_id * len(ids) + 1)
    assert len({keys.at(position) for position in positions}) == len(positions)


def test_keys_of_different_secrets_differ():
    ids = np.array([1, 2, 3])
    plain, keyed, other = (PrefixKeys(ids, 4, secret).at(8) for secret in (b"", b"one", b"two"))
    assert len({plain, keyed, other}) == 3
    assert PrefixKeys(ids, 4, b"one").at(8) == keyed


def test_integer_width_and_stride_do_not_matter():
    ids = [5, 6, 7]
    expected = PrefixKeys(np.array(ids), 4).at(12)
    assert PrefixKeys(np.array(ids, np.int32), 4).at(12) == expected
    assert PrefixKeys(np.array([5, 0, 6, 0, 7, 0], np.uint16)[::2], 4).at(12) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.array([1.0]), 4), "block_ids: expected an integer dtype"),
        (([1], 4), "block_ids: expected a 1-d array"),
        ((np.array([[1]]), 4), "block_ids: expected 1 dimension"),
        ((np.array([1]), 0), "tokens_per_id: expected an integer in"),
        ((np.array([1]), 4, b"x" * 65), "secret: expected at most 64 bytes, got 65 bytes"),
        ((np.array([1]), 4, "x"), "secret: expected at most 64 bytes, got str"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        PrefixKeys(*arguments)
