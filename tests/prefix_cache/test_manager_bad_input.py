"""Every mistake of a caller gets a message (name, expected, got, what to do) and changes nothing."""

import re

import numpy as np
import pytest

from numba_ckpt.cache import BlockPool
from numba_ckpt.errors import ArgumentError, ArgumentTypeError
from numba_ckpt.prefix_cache import (
    CacheConfig,
    CachedRequest,
    CacheGroup,
    HybridPrefixCache,
    PrefixHasher,
    Retention,
    WriteLedger,
)

MESSAGE = re.compile(r"^(?P<name>[\w ]+): expected (?P<expected>.+?), got (?P<got>.+); (?P<do>\w.+)$", re.DOTALL)
GROUPS = CacheGroup("full", 4), CacheGroup("state", 8, checkpoint_alignment=2)
CONFIG = CacheConfig(GROUPS, hash_block_size=4)
PROMPT = np.arange(40)
PRIMES = 2**31 - 1, 2**31 - 19


def check_message(error, name, *words):
    match = MESSAGE.match(str(error))
    assert match, f"not in the house's wording: {error}"
    assert match["name"] == name
    for word in words:
        assert word in str(error), f"{word!r} is missing in: {error}"


class Engine:
    """A cache in the middle of its work, for calls that must not disturb it."""

    def __init__(self):
        self.cache = HybridPrefixCache(CONFIG, 64)
        self.fresh, self.gone, self.running, self.lost, self.piped = (
            self.cache.add(name, PROMPT) for name in ("fresh", "gone", "running", "lost", "piped")
        )
        self.cache.finish(self.gone)
        self.committed = self._step(self.running, self.piped)
        self.cache.commit(self.committed)
        self.aborted = self._step(self.lost)
        self.cache.commit(self.aborted)
        self.aborted = self._step(self.lost, length=2)
        self.cache.abort(self.aborted)
        self.open = self._step(self.running)
        self.first, self.second = self._step(self.piped), self._step(self.piped)
        self.other = HybridPrefixCache(CONFIG, 64)
        self.stranger = self.other.add("fresh", PROMPT)
        self.empty = self.cache.begin_step()

    def _step(self, *requests, length=3):
        step = self.cache.begin_step()
        for request in requests:
            assert self.cache.reserve(step, request, length)
        return step

    def state(self):
        requests = [self.fresh, self.running, self.lost, self.piped]
        fields = [field for field in CachedRequest.__slots__ if field != "hashed"]
        steps = [self.committed, self.aborted, self.open, self.first, self.second, self.empty]
        return (
            [array.tobytes() for array in self.cache.pool.arrays],
            [repr(getattr(request, field)) for request in requests for field in fields],
            [request.hashed.num_tokens for request in requests],
            [(step.is_open, len(step.reservations), sorted(step.request_ids)) for step in steps],
        )


