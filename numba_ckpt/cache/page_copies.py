"""Bulk copies of whole pages between a host pool and the device's hot set, in an order that no stream can break."""

from collections.abc import Iterator, Sequence

import numpy as np

from numba_ckpt._array import Array, Backend, DeviceBackend, Event, backend_of
from numba_ckpt._check import check_array, check_int, check_shape, check_writable, describe, refuse
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["PageCopies"]


class PageCopies:
    """One host page for every block and the device's pages of the hot ones, in each storage.

    A block's page in *every* storage moves: keys and values, convolution window, recurrent state and whatever else a
    layer registered.

    Parameters
    ----------
    hot_pages : sequence of ndarray or cupy.ndarray
        uint8 [num_slots, page bytes] of each storage, contiguous; the device's hot set.
    num_blocks : int
        Pages of each host pool. The pools are pinned where there is a device, plain NumPy arrays otherwise.

    Attributes
    ----------
    host_pages : list of ndarray
        uint8 [num_blocks, page bytes] of each storage. Page 0, the null block's, is zero and stays so.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        No storage, wrong dtypes or shapes, different numbers of slots, arrays of different devices.

    Notes
    -----
    Copies are queued on the current stream and follow each other even if the caller changes streams in between. What
    else uses the pages is ordered by events: `after` for what came before, `last_event` for what comes next.
    """

    def __init__(self, hot_pages: Sequence[Array], num_blocks: int) -> None:
        self.hot_pages = list(hot_pages)
        self.backend = _check_pages(self.hot_pages)
        self.num_slots = int(self.hot_pages[0].shape[0])
        self.num_blocks = check_int("num_blocks", num_blocks, 2)
        self.last_event: Event | None = None
        self.host_pages: list[np.ndarray] = []
        try:
            for pages in self.hot_pages:
                self.host_pages.append(_host_pool(self.backend, num_blocks, int(pages.shape[1])))
        except BaseException:
            # The traceback keeps this object; it must not keep the pools that did fit.
            self._let_go()
            raise

    @property
    def is_settled(self) -> bool:
        """Whether all copies are done, so that the host may touch its pages; does not wait."""
        return self.last_event is None or self.last_event.done

    def copy_in(self, block_ids: np.ndarray, slots: np.ndarray, after: Event | None = None) -> None:
        """Copy host pages `block_ids` to the device's `slots`; the stream waits for `after` first."""
        self._copy(block_ids, slots, after, is_inward=True)

    def copy_out(self, block_ids: np.ndarray, slots: np.ndarray, after: Event | None = None) -> None:
        """Copy the device's `slots` to host pages `block_ids`; the stream waits for `after` first."""
        self._copy(block_ids, slots, after, is_inward=False)

    def close(self) -> None:
        """Wait for copies in flight, then let go of host pages and hot set; again is a no-op."""
        if isinstance(self.backend, DeviceBackend) and self.last_event is not None:
            self.backend.synchronize(self.last_event)
        self._let_go()

    def _let_go(self) -> None:
        self.host_pages.clear()
        self.hot_pages.clear()
        self.last_event = None

    def _copy(self, block_ids: np.ndarray, slots: np.ndarray, after: Event | None, is_inward: bool) -> None:
        if block_ids.size == 0:
            return
        if isinstance(self.backend, DeviceBackend):
            self._queue(self.backend, block_ids, slots, after, is_inward)
            return
        for host, hot in zip(self.host_pages, self.hot_pages, strict=True):
            if is_inward:
                hot[slots] = host[block_ids]
            else:
                host[block_ids] = hot[slots]

    def _queue(
        self, backend: DeviceBackend, block_ids: np.ndarray, slots: np.ndarray, after: Event | None, is_inward: bool
    ) -> None:
        for event in (self.last_event, after):
            if event is not None:
                backend.wait_event(event)
        try:
            for blocks, hot_slots in _runs(block_ids, slots):
                for host, hot in zip(self.host_pages, self.hot_pages, strict=True):
                    if is_inward:
                        backend.copy_async(hot[hot_slots], host[blocks])
                    else:
                        backend.copy_back_async(host[blocks], hot[hot_slots])
        finally:
            # Also after a failure: what was queued before it is in flight.
            self.last_event = backend.record_event()


def _runs(block_ids: np.ndarray, slots: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """Yield stretches in which blocks and slots both count up by one: each is one copy of a storage."""
    order = np.argsort(block_ids, kind="stable")
    blocks, to = block_ids[order], slots[order]
    breaks = np.flatnonzero((np.diff(blocks) != 1) | (np.diff(to) != 1)) + 1
    for first, end in zip((0, *breaks.tolist()), (*breaks.tolist(), blocks.size), strict=True):
        count = end - first
        yield slice(int(blocks[first]), int(blocks[first]) + count), slice(int(to[first]), int(to[first]) + count)


def _host_pool(backend: Backend, num_blocks: int, page_bytes: int) -> np.ndarray:
    num_bytes = num_blocks * page_bytes
    pool = backend.pinned(num_bytes) if isinstance(backend, DeviceBackend) else np.empty(num_bytes, np.uint8)
    pages = pool[:num_bytes].reshape(num_blocks, page_bytes)
    pages[0] = 0
    return pages


def _check_pages(hot_pages: list[Array]) -> Backend:
    if not hot_pages:
        refuse("hot_pages", "the pages of a storage or more", "none", "mark groups that have layers")
    for index, pages in enumerate(hot_pages):
        name = f"hot_pages[{index}]"
        check_array(name, pages, 2, "u")
        if pages.dtype != np.uint8 or not pages.flags.c_contiguous or pages.shape[1] == 0:
            expected, do = "contiguous uint8 pages of at least a byte", "view the storage as [slots, page bytes]"
            refuse(name, expected, describe(pages), do, ArgumentTypeError)
        check_shape(name, pages, (int(hot_pages[0].shape[0]), pages.shape[1]), "all storages have the same slots")
        check_writable(name, pages)
    backend = backend_of(**{f"hot_pages[{index}]": pages for index, pages in enumerate(hot_pages)})
    for index, pages in enumerate(hot_pages):
        if any(backend.may_overlap(pages, other) for other in hot_pages[:index]):
            do = "pass each storage once"
            refuse(f"hot_pages[{index}]", "memory apart from the other storages", "overlapping memory", do)
    return backend
