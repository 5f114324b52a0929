"""A copy of a pool or a cache, pickled or not, lives a life of its own, and the same one if the same happens to it."""

import copy
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from numba_ckpt.cache import BlockPool
from numba_ckpt.errors import LedgerError
from numba_ckpt.prefix_cache import CacheConfig, CacheGroup, HybridPrefixCache, PrefixHasher, WriteLedger
from numba_ckpt.prefix_cache.hash_chains import CHAINS
from tests.property.test_prefix_cache import draw_world, live

CONFIG = CacheConfig((CacheGroup("full", 4), CacheGroup("state", 8, checkpoint_alignment=4)), hash_block_size=4)
PROMPT = np.arange(43)


def pickled(original):
    return pickle.loads(pickle.dumps(original))


COPIES = pytest.mark.parametrize("copied", [copy.deepcopy, pickled])


def seen(cache):
    """All that can be told of a cache."""
    requests = [
        (name, request.table.tobytes(), request.num_tokens, request.num_computed_tokens, request.num_in_flight)
        for name, request in cache._requests.items()
    ]
    memory = [array.tobytes() for array in cache.pool.arrays]
    return memory, requests, cache.counters, cache.observer.unkept(), cache._book.tobytes()


def serve(cache, name, tokens):
    request = cache.add(name, tokens)
    hit = cache.look_up(request)
    step = cache.begin_step()
    cache.reserve(step, request, request.num_tokens - hit.num_tokens)
    cache.commit(step)
    cache.finish(request)
    return hit.num_tokens


@COPIES
def test_a_copied_pool_hands_out_its_own_blocks(copied):
    pool = BlockPool(4)
    other = copied(pool)
    assert other.allocate(2).tolist() == [1, 2]
    assert (other.num_available, pool.num_available) == (1, 3)
    other.check_integrity()
    pool.check_integrity()
    assert pool.allocate(3).tolist() == [1, 2, 3]
    assert other.arrays.blocks["ref_count"].tolist() == [0, 1, 1, 0]


@COPIES
@pytest.mark.parametrize("seed", range(6))
def test_a_copy_in_the_middle_of_a_life_goes_on_like_the_original(copied, seed):
    rng = random.Random(seed)
    world = draw_world(rng.choice)
    live(world, rng, 120)
    twin = copied(world)
    before = seen(world.cache)
    assert seen(twin.cache) == before
    live(twin, random.Random(seed + 1), 120)
    assert seen(world.cache) == before, "the copy's life is the original's"
    live(world, random.Random(seed + 1), 120)
    assert seen(twin.cache) == seen(world.cache)
    twin.close()
    world.close()


@COPIES
def test_counters_and_memory_of_a_copy_are_its_own(copied):
    cache = HybridPrefixCache(CONFIG, 64)
    serve(cache, "first", PROMPT)
    other = copied(cache)
    assert serve(other, "second", PROMPT) == 40
    assert (other.counters.lookups, cache.counters.lookups) == (2, 1)
    asker = other.add("asker", PROMPT)
    assert [verdict.verdict for verdict in other.explain(asker)] == ["hit", "hit"]


@COPIES
@pytest.mark.parametrize("algorithm", CHAINS)
def test_a_copied_hasher_has_the_same_key(copied, algorithm):
    hasher = PrefixHasher(4, algorithm=algorithm)
    state = hasher.start(b"tenant")
    other, moved = copied((hasher, state))
    assert (other.hash_prompt(PROMPT, b"salt") == hasher.hash_prompt(PROMPT, b"salt")).all()
    assert (other.extend(moved, PROMPT) == hasher.extend(state, PROMPT)).all()


@COPIES
def test_the_ledger_of_a_copy_watches_the_copys_pool(copied):
    cache = HybridPrefixCache(CONFIG, 64, ledger=WriteLedger())
    other = copied(cache)
    block = int(other.pool.allocate(1)[0])
    other.pool.publish([block], np.array([[1, 2]], np.uint64), 1)
    cache.ledger.write(1, block, (3, 4), 4)
    with pytest.raises(LedgerError):
        other.ledger.write(1, block, (3, 4), 4)


def test_a_cache_goes_to_another_process_with_its_key(tmp_path):
    cache = HybridPrefixCache(CONFIG, 64)
    serve(cache, "first", PROMPT)
    path = tmp_path / "cache"
    path.write_bytes(pickle.dumps(cache))
    there = (
        "import pickle, sys, numpy as np\n"
        "cache = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(cache.look_up(cache.add('second', np.arange(43))).num_tokens)"
    )
    done = subprocess.run([sys.executable, "-c", there, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["40"]
