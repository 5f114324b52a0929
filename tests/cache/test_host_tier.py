"""Pages between host and device: an oracle that keeps every page, the known failures, and what is refused."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.cache.host_tier import HostTier
from numba_ckpt.errors import ArgumentError, ArgumentTypeError, BackendMixError
from numba_ckpt.testing import SimulatedDevice

NUM_BLOCKS, NUM_SLOTS, PAGE_BYTES = 9, 4, (8, 4, 2)


@pytest.fixture(params=["host", "device"])
def device(request):
    if request.param == "host":
        yield None
        return
    with SimulatedDevice.attached() as simulated:
        yield simulated


def _hot_pages(device):
    pages = [np.full((NUM_SLOTS, num_bytes), 255, np.uint8) for num_bytes in PAGE_BYTES]
    return pages if device is None else [device.put(page) for page in pages]


def _get(device, array):
    return array if device is None else device.get(array)


def _write(device, hot, slot, value):
    """Write a page of every storage as a kernel would: after all copies queued before it."""
    for number, pages in enumerate(hot):
        _get(device, pages)[slot] = value + number


def _read(device, hot, slot):
    return [int(_get(device, pages)[slot].max()) for pages in hot]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "write", "store", "forget"]),
        st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=NUM_SLOTS - 1),
    ),
    max_size=25,
)


def _live(device, steps):
    hot = _hot_pages(device)
    tier, contents, value = HostTier(hot, NUM_BLOCKS), {}, 0
    for what, ids in steps:
        if what == "forget":
            tier.forget(ids)
            contents = {block: page for block, page in contents.items() if block not in ids}
        elif what == "store":
            tier.store()
            assert tier.is_stored(list(contents)).all()
        else:
            slots = tier.load(ids)
            assert (slots == 0).tolist() == [block == 0 for block in ids]
            for block, slot in zip(ids, slots.tolist(), strict=True):
                expected = contents.get(block, 0)
                assert _read(device, hot, slot) == [expected + number if expected else 0 for number in range(3)]
                if what == "write" and block:
                    value = value % 200 + 1
                    contents[block] = value
                    _write(device, hot, slot, value)
            if what == "write":
                tier.mark_written(ids)
        assert tier.num_resident < NUM_SLOTS
    tier.close()


@given(STEPS)
def test_every_block_keeps_its_pages_on_the_host(steps):
    _live(None, steps)


@given(STEPS)
def test_every_block_keeps_its_pages_on_a_device(steps):
    with SimulatedDevice.attached() as device:
        _live(device, steps)


def test_null_ids_are_never_moved_nor_stored(device):
    """Case B60: a boundary whose block is the null block is nothing to keep."""
    hot = _hot_pages(device)
    tier = HostTier(hot, NUM_BLOCKS)
    slots = tier.load(np.array([[0, 3], [0, 0]]))
    assert slots.tolist() == [[0, 1], [0, 0]]
    tier.mark_written([0, 3])
    assert tier.store([0, 3]) == 1
    assert tier.is_stored([0, 3]).tolist() == [False, True]
    assert _read(device, hot, 0) == [0, 0, 0]


def test_what_nobody_wrote_is_not_stored(device):
    """Case B61: a scratch block that no step reached is nothing to keep either."""
    tier = HostTier(_hot_pages(device), NUM_BLOCKS)
    tier.load([4])
    assert tier.store([0, 4]) == tier.store() == 0
    assert not tier.is_stored([0, 4]).any()


def test_a_page_is_not_rewritten_under_a_copy_that_reads_it(device):
    """Case B75: block 5 comes in, is written and goes out again, all before the first copy has run."""
    hot = _hot_pages(device)
    tier = HostTier(hot, NUM_BLOCKS)
    first = int(tier.load([5])[0])
    _write(device, hot, first, 40)
    tier.mark_written([5])
    tier.load([1, 2, 3])
    again = int(tier.load([5])[0])  # reads the host's page 5, and is still queued
    tier.mark_written([5])
    tier.store()  # would write page 5
    assert _read(device, hot, again) == [40, 41, 42]
    assert [int(page[0]) for page in tier.host_pages(5)] == [40, 41, 42]


def test_all_state_tensors_of_a_block_move(device):
    """Case B65: convolution window, recurrent state and a registered side state travel together."""
    hot = _hot_pages(device)
    tier = HostTier(hot, NUM_BLOCKS)
    _write(device, hot, int(tier.load([5])[0]), 40)
    tier.mark_written([5])
    tier.load([1, 2, 3])  # pushes block 5 out
    if device is not None:
        device.wait()
    assert [page.tolist() for page in tier.host_pages(5)] == [[40] * 8, [41] * 4, [42] * 2]
    assert _read(device, hot, int(tier.load([5])[0])) == [40, 41, 42]


@pytest.mark.parametrize("how", ["never written", "given back"])
def test_a_new_tenant_finds_zeros(device, how):
    """Cases B43 and B44: what an earlier tenant left is not there to be read."""
    hot = _hot_pages(device)
    tier = HostTier(hot, NUM_BLOCKS)
    if how == "given back":
        _write(device, hot, int(tier.load([6])[0]), 99)
        tier.mark_written([6])
        tier.store()
        tier.forget([6])
    assert _read(device, hot, int(tier.load([6])[0])) == [0, 0, 0]


class _TwoStreams(SimulatedDevice):
    """The worst order that events allow: the main stream runs late, the side stream at once."""

    is_side = False

    def copy_async(self, destination, source):
        super().copy_async(destination, source)
        self._race()

    def copy_back_async(self, destination, source):
        super().copy_back_async(destination, source)
        self._race()

    def record_event(self):
        event = super().record_event()
        self._race()
        return event

    def wait_event(self, event):
        while self.is_side and not event.done:
            self._queue.pop(0)()

    def write(self, pages, slot, value):
        self._queue.append(lambda: pages.__setitem__(slot, value))

    def _race(self):
        if self.is_side:
            self._queue.pop()()


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_on_a_side_stream_waits_for_its_writer(waits):
    """Case B64: without the event the copy overtakes the step that writes."""
    with _TwoStreams.attached() as device:
        hot = _hot_pages(device)
        tier = HostTier(hot, NUM_BLOCKS)
        slot = int(tier.load([5])[0])
        for pages in hot:
            device.write(pages, slot, 7)
        written = device.record_event()
        tier.mark_written([5])
        device.is_side = True
        tier.store(after=written if waits else None)
        assert (tier.host_pages(5)[0].tolist() == [7] * 8) is waits


def test_a_slot_is_reused_only_after_its_copy():
    """Case B64, the other way: the copy out is queued late, and a side stream loads into the slot."""
    with _TwoStreams.attached() as device:
        hot = _hot_pages(device)
        tier = HostTier(hot, NUM_BLOCKS)
        tier.load([5])
        for pages in hot:
            device.write(pages, 1, 7)
        tier.mark_written([5])
        tier.store()
        tier.forget([1])
        device.is_side = True
        tier.load([1, 2, 3])
        device.is_side = False
        device.wait()
        assert tier.host_pages(5)[0].tolist() == [7] * 8
        assert _read(device, hot, 1) == [0, 0, 0]


def test_consecutive_pages_move_in_one_copy_each():
    with SimulatedDevice.attached() as device:
        hot = [device.put(np.zeros((200, 16), np.uint8))]
        tier = HostTier(hot, 1000)
        tier.load(np.arange(500, 600))
        tier.mark_written(np.arange(500, 600))
        before = device.num_copies
        assert tier.store() == 100
        assert device.num_copies == before + 1
        tier.forget(np.arange(500, 550))
        tier.load(np.arange(500, 600))
        assert device.num_waits == 0


class _SmallHost(SimulatedDevice):
    """A device whose host has room for two pinned pools."""

    def __init__(self):
        super().__init__()
        self.pools = []

    def pinned(self, num_bytes):
        if len(self.pools) == 2:
            raise MemoryError("no pinned memory")
        pool = super().pinned(num_bytes)
        self.pools.append(weakref.ref(pool))
        return pool


def test_half_a_tier_is_let_go():
    with _SmallHost.attached() as device:
        hot = _hot_pages(device)
        with pytest.raises(MemoryError) as failure:  # whose traceback keeps the frames
            HostTier(hot, NUM_BLOCKS)
        gc.collect()
        assert [pool() for pool in device.pools] == [None, None]
        assert failure.tb is not None


class _BrokenCopies(SimulatedDevice):
    budget = 10**9

    def copy_async(self, destination, source):
        self.budget -= 1
        if self.budget < 0:
            raise RuntimeError("the device is gone")
        super().copy_async(destination, source)


@pytest.mark.parametrize("budget", range(6))
def test_a_load_that_fails_loses_no_contents(budget):
    with _BrokenCopies.attached() as device:
        hot = _hot_pages(device)
        tier = HostTier(hot, NUM_BLOCKS)
        for block in (1, 2, 3):
            _write(device, hot, int(tier.load([block])[0]), 10 * block)
            tier.mark_written([block])
        device.budget = budget
        with pytest.raises(RuntimeError, match="the device is gone"):
            tier.load([4, 6])
        device.budget = 10**9
        for block in (1, 2, 3):
            assert _read(device, hot, int(tier.load([block])[0])) == [10 * block, 10 * block + 1, 10 * block + 2]
        assert _read(device, hot, int(tier.load([4])[0])) == [0, 0, 0]


def test_closing_waits_once_and_lets_go():
    with SimulatedDevice.attached() as device:
        tier = HostTier(_hot_pages(device), NUM_BLOCKS)
        tier.load([1])
        tier.close()
        tier.close()
        assert device.num_waits == 1
        for call in (lambda: tier.load([1]), tier.store, lambda: tier.forget([1]), lambda: tier.is_stored([1])):
            with pytest.raises(ArgumentError, match="host tier: expected an open one, got one that was closed"):
                call()


def test_a_storage_is_passed_once(device):
    hot = _hot_pages(device)
    with pytest.raises(ArgumentError, match=r"hot_pages.1.: expected memory apart from the other storages"):
        HostTier([hot[0], hot[0]], NUM_BLOCKS)


BAD_CALLS = [
    ("load", [9], r"block_ids: expected ids in \[0, 8\], got 9"),
    ("load", [-1], r"block_ids: expected ids in \[0, 8\], got -1"),
    ("load", [2**40], r"expected ids in \[0, 8\], got 1099511627776"),
    ("load", np.array([2**63], np.uint64), r"expected ids in \[0, 8\], got 9223372036854775808"),
    ("load", [1, 2, 3, 4], "expected at most 3 blocks, the size of the hot set, got 4; load fewer at a time"),
    ("load", [1.0], "block_ids: expected an integer dtype"),
    ("load", [True], "block_ids: expected integers, got a bool among them"),
    ("load", np.array([True]), "block_ids: expected an integer dtype"),
    ("load", "12", "block_ids: expected a list or a 1-d integer array"),
    ("load", [[1], [1, 2]], "block_ids: expected a flat list of integers"),
    ("load", None, "block_ids: expected a list or a 1-d integer array"),
    ("mark_written", [4], "expected blocks in the hot set, got block 4, which is not; load it first"),
    ("mark_written", [9], r"expected ids in \[0, 8\], got 9"),
    ("store", [4], "expected blocks in the hot set, got block 4"),
    ("store", [1, -2], r"expected ids in \[0, 8\], got -2"),
    ("forget", [100], r"expected ids in \[0, 8\], got 100"),
    ("forget", [0.5], "block_ids: expected an integer dtype"),
    ("is_stored", [-9], r"expected ids in \[0, 8\], got -9"),
    ("host_pages", 0, r"block_id: expected an integer in \[1, 8\], got 0"),
    ("host_pages", 2, "block_id: expected a block stored on the host, got 2; store it first"),
    ("host_pages", 9, r"block_id: expected an integer in \[1, 8\], got 9"),
]


def _state(tier):
    return {name: value.tolist() for name, value in vars(tier).items() if isinstance(value, np.ndarray)} | {
        "clock": tier._clock
    }


@pytest.mark.parametrize(("call", "argument", "message"), BAD_CALLS)
def test_bad_calls_are_refused_and_change_nothing(device, call, argument, message):
    hot = _hot_pages(device)
    tier = HostTier(hot, NUM_BLOCKS)
    tier.load([1, 2])
    tier.mark_written([2])
    before, pages = _state(tier), [_get(device, page).copy() for page in hot]
    with pytest.raises(ArgumentError, match=message):
        getattr(tier, call)(argument)
    assert _state(tier) == before
    assert all((_get(device, page) == old).all() for page, old in zip(hot, pages, strict=True))


def test_block_ids_of_a_device_are_refused():
    with SimulatedDevice.attached() as device:
        tier = HostTier(_hot_pages(device), NUM_BLOCKS)
        with pytest.raises(ArgumentTypeError, match="keep the block table on the host"):
            tier.load(device.put(np.array([1])))


def test_pages_in_flight_are_not_shown():
    with SimulatedDevice.attached() as device:
        tier = HostTier(_hot_pages(device), NUM_BLOCKS)
        tier.load([1])
        tier.mark_written([1])
        tier.store()
        with pytest.raises(ArgumentError, match="host_pages: expected no copies in flight, got some"):
            tier.host_pages(1)


PAGES = np.zeros((4, 8), np.uint8)
BAD_TIERS = [
    ([], 9, ArgumentError, "hot_pages: expected the pages of a storage or more, got none"),
    ([PAGES], 1, ArgumentError, r"num_blocks: expected an integer in \[2, "),
    ([PAGES], 9.0, ArgumentTypeError, "num_blocks: expected an integer"),
    ([PAGES[:1]], 9, ArgumentError, r"num_slots: expected an integer in \[2, "),
    ([PAGES, PAGES[:3]], 9, ArgumentError, r"hot_pages\[1\]: expected shape \(4, 8\)"),
    ([PAGES[:, ::2]], 9, ArgumentTypeError, r"hot_pages\[0\]: expected contiguous uint8 pages"),
    ([PAGES[:, :0]], 9, ArgumentTypeError, r"hot_pages\[0\]: expected contiguous uint8 pages"),
    ([PAGES.view(np.uint32)], 9, ArgumentTypeError, r"hot_pages\[0\]: expected contiguous uint8 pages"),
    ([PAGES.view(np.int8)], 9, ArgumentTypeError, r"hot_pages\[0\]: expected u, got int8"),
    ([PAGES[0]], 9, ArgumentError, r"hot_pages\[0\]: expected 2 dimension"),
    (["pages"], 9, ArgumentTypeError, r"hot_pages\[0\]: expected a 2-d array, got str"),
]


@pytest.mark.parametrize(("pages", "num_blocks", "error", "message"), BAD_TIERS)
def test_bad_tiers_are_refused(pages, num_blocks, error, message):
    with pytest.raises(error, match=message):
        HostTier(pages, num_blocks)


def test_storages_of_two_devices_are_refused():
    with SimulatedDevice.attached() as device, pytest.raises(BackendMixError):
        HostTier([PAGES, device.put(PAGES)], NUM_BLOCKS)


def test_read_only_pages_are_refused():
    pages = PAGES.copy()
    pages.flags.writeable = False
    with pytest.raises(ArgumentError, match="expected a writable array"):
        HostTier([pages], NUM_BLOCKS)
