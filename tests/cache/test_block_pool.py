"""The block pool against a plain model, and what it refuses."""

import threading
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from numba_ckpt.cache import BlockPool
from numba_ckpt.errors import ArgumentError

NUM_BLOCKS = 9


def key_of(number):
    # Few distinct first halves, so that probes collide and removals shift entries.
    return (number % 3, number)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.held = Counter()
        self.idle = OrderedDict()
        self.key_of_block = {}

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count):
        num_free = NUM_BLOCKS - 1 - len(self.held) - len(self.idle)
        blocks = self.pool.allocate(count)
        if count > num_free + len(self.idle):
            assert blocks is None
            return
        evicted = [self.idle.popitem(last=False)[0] for _ in range(max(0, count - num_free))]
        for block in evicted:
            del self.key_of_block[block]
        assert set(evicted) <= set(blocks.tolist())
        assert len(set(blocks.tolist())) == count
        assert not self.held.keys() & set(blocks.tolist())
        self.held.update(blocks.tolist())

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True, min_size=1))
        self.pool.release([0, *blocks])
        for block in reversed(blocks):
            self.held[block] -= 1
            if self.held[block] == 0:
                del self.held[block]
                if block in self.key_of_block:
                    self.idle[block] = None

    @precondition(lambda self: self.held or self.idle)
    @rule(data=st.data())
    def acquire(self, data):
        block = data.draw(st.sampled_from(sorted({*self.held, *self.idle})))
        self.pool.acquire([block])
        self.idle.pop(block, None)
        self.held[block] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), number=st.integers(0, 5), group=st.integers(0, 1))
    def publish(self, data, number, group):
        block = data.draw(st.sampled_from(sorted(self.held)))
        leads_to = {key: block for block, key in self.key_of_block.items()}.get((number, group))
        is_new = block not in self.key_of_block and (leads_to is None or leads_to in self.idle)
        if is_new and leads_to is not None:
            del self.idle[leads_to], self.key_of_block[leads_to]
        assert self.pool.publish([block], np.array([key_of(number)], np.uint64), group) == is_new
        if is_new:
            self.key_of_block[block] = (number, group)

    @rule()
    def release_what_is_not_held(self):
        with pytest.raises(ArgumentError):
            self.pool.release([*self.held, next(iter({*range(1, NUM_BLOCKS)} - self.held.keys()), NUM_BLOCKS)])

    @invariant()
    def agrees(self):
        self.pool.check_integrity()
        assert self.pool.num_available == NUM_BLOCKS - 1 - len(self.held)
        assert self.pool.num_cached == len(self.key_of_block)
        for number in range(6):
            for group in range(2):
                found = self.pool.find(np.array([key_of(number)], np.uint64), group).tolist()
                assert found == [block for block, key in self.key_of_block.items() if key == (number, group)]


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=60)


def test_idle_blocks_are_taken_oldest_release_first_and_prefixes_from_their_end():
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    pool.publish(blocks, np.arange(8, dtype=np.uint64).reshape(4, 2), group=0)
    pool.release(blocks[2:])
    pool.release(blocks[:2])
    assert [int(pool.allocate(1)[0]) for _ in range(4)] == [4, 3, 2, 1]
    assert pool.num_evicted == 4


def test_a_failed_allocation_evicts_nothing():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.publish(blocks, np.arange(4, dtype=np.uint64).reshape(2, 2), group=0)
    pool.release(blocks)
    assert pool.allocate(4) is None
    assert pool.num_cached == 2
    assert pool.num_evicted == 0


KEYS = np.zeros((1, 2), np.uint64)
BAD_CALLS = {
    "a pool of the null block alone": lambda pool: BlockPool(1),
    "a negative count": lambda pool: pool.allocate(-1),
    "releasing a free block": lambda pool: pool.release([3]),
    "releasing twice": lambda pool: pool.release([1, 1]),
    "releasing a block of no pool": lambda pool: pool.release([4]),
    "releasing a negative block": lambda pool: pool.release([-1]),
    "float blocks": lambda pool: pool.release(np.array([1.0])),
    "acquiring a free block": lambda pool: pool.acquire([3]),
    "acquiring a block of no pool": lambda pool: pool.acquire([9]),
    "publishing a free block": lambda pool: pool.publish([3], KEYS, 0),
    "keys of another shape": lambda pool: pool.publish([1, 2], KEYS, 0),
    "signed keys": lambda pool: pool.publish([1], KEYS.astype(np.int64), 0),
    "looking for signed keys": lambda pool: pool.find(KEYS.astype(np.int64), 0),
    "looking for flat keys": lambda pool: pool.find(KEYS[0], 0),
    "looking for no array": lambda pool: pool.find(None, 0),
    "a negative group": lambda pool: pool.publish([1], KEYS, -1),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_change_nothing(call):
    pool = BlockPool(4)
    pool.allocate(2)
    before = [array.tobytes() for array in pool.arrays]
    with pytest.raises(ArgumentError, match=r"expected .+, got .+; \w+"):
        call(pool)
    assert [array.tobytes() for array in pool.arrays] == before


def test_a_million_blocks_take_less_than_200_mb():
    assert sum(array.nbytes for array in BlockPool(1_000_001).arrays) < 200e6


def test_threads_that_allocate_at_once_get_different_blocks():
    pool, barrier = BlockPool(1_200_001), threading.Barrier(2)

    def take(_):
        barrier.wait()
        return [pool.allocate(60_000) for _ in range(10)]

    pool.release(pool.allocate(1))  # compiled
    with ThreadPoolExecutor(2) as threads:
        taken = np.concatenate([blocks for done in threads.map(take, range(2)) for blocks in done])
    assert taken.size == np.unique(taken).size == 1_200_000
    assert pool.num_available == 0
    pool.check_integrity()


@pytest.mark.parametrize("stride", [lambda keys: keys[::2], lambda keys: keys[::-1], np.asfortranarray])
def test_keys_of_any_strides_are_published_as_they_are(stride):
    pool, keys = BlockPool(40), stride(np.arange(64, dtype=np.uint64).reshape(32, 2))
    blocks = pool.allocate(len(keys))
    assert pool.publish(blocks, keys, group=0) == len(keys)
    assert pool.find(keys.copy(), group=0).tolist() == blocks.tolist()
    assert pool.find(keys, group=0).tolist() == blocks.tolist()
    pool.check_integrity()
