"""The write ledger lets no key lead to a block that holds anything else than what the key says."""

import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError, LedgerError
from numba_ckpt.prefix_cache import DENSE, CacheConfig, CacheGroup, HybridPrefixCache, WriteLedger
from numba_ckpt.prefix_cache.chunk_loops import CHECKPOINT_BLOCK, OFFSET, RUNNING_BLOCK

FULL, STATE = 0, 1
CONFIG = CacheConfig((CacheGroup("full", 4), CacheGroup("state", 8, checkpoint_alignment=4)), hash_block_size=4)
PROMPT = np.arange(43)  # one chunk, with a checkpoint at 40
CHECKPOINT = 40


class Rig:
    def __init__(self, num_blocks=64, retention=DENSE):
        self.ledger = WriteLedger()
        self.cache = HybridPrefixCache(CONFIG, num_blocks, retention=retention, ledger=self.ledger)

    def reserve(self, request, length):
        step = self.cache.begin_step()
        chunk = self.cache.reserve(step, request, length)
        assert chunk is not None
        return step, chunk

    def write(self, chunk, field, length):
        """Say that the state after `length` tokens was written."""
        key = tuple(chunk.request.keys[length // 4 - 1].tolist())
        self.ledger.write(STATE, int(chunk.groups[STATE, field]), key, length)

    def refuses(self, step, *words):
        """The commit raises and changes nothing; an abort is still possible."""
        before = [array.tobytes() for array in self.cache.pool.arrays]
        with pytest.raises(LedgerError) as raised:
            self.cache.commit(step)
        assert all(word in str(raised.value) for word in words), raised.value
        assert before == [array.tobytes() for array in self.cache.pool.arrays]
        assert self.cache.pool.num_cached == 0
        self.cache.abort(step)


def _repeat(rig):
    return rig.cache.look_up(rig.cache.add("again", PROMPT)).num_tokens


def test_a_checkpoint_that_was_declined_but_not_declared():
    rig = Rig()
    request = rig.cache.add("request", PROMPT)
    step, chunk = rig.reserve(request, 43)
    assert int(chunk.groups[STATE, OFFSET]) == CHECKPOINT
    rig.refuses(step, "never written", "expected the state after 40 tokens", "declined")
    assert _repeat(rig) == 0


def test_a_declared_one_is_not_published_and_its_block_is_free():
    rig = Rig()
    request = rig.cache.add("request", PROMPT)
    available = rig.cache.pool.num_available
    step, _ = rig.reserve(request, 43)
    rig.cache.commit(step, {"request"})
    rig.cache.finish(request)
    assert rig.cache.pool.num_available == available
    assert rig.cache.pool.find(request.keys, FULL).size == 10
    assert _repeat(rig) == 0


def test_a_written_one_is_served():
    rig = Rig()
    request = rig.cache.add("request", PROMPT)
    step, chunk = rig.reserve(request, 43)
    rig.write(chunk, CHECKPOINT_BLOCK, CHECKPOINT)
    rig.cache.commit(step)
    assert _repeat(rig) == CHECKPOINT


def test_a_running_state_that_was_never_written():
    rig = Rig()
    step, _ = rig.reserve(rig.cache.add("request", PROMPT), 4)
    rig.refuses(step, "never written", "expected the state after 4 tokens")


def test_a_running_state_that_has_not_reached_its_boundary():
    """A key given to the block that a chunk starts in, whose state is a shorter prefix's."""
    rig = Rig()
    request = rig.cache.add("request", PROMPT)
    step, chunk = rig.reserve(request, 12)
    rig.write(chunk, CHECKPOINT_BLOCK, 8)
    rig.write(chunk, RUNNING_BLOCK, 8)
    rig.refuses(step, "expected the state after 12 tokens", "got the state after 8 tokens")


def test_a_state_of_another_prompt():
    rig = Rig()
    other = rig.cache.add("other", PROMPT + 1)
    step, chunk = rig.reserve(rig.cache.add("request", PROMPT), 4)
    rig.ledger.write(STATE, int(chunk.groups[STATE, RUNNING_BLOCK]), tuple(other.keys[0].tolist()), 4)
    rig.refuses(step, "of another prefix")


def test_what_a_block_held_for_its_last_owner_does_not_count():
    """The block held the right state once; the attention group has had it since."""
    rig = Rig()
    request = rig.cache.add("request", PROMPT)
    step, chunk = rig.reserve(request, 4)
    rig.write(chunk, RUNNING_BLOCK, 4)
    first = int(chunk.groups[STATE, RUNNING_BLOCK])
    rig.cache.abort(step)
    step, _ = rig.reserve(request, 4)
    assert int(request.table[FULL, 0]) == first
    rig.cache.abort(step)
    step, chunk = rig.reserve(request, 4)
    assert int(chunk.groups[STATE, RUNNING_BLOCK]) == first
    rig.refuses(step, "never written")


def test_one_bad_chunk_keeps_all_of_its_step_unpublished():
    rig = Rig()
    step = rig.cache.begin_step()
    for name, shift in (("good", 0), ("bad", 1)):
        chunk = rig.cache.reserve(step, rig.cache.add(name, PROMPT + shift), 4)
        if name == "good":
            rig.write(chunk, RUNNING_BLOCK, 4)
    rig.refuses(step, "never written")
    assert _repeat(rig) == 0


def test_a_state_that_is_not_kept_need_not_be_told():
    rig = Rig()
    step, _ = rig.reserve(rig.cache.add("request", PROMPT), 5)
    rig.cache.commit(step)
    assert rig.cache.pool.num_cached == 1  # the attention block


def _publish(rig):
    """Serve the prompt; returns its request, now done, and the block that its checkpoint's key leads to."""
    request = rig.cache.add("request", PROMPT)
    step, chunk = rig.reserve(request, 43)
    rig.write(chunk, CHECKPOINT_BLOCK, CHECKPOINT)
    rig.cache.commit(step)
    rig.cache.finish(request)
    return request, int(chunk.groups[STATE, CHECKPOINT_BLOCK])


def _key(request, length):
    return tuple(request.keys[length // 4 - 1].tolist())


def _all_of(cache, request):
    arrays = *cache.pool.arrays, request.table
    return [array.tobytes() for array in arrays], cache.counters, request.num_computed_tokens, request.num_in_flight


def _refuses_look_ups(rig, *words):
    """A look-up of the prompt raises and changes nothing."""
    request = rig.cache.add("asks", PROMPT)
    before = _all_of(rig.cache, request)
    with pytest.raises(LedgerError) as raised:
        rig.cache.look_up(request)
    assert all(word in str(raised.value) for word in words), raised.value
    assert _all_of(rig.cache, request) == before


OVERWRITES = {
    "by a longer prefix's state": (
        lambda request, block: (STATE, block, _key(request, 36), 36),
        "of another prefix",
    ),
    "by more of the same": (lambda request, block: (STATE, block, _key(request, 40), 41), "41 tokens"),
    "by another group's": (lambda request, block: (2, block, _key(request, 40), 40), "of group 2"),
}


@pytest.mark.parametrize(("write", "word"), OVERWRITES.values(), ids=OVERWRITES)
def test_a_published_state_that_is_overwritten(write, word):
    rig = Rig()
    request, block = _publish(rig)
    with pytest.raises(LedgerError, match=word) as raised:
        rig.ledger.write(*write(request, block))
    assert f"block {block} of group 1" in str(raised.value)
    _refuses_look_ups(rig, f"block {block} of group 1", "expected the state after 40 tokens", word)


def test_a_published_state_that_is_lost():
    rig = Rig()
    _, block = _publish(rig)
    with pytest.raises(LedgerError, match="never written"):
        rig.ledger.forget(STATE, block)
    _refuses_look_ups(rig, "never written")


def test_a_published_attention_block_that_a_state_is_written_to():
    rig = Rig()
    request, _ = _publish(rig)
    [block] = rig.cache.pool.find(request.keys[:1], FULL).tolist()
    with pytest.raises(LedgerError, match=f"block {block} of group 0"):
        rig.ledger.write(STATE, block, _key(request, 4), 4)


def test_a_published_state_may_be_written_as_it_is_or_put_right():
    rig = Rig()
    request, block = _publish(rig)
    rig.ledger.write(STATE, block, _key(request, 40), 40)
    with pytest.raises(LedgerError):
        rig.ledger.write(STATE, block, _key(request, 36), 36)
    rig.ledger.write(STATE, block, _key(request, 40), 40)
    assert _repeat(rig) == CHECKPOINT


def test_a_key_that_someone_else_published():
    """The block was written by nobody; its key lies, and a look-up does not believe it."""
    rig = Rig()
    request = rig.cache.add("request", PROMPT)
    pool = rig.cache.pool
    blocks = pool.allocate(10)
    pool.publish(blocks, request.keys, FULL)
    pool.publish(pool.allocate(1), request.keys[9:10], STATE)
    _refuses_look_ups(rig, "expected the state after 40 tokens", "never written")


def test_a_state_of_a_prefix_that_the_hit_does_not_reach():
    """All states that the prompt's keys lead to are looked at, not the longest alone."""
    rig = Rig()
    request, _ = _publish(rig)
    rig.cache.pool.publish(rig.cache.pool.allocate(1), request.keys[4:5], STATE)
    _refuses_look_ups(rig, "expected the state after 20 tokens", "never written")


def test_the_block_of_an_evicted_key_is_anyones():
    rig = Rig(num_blocks=16)
    request, block = _publish(rig)
    taken = rig.cache.pool.allocate(15)
    assert block in taken
    rig.ledger.write(STATE, block, _key(request, 4), 4)
    rig.cache.pool.release(taken)
    assert _repeat(rig) == 0


def test_a_reset_pool_has_no_keys_to_contradict():
    rig = Rig()
    request, block = _publish(rig)
    rig.cache.reset()
    rig.ledger.write(STATE, block, _key(request, 4), 4)
    assert _repeat(rig) == 0


BAD_WRITES = {
    "the null block": (STATE, 0, (1, 2), 4),
    "a block beyond the pool": (STATE, 64, (1, 2), 4),
    "half a block": (STATE, 1.5, (1, 2), 4),
    "a negative group": (-1, 1, (1, 2), 4),
    "a negative length": (STATE, 1, (1, 2), -4),
    "half a prefix": (STATE, 1, (1,), 4),
    "a row of keys": (STATE, 1, np.zeros(2, np.uint64), 4),
    "a negative prefix": (STATE, 1, (-1, 2), 4),
}


@pytest.mark.parametrize("write", BAD_WRITES.values(), ids=BAD_WRITES)
def test_what_cannot_have_been_written(write):
    rig = Rig()
    with pytest.raises(ArgumentError, match=r"expected .+, got .+; \w+"):
        rig.ledger.write(*write)
    assert rig.ledger._content == {}


def test_a_ledger_is_one_caches():
    rig = Rig()
    with pytest.raises(ArgumentError, match="ledger: expected a new one, got another cache's; give"):
        HybridPrefixCache(CONFIG, 64, ledger=rig.ledger)
