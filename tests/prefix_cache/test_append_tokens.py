import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.prefix_cache import DENSE, CacheConfig, CacheGroup, HybridPrefixCache

CONFIG = CacheConfig((CacheGroup("full", 16), CacheGroup("state", 64, checkpoint_alignment=16)), hash_block_size=16)
TOKENS = np.arange(1000)


def _compute(cache, request, num_tokens):
    step = cache.begin_step()
    assert cache.reserve(step, request, num_tokens) is not None
    cache.commit(step)


def test_appended_tokens_are_hashed_computed_and_found():
    cache = HybridPrefixCache(CONFIG, num_blocks=128, retention=DENSE)
    request = cache.add("writer", TOKENS[:100])
    _compute(cache, request, 100)
    with pytest.raises(ArgumentError, match="num_new_tokens"):
        _compute(cache, request, 1)
    for end in range(100, 1000, 3):
        cache.append_tokens(request, TOKENS[end : end + 3])
        _compute(cache, request, 3)
    np.testing.assert_array_equal(request.keys, cache.hasher.hash_prompt(TOKENS))
    assert np.count_nonzero(request.table[0]) == 63
    cache.pool.check_integrity()
    cache.finish(request)
    # States lie where a chunk ended on the hash grid: 100 + 3k = 16m, the last of them before the end at 976.
    assert cache.look_up(cache.add("reader", TOKENS)).num_tokens == 976


def test_appending_changes_nothing_of_what_is_held():
    cache = HybridPrefixCache(CONFIG, num_blocks=128)
    request = cache.add("request", TOKENS[:100])
    _compute(cache, request, 100)
    held = request.table.copy()
    cache.append_tokens(request, TOKENS[100:400])
    np.testing.assert_array_equal(request.table[:, : held.shape[1]], held)
    assert not request.table[:, held.shape[1] :].any()


def test_bad_tokens_change_nothing():
    cache = HybridPrefixCache(CONFIG, num_blocks=16)
    request = cache.add("request", TOKENS[:20])
    with pytest.raises(ArgumentError, match="tokens"):
        cache.append_tokens(request, np.array([-1]))
    assert (request.num_tokens, len(request.keys)) == (20, 1)
    with pytest.raises(ArgumentError, match="expected a request of this cache"):
        HybridPrefixCache(CONFIG, num_blocks=16).append_tokens(request, TOKENS[:1])
