import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from numba_ckpt.errors import ArgumentError
from numba_ckpt.prefix_cache import PrefixIndex
from numba_ckpt.rules import NULL_BLOCK_ID

NUM_BLOCKS = 6


def _key(number: int) -> tuple[bytes, int, int]:
    return (bytes([number]), -1, 0)


def _stored(index: PrefixIndex, number: int) -> int:
    """Store a state under a key and let go of it."""
    [block] = index.reserve(1)
    index.mark_written([block])
    assert index.publish(_key(number), block)
    index.release(block)
    return block


def test_a_reserved_block_cannot_be_published_before_it_is_written():
    index = PrefixIndex(NUM_BLOCKS)
    [block] = index.reserve(1)
    with pytest.raises(ArgumentError, match="expected a written block, got block 1, only reserved"):
        index.publish(_key(0), block)
    assert index.acquire_longest([_key(0)]) is None
    index.mark_written([block])
    assert index.publish(_key(0), block)
    assert index.acquire_longest([_key(0)]) == (0, block)


def test_a_block_that_changed_hands_has_to_be_written_again():
    index = PrefixIndex(2)
    block = _stored(index, 0)
    assert index.reserve(1) == [block]
    assert index.acquire_longest([_key(0)]) is None
    with pytest.raises(ArgumentError, match="only reserved"):
        index.publish(_key(1), block)


def test_the_longest_key_wins():
    index = PrefixIndex(NUM_BLOCKS)
    blocks = [_stored(index, number) for number in range(3)]
    assert index.acquire_longest(map(_key, (9, 2, 1))) == (1, blocks[2])


def test_what_was_not_used_for_longest_is_evicted_first():
    index = PrefixIndex(4)
    blocks = [_stored(index, number) for number in range(3)]
    index.release(index.acquire_longest([_key(0)])[1])
    assert index.reserve(2) == [blocks[1], blocks[2]]
    assert index.counters.evicted == 2
    assert index.acquire_longest([_key(0)]) == (0, blocks[0])


def test_a_held_state_is_not_evicted():
    index = PrefixIndex(3)
    block = _stored(index, 0)
    index.acquire_longest([_key(0)])
    assert index.reserve(1) != [block]
    with pytest.raises(ArgumentError, match="expected 1 blocks to reserve, got 0"):
        index.reserve(1)


def test_a_reservation_that_does_not_fit_changes_nothing():
    index = PrefixIndex(4)
    block = _stored(index, 0)
    with pytest.raises(ArgumentError, match="num_blocks: expected 4 blocks to reserve, got 3; make the pool larger"):
        index.reserve(4)
    assert index.acquire_longest([_key(0)]) == (0, block)
    index.check_integrity()


def test_the_second_state_of_a_prefix_stays_private():
    index = PrefixIndex(NUM_BLOCKS)
    first = _stored(index, 0)
    [second] = index.reserve(1)
    index.mark_written([second])
    assert not index.publish(_key(0), second)
    index.release(second)
    assert index.acquire_longest([_key(0)]) == (0, first)
    assert index.counters.duplicates == 1
    index.check_integrity()


@pytest.mark.parametrize("action", ["release", "publish", "mark_written"])
@pytest.mark.parametrize("block", [NULL_BLOCK_ID, 3, NUM_BLOCKS])
def test_a_block_that_nobody_holds_is_refused(action, block):
    index = PrefixIndex(NUM_BLOCKS)
    arguments = {"release": (block,), "publish": (_key(0), block), "mark_written": ([block],)}[action]
    with pytest.raises(ArgumentError, match=f"expected a block that is held, got block {block}"):
        getattr(index, action)(*arguments)
    index.check_integrity()


def test_a_published_block_keeps_its_key():
    index = PrefixIndex(NUM_BLOCKS)
    _stored(index, 0)
    _, block = index.acquire_longest([_key(0)])
    with pytest.raises(ArgumentError, match="expected a private block"):
        index.publish(_key(1), block)


@pytest.mark.parametrize("num_blocks", [1, 0, -1, True, 2.0])
def test_a_pool_without_room_is_refused(num_blocks):
    with pytest.raises(ArgumentError, match="num_blocks"):
        PrefixIndex(num_blocks)


class IndexMachine(RuleBasedStateMachine):
    """Random owners of blocks against a model: which key must lead to which block."""

    held = Bundle("held")
    keys = st.integers(0, 4)

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(NUM_BLOCKS)
        self.written: set[int] = set()
        self.published: dict[int, int] = {}
        self.holds: list[int] = []

    @rule(target=held)
    def reserve(self):
        if self.index.num_available == 0:
            return None
        [block] = self.index.reserve(1)
        assert block != NULL_BLOCK_ID
        assert block not in self.holds
        self.published = {key: other for key, other in self.published.items() if other != block}
        self.written.discard(block)
        self.holds.append(block)
        return block

    @rule(block=held)
    def write(self, block):
        if block in self.holds:
            self.index.mark_written([block])
            self.written.add(block)

    @rule(block=held, key=keys)
    def publish(self, block, key):
        may = block in self.holds and block in self.written and block not in self.published.values()
        if not may:
            with pytest.raises(ArgumentError):
                self.index.publish(_key(key), block)
        elif self.index.publish(_key(key), block):
            assert key not in self.published
            self.published[key] = block

    @rule(target=held, wanted=st.lists(keys, max_size=3))
    def look_up(self, wanted):
        expected = next(((at, self.published[key]) for at, key in enumerate(wanted) if key in self.published), None)
        assert self.index.acquire_longest(map(_key, wanted)) == expected
        if expected is None:
            return None
        self.holds.append(expected[1])
        return expected[1]

    @rule(block=consumes(held))
    def release(self, block):
        if block in self.holds:
            self.holds.remove(block)
            self.index.release(block)

    @invariant()
    def agrees(self):
        self.index.check_integrity()
        assert self.index.num_cached == len(self.published)
        assert set(self.published.values()) <= self.written
        assert self.index.num_available == NUM_BLOCKS - 1 - len(set(self.holds))


IndexMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndexMachine = IndexMachine.TestCase
