"""A step as the prefix cache keeps it."""

from typing import Any

from numba_ckpt.prefix_cache.request import CachedRequest, ChunkReservation

__all__ = ["CacheStep"]


class CacheStep:
    """One step of an engine, open until it is committed or aborted; made by `HybridPrefixCache.begin_step`.

    Attributes
    ----------
    reservations : list of ChunkReservation
        The step's chunks, in the order of their reservation.
    request_ids : set of str
        Their requests, one chunk each.
    """

    __slots__ = ("cache", "is_open", "request_ids", "reservations")

    def __init__(self, cache: Any) -> None:
        self.reservations: list[ChunkReservation] = []
        self.request_ids: set[str] = set()
        self.cache = cache
        self.is_open = True

    def drop(self, request: CachedRequest) -> ChunkReservation:
        """Take a request's chunk out, and return it."""
        [index] = (i for i, chunk in enumerate(self.reservations) if chunk.request is request)
        self.request_ids.discard(request.request_id)
        return self.reservations.pop(index)