CALLS = {
    # add
    "an id in use": (lambda e: e.cache.add("fresh", PROMPT), "request_id", "'fresh'"),
    "an id that is no text": (lambda e: e.cache.add(7, PROMPT), "request_id", "int"),
    "no id": (lambda e: e.cache.add(None, PROMPT), "request_id", "NoneType"),
    "no tokens": (lambda e: e.cache.add("new", PROMPT[:0]), "tokens", "at least one"),
    "tokens in a list": (lambda e: e.cache.add("new", [1, 2]), "tokens", "list"),
    "tokens that are floats": (lambda e: e.cache.add("new", PROMPT * 1.0), "tokens", "float64"),
    "tokens that are bools": (lambda e: e.cache.add("new", PROMPT > 3), "tokens", "bool"),
    "negative tokens": (lambda e: e.cache.add("new", PROMPT - 1), "tokens", "-1 at index 0"),
    "tokens beyond 31 bits": (lambda e: e.cache.add("new", PROMPT + 2**31), "tokens", "at index 0"),
    "two dimensions of tokens": (lambda e: e.cache.add("new", PROMPT.reshape(2, 20)), "tokens", "(2, 20)"),
    "a salt that is text": (lambda e: e.cache.add("new", PROMPT, "salt"), "salt", "str"),
    # append_tokens
    "negative outputs": (lambda e: e.cache.append_tokens(e.running, np.array([3, -2])), "tokens", "-2 at index 1"),
    "outputs in a list": (lambda e: e.cache.append_tokens(e.running, [3]), "tokens", "list"),
    "outputs of a finished request": (lambda e: e.cache.append_tokens(e.gone, PROMPT), "request", "'gone'"),
    # look_up
    "a look-up of a running request": (lambda e: e.cache.look_up(e.running), "request", "computed tokens"),
    "a look-up of a finished request": (lambda e: e.cache.look_up(e.gone), "request", "'gone'"),
    "a look-up of another cache's": (lambda e: e.cache.look_up(e.stranger), "request", "'fresh'"),
    "a look-up of a name": (lambda e: e.cache.look_up("fresh"), "request", "str"),
    # reserve
    "no new tokens": (lambda e: e.cache.reserve(e.empty, e.fresh, 0), "num_new_tokens", "0"),
    "negative new tokens": (lambda e: e.cache.reserve(e.empty, e.fresh, -3), "num_new_tokens", "-3"),
    "half a token": (lambda e: e.cache.reserve(e.empty, e.fresh, 1.5), "num_new_tokens", "1.5"),
    "new tokens that are a bool": (lambda e: e.cache.reserve(e.empty, e.fresh, True), "num_new_tokens", "bool"),
    "a chunk beyond the prompt": (lambda e: e.cache.reserve(e.empty, e.fresh, 41), "num_new_tokens", "at most 40"),
    "more than is left": (lambda e: e.cache.reserve(e.empty, e.piped, 32), "num_new_tokens", "at most 31"),
    "a committed step's chunk": (lambda e: e.cache.reserve(e.committed, e.fresh, 1), "step", "committed or aborted"),
    "an aborted step's chunk": (lambda e: e.cache.reserve(e.aborted, e.fresh, 1), "step", "committed or aborted"),
    "a chunk in another cache's step": (lambda e: e.cache.reserve(e.other.begin_step(), e.fresh, 1), "step", "another"),
    "a chunk in no step": (lambda e: e.cache.reserve(None, e.fresh, 1), "step", "NoneType"),
    "a chunk of a finished request": (lambda e: e.cache.reserve(e.empty, e.gone, 1), "request", "'gone'"),
    "a chunk of another cache's": (lambda e: e.cache.reserve(e.empty, e.stranger, 1), "request", "'fresh'"),
    "a second chunk in one step": (lambda e: e.cache.reserve(e.open, e.running, 1), "request", "longer chunk"),
    "a chunk after a lost state": (lambda e: e.cache.reserve(e.empty, e.lost, 1), "request", "preempt"),
    # commit
    "a commit again": (lambda e: e.cache.commit(e.committed), "step", "committed or aborted"),
    "a commit after an abort": (lambda e: e.cache.commit(e.aborted), "step", "committed or aborted"),
    "a commit of another cache's step": (lambda e: e.cache.commit(e.other.begin_step()), "step", "another cache's"),
    "a commit of a list": (lambda e: e.cache.commit([e.open]), "step", "list"),
    "a commit out of order": (lambda e: e.cache.commit(e.second), "step", "'piped'", "commit the earlier"),
    "declined in a list": (lambda e: e.cache.commit(e.open, ["running"]), "declined", "list"),
    "declined as a name": (lambda e: e.cache.commit(e.open, "running"), "declined", "str"),
    "declined by someone else": (lambda e: e.cache.commit(e.open, {"fresh"}), "declined", "['fresh']"),
    "no checkpoint to decline": (
        lambda e: e.cache.commit(e.open, {"running"}),
        "declined",
        "['running']",
        "checkpoint",
    ),
    # abort
    "an abort again": (lambda e: e.cache.abort(e.aborted), "step", "committed or aborted"),
    "an abort after a commit": (lambda e: e.cache.abort(e.committed), "step", "committed or aborted"),
    "an abort out of order": (lambda e: e.cache.abort(e.first), "step", "'piped'", "abort the later"),
    "an abort of another cache's step": (lambda e: e.cache.abort(e.other.begin_step()), "step", "another cache's"),
    # preempt, finish
    "a preemption in flight": (lambda e: e.cache.preempt(e.running), "request", "1 in flight"),
    "a preemption of a finished one": (lambda e: e.cache.preempt(e.gone), "request", "'gone'"),
    "a finish in flight": (lambda e: e.cache.finish(e.piped), "request", "2 in flight"),
    "a finish again": (lambda e: e.cache.finish(e.gone), "request", "'gone'"),
    "a finish of a name": (lambda e: e.cache.finish("fresh"), "request", "str"),
    # reset
    "a reset under requests": (lambda e: e.cache.reset(), "requests", "computed tokens"),
    "a reset under held blocks": (lambda e: e.cache.pool.reset(), "pool", "held"),
    "an extra key beyond the prompt": (
        lambda e: e.cache.add("new", PROMPT, extra_keys=[(41, b"image")]),
        "extra_keys",
        "41",
    ),
    # the pool
    "a free block released": (lambda e: e.cache.pool.release([63]), "blocks", "63 at entry 0"),
    "a block released twice": (
        lambda e: e.cache.pool.release([int(e.running.table[0, 0])] * 2),
        "blocks",
        "at entry 1",
    ),
    "a block beyond the pool released": (lambda e: e.cache.pool.release([64]), "blocks", "64"),
    "a negative block released": (lambda e: e.cache.pool.release([-1]), "blocks", "-1"),
    "half a block released": (lambda e: e.cache.pool.release([1.5]), "blocks", "float64"),
    "a wide id that would wrap": (lambda e: e.cache.pool.release(np.array([2**32 + 1])), "blocks", "4294967297"),
    "an id beyond 64 bits": (lambda e: e.cache.pool.release([2**70]), "blocks", "2^63"),
    "a free block acquired": (lambda e: e.cache.pool.acquire([63]), "blocks", "63"),
    "a wide id acquired": (lambda e: e.cache.pool.acquire(np.array([2**32 + 1])), "blocks", "4294967297"),
    "a free block published": (
        lambda e: e.cache.pool.publish([63], np.zeros((1, 2), np.uint64), 0),
        "blocks",
        "63",
    ),
    "keys of another dtype": (lambda e: e.cache.pool.publish([0], np.zeros((1, 2)), 0), "keys", "float64"),
    "keys in a list": (lambda e: e.cache.pool.publish([0], [[1, 2]], 0), "keys", "list"),
    "float keys looked for": (lambda e: e.cache.pool.find(np.zeros((1, 2)), 0), "keys", "float64"),
    "listed keys looked for": (lambda e: e.cache.pool.find([1], 0), "keys", "list"),
    "one half of keys looked for": (lambda e: e.cache.pool.find(np.zeros(3, np.uint64), 0), "keys", "(n, 2)", "(3,)"),
    "three halves looked for": (lambda e: e.cache.pool.find(np.zeros((1, 3), np.uint64), 0), "keys", "(1, 3)"),
    "no group looked for": (lambda e: e.cache.pool.find(np.zeros((1, 2), np.uint64), None), "group", "None"),
    "a negative one looked for": (lambda e: e.cache.pool.find(np.zeros((1, 2), np.uint64), -1), "group", "-1"),
    "fewer keys than blocks": (
        lambda e: e.cache.pool.publish([0, 0], np.zeros((1, 2), np.uint64), 0),
        "keys",
        "(2, 2)",
    ),
    "a negative group": (lambda e: e.cache.pool.publish([0], np.zeros((1, 2), np.uint64), -1), "group", "-1"),
    "a negative count": (lambda e: e.cache.pool.allocate(-1), "count", "-1"),
    "half a block": (lambda e: e.cache.pool.allocate(0.5), "count", "0.5"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_is_refused_and_changes_nothing(call):
    engine = Engine()
    before = engine.state()
    with pytest.raises(ArgumentError) as raised:
        call[0](engine)
    check_message(raised.value, *call[1:])
    assert engine.state() == before
    engine.cache.pool.check_integrity()


PARTS = {
    "no block": (lambda: HybridPrefixCache(CONFIG, 0), "num_blocks", "0"),
    "the null block alone": (lambda: BlockPool(1), "num_blocks", "1"),
    "a negative pool": (lambda: BlockPool(-4), "num_blocks", "-4"),
    "half a pool": (lambda: HybridPrefixCache(CONFIG, 2.5), "num_blocks", "2.5"),
    "a tuple for a config": (lambda: HybridPrefixCache(GROUPS, 8), "config", "tuple"),
    "another unit": (lambda: HybridPrefixCache(CONFIG, 8, PrefixHasher(8)), "hasher", "unit 4", "unit 8"),
    "a unit for a hasher": (lambda: HybridPrefixCache(CONFIG, 8, 4), "hasher", "int"),
    "an interval for a retention": (lambda: HybridPrefixCache(CONFIG, 8, retention=4), "retention", "int"),
    "no retention": (lambda: HybridPrefixCache(CONFIG, 8, retention=None), "retention", "NoneType"),
    "a class for a ledger": (lambda: HybridPrefixCache(CONFIG, 8, ledger=WriteLedger), "ledger", "type"),
    "a negative interval": (lambda: Retention(-1), "interval", "-1"),
    "half an interval": (lambda: Retention(0.5), "interval", "0.5"),
    "no groups": (lambda: CacheConfig((), 4), "groups", "()"),
    "groups that are sizes": (lambda: CacheConfig((4, 8), 4), "groups", "4"),
    "a group alone": (lambda: CacheConfig(GROUPS[0], 4), "groups", "CacheGroup"),
    "a unit of 0": (lambda: CacheConfig(GROUPS, 0), "hash_block_size", "0"),
    "a unit that does not divide": (lambda: CacheConfig(GROUPS, 3), "block_size", "multiple of hash_block_size 3"),
    "no common unit": (lambda: CacheConfig((CacheGroup("full", 4), CacheGroup("state", 6)), 4), "block_size", "6"),
    "an alignment off the unit": (lambda: CacheConfig(GROUPS, 4, 6), "cache_hit_alignment_tokens", "6"),
    "an alignment of 0": (lambda: CacheConfig(GROUPS, 4, 0), "cache_hit_alignment_tokens", "0"),
    "a drop that is a number": (lambda: CacheConfig(GROUPS[:1], 4, None, 1), "drop_eagle_block", "1"),
    "a negative lookahead": (lambda: CacheConfig(GROUPS[:1], 4, None, False, -1), "num_hash_lookahead_tokens", "-1"),
    "an unknown kind": (lambda: CacheGroup("mamba", 4), "kind", "'mamba'"),
    "blocks of no tokens": (lambda: CacheGroup("full", 0), "block_size", "0"),
    "blocks of half tokens": (lambda: CacheGroup("full", 4.5), "block_size", "4.5"),
    "a window of full attention": (lambda: CacheGroup("full", 4, 8), "window", "8"),
    "a sliding window without one": (lambda: CacheGroup("sliding_window", 4), "window", "None"),
    "a window of 0": (lambda: CacheGroup("chunked_local", 4, 0), "window", "0"),
    "checkpoints of attention": (lambda: CacheGroup("full", 4, None, 2), "checkpoint_alignment", "2"),
    "drafts of attention": (
        lambda: CacheGroup("full", 4, num_speculative_blocks=1),
        "num_speculative_blocks",
        "1",
    ),
    "fewer drafts than none": (
        lambda: CacheGroup("state", 4, num_speculative_blocks=-1),
        "num_speculative_blocks",
        "-1",
    ),
    "more drafts than any table takes": (
        lambda: CacheGroup("state", 4, num_speculative_blocks=2**31 - 1),
        "num_speculative_blocks",
        "[0, 1024]",
    ),
    "blocks without a common multiple": (
        lambda: CacheConfig([CacheGroup("full", size) for size in PRIMES], 1),
        "block_size",
        "common multiple of at most 2147483647",
        "2147483629, 2147483647",
    ),
    "an alignment and blocks without one": (
        lambda: CacheConfig([CacheGroup("full", PRIMES[0])], 1, PRIMES[1]),
        "cache_hit_alignment_tokens",
        "common multiple",
    ),
    "checkpoints without one": (
        lambda: CacheConfig([CacheGroup("state", 4, checkpoint_alignment=size) for size in PRIMES], 1),
        "checkpoint_alignment",
        "common multiple",
    ),
    "an alignment of no tokens": (lambda: CacheGroup("state", 4, None, 0), "checkpoint_alignment", "0"),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_is_refused(part):
    with pytest.raises(ArgumentError) as raised:
        part[0]()
    check_message(raised.value, *part[1:])


def test_the_tables_are_long_enough():
    assert len(CALLS) + len(PARTS) >= 40


def test_wrong_types_are_type_errors_too():
    with pytest.raises(TypeError):
        HybridPrefixCache(GROUPS, 8)
    assert issubclass(ArgumentTypeError, TypeError)


def test_groups_may_come_from_a_generator():
    assert CacheConfig((group for group in GROUPS), 4) == CONFIG
