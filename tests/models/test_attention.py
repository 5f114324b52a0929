import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError
from numba_ckpt.models import KvStore, causal_attention

HEADS, DIM = 2, 3


def draw(num_tokens, seed=0):
    return np.random.default_rng(seed).standard_normal((num_tokens, HEADS, DIM)).astype(np.float32)


def filled(num_tokens, seed=1):
    store = KvStore(20, HEADS, DIM)
    store.append(draw(num_tokens, seed), draw(num_tokens, seed + 1))
    return store


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3))
def test_matches_the_oracle(rows):
    starts = np.concatenate([[0], np.cumsum([count for _, count in rows])]).astype(int)
    stores = [filled(before + count, seed=2 * row) for row, (before, count) in enumerate(rows)]
    query = draw(starts[-1], seed=9)
    outputs = causal_attention(query, starts, stores)
    for row, (before, count) in enumerate(rows):
        for token in range(count):
            seen = before + token + 1
            keys, values = stores[row].keys[:seen], stores[row].values[:seen]
            scores = np.einsum("hd,shd->hs", query[starts[row] + token], keys).astype(np.float64) / np.sqrt(DIM)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            expected = np.einsum("hs,shd->hd", weights, values)
            np.testing.assert_allclose(outputs[starts[row] + token], expected, rtol=1e-4, atol=1e-5)


def test_a_row_cut_in_two_gives_the_same_bits():
    query, whole = draw(9), filled(9)
    cold = causal_attention(query, [0, 9], [whole])
    head = causal_attention(query[:4], [0, 4], [whole.fork(4)])
    tail = causal_attention(query[4:], [0, 5], [whole])
    assert np.concatenate([head, tail]).tobytes() == cold.tobytes()


def test_a_store_with_a_hole_reaches_the_outputs():
    store = filled(4)
    store.keys[1] = np.nan
    assert np.isnan(causal_attention(draw(2), [0, 2], [store])).all()


def test_a_fork_is_of_its_own():
    store = filled(4)
    fork = store.fork(2)
    fork.append(draw(1, seed=7), draw(1, seed=7))
    assert np.isnan(fork.keys[3:]).all()
    assert store.keys[:4].tobytes() == draw(4, seed=1).tobytes()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KvStore(0, 1, 1), "capacity: expected an integer in"),
        (lambda: filled(4).fork(5), "num_tokens: expected an integer in"),
        (lambda: filled(4).append(draw(17), draw(17)), "kv_store: expected at most 20 tokens, got 21"),
        (lambda: causal_attention(draw(5), [0, 5], [filled(4)]), r"stores\[0\]: expected this step's keys"),
        (lambda: causal_attention(draw(5), [0, 5], []), "stores: expected 1 stores, one per row, got 0"),
        (lambda: causal_attention(draw(5)[0], [0, 5], [filled(5)]), "query: expected 3 dimension"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
