"""The hybrid prefix cache: look up, reserve, and publish only what has been written.

A step is a transaction. Between `reserve` and `commit` nothing that the step writes can be found; `abort` leaves no
trace of it::

    hit = cache.look_up(request)          hold the blocks of the longest boundary that all groups serve
    step = cache.begin_step()
    cache.reserve(step, request, 4096)    blocks for the next chunk, checkpoint included; all groups or none
    ...                                   the worker gathers, computes, exports
    cache.commit(step)                    keys lead to the blocks, and blocks not needed any more are dropped
"""

from collections.abc import Iterable, Set

import numpy as np

from numba_ckpt._check import check_bool, check_int, refuse
from numba_ckpt.cache import BlockPool
from numba_ckpt.prefix_cache.aborts import abort_request, abort_step
from numba_ckpt.prefix_cache.book import new_book
from numba_ckpt.prefix_cache.checks import (
    check_commit,
    check_idle,
    check_known,
    check_new_id,
    check_next_chunk,
    check_none_held,
    check_parts,
    check_step,
)
from numba_ckpt.prefix_cache.chunk_loops import RESERVED_FIELDS, release_table, reserve_chunk
from numba_ckpt.prefix_cache.commit_loops import commit_chunk
from numba_ckpt.prefix_cache.counters import CacheCounters
from numba_ckpt.prefix_cache.explain import BoundaryVerdict, explain
from numba_ckpt.prefix_cache.groups import CacheConfig
from numba_ckpt.prefix_cache.ledger import WriteLedger, check_publications, check_published
from numba_ckpt.prefix_cache.longest_hit import look_up_prefix
from numba_ckpt.prefix_cache.observer import CacheObserver
from numba_ckpt.prefix_cache.pending import PendingKeys
from numba_ckpt.prefix_cache.prefix_hashes import ExtraKey, PrefixHasher
from numba_ckpt.prefix_cache.request import CachedRequest, ChunkReservation, PrefixHit
from numba_ckpt.prefix_cache.retention import PROVEN, Retention
from numba_ckpt.prefix_cache.step import CacheStep

__all__ = ["HybridPrefixCache"]


class HybridPrefixCache:
    """One block pool and one index for all cache groups of a model; scheduler side, host only, one thread at a time.

    Deep copies and pickles share nothing, and hold the hasher's secret; copy requests and open steps in the same call.

    Parameters
    ----------
    config : CacheConfig
        Groups and units.
    num_blocks : int
        Blocks of the pool, the null block included; at least 2.
    hasher : PrefixHasher, optional
        Hashes in units of `config.hash_block_size`; by default with a random key.
    retention : Retention
        Which state boundaries are kept.
    ledger : WriteLedger, optional
        Checks every published state against what the worker says it wrote; this cache's alone.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The hasher's unit is another, or an argument is of the wrong kind.

    Examples
    --------
    >>> from numba_ckpt.prefix_cache import CacheConfig, CacheGroup
    >>> groups = CacheGroup("full", 16), CacheGroup("state", 16, checkpoint_alignment=16)
    >>> cache = HybridPrefixCache(CacheConfig(groups, hash_block_size=16), num_blocks=64)
    >>> prompt = np.arange(100)
    >>> for name in ("first", "second"):
    ...     request = cache.add(name, prompt)
    ...     hit = cache.look_up(request)
    ...     step = cache.begin_step()
    ...     chunk = cache.reserve(step, request, 100 - hit.num_tokens)
    ...     cache.commit(step)
    ...     cache.finish(request)
    ...     print(hit.num_tokens, chunk.start, chunk.end)
    0 0 100
    96 96 100
    """

    def __init__(
        self,
        config: CacheConfig,
        num_blocks: int,
        hasher: PrefixHasher | None = None,
        retention: Retention = PROVEN,
        ledger: WriteLedger | None = None,
    ) -> None:
        check_parts(config, hasher, retention, ledger)
        self.config = config
        self.pool = BlockPool(num_blocks)
        self.hasher = PrefixHasher(config.hash_block_size) if hasher is None else hasher
        self.retention = retention
        self.ledger = None if ledger is None else ledger.watch(self.pool)
        self._book = new_book([*config.sizes(), retention.interval], config.group_rows())
        self.observer = CacheObserver(config, self._book)
        self.pending = PendingKeys(self._book, config.hash_block_size)
        self._requests: dict[str, CachedRequest] = {}

    @property
    def counters(self) -> CacheCounters:
        """What has happened so far."""
        return self.observer.count(self.pool)

    def add(
        self, request_id: str, tokens: np.ndarray, salt: bytes = b"", extra_keys: Iterable[ExtraKey] = ()
    ) -> CachedRequest:
        """Take in a request: hash its prompt, all of it in one call.

        The id is not in use by another request, the prompt an integer array [T] of one token at least; the salt keeps
        tenants apart, extra keys what depends on more than tokens: an adapter, an image.
        """
        check_new_id(self._requests, request_id)
        hashed, keys = self.hasher.start_with(tokens, salt, extra_keys)
        num_tokens = hashed.num_tokens
        if num_tokens == 0:
            refuse("tokens", "at least one token", "none", "drop the request")
        table = np.zeros((len(self.config.groups), self.config.num_cols(num_tokens)), np.int32)
        last_boundary = self.config.last_boundary(num_tokens)
        self.observer.warn_of_prompt(num_tokens, last_boundary)
        request = CachedRequest(request_id, num_tokens, hashed, keys, table, last_boundary)
        self._requests[request_id] = request
        return request

    def append_tokens(self, request: CachedRequest, tokens: np.ndarray) -> None:
        """Append outputs, integer [T], so that chunks may compute them; what can be hit stays with the prompt."""
        check_known(self._requests, request)
        request.grow(self.hasher.extend(request.hashed, tokens), self.config)

    def look_up(self, request: CachedRequest) -> PrefixHit:
        """Find the longest boundary that all groups serve, and let the request hold its blocks.

        Returns
        -------
        PrefixHit
            Never the whole prompt: one token at least is left to compute.

        Raises
        ------
        ArgumentError
            The request holds blocks already.
        LedgerError
            The ledger knows of a block whose content is not what its key says; nothing is held then.
        """
        check_known(self._requests, request)
        if request.num_computed_tokens:
            got = f"{request.num_computed_tokens} computed tokens"
            refuse("request", "a request that holds nothing", got, "preempt it before another look-up")
        if self.ledger is not None:
            check_published(self, request)
        memory = self.pool.words, self.pending.words, self._book
        prompt = request.keys, request.table, request.num_prompt_tokens, request.last_boundary
        num_tokens, ceiling, pending = look_up_prefix(*memory, *prompt)
        request.num_computed_tokens = request.num_committed_tokens = num_tokens
        request.junction = ceiling if ceiling > num_tokens else 0
        self.observer.waits += pending > 0
        return PrefixHit(num_tokens, ceiling, pending)

    def explain(self, request: CachedRequest) -> list[BoundaryVerdict]:
        """Say for each boundary of the prompt what every group could serve, and why not."""
        return explain(self, request)

    def begin_step(self) -> CacheStep:
        """Open a step."""
        self.pool.advance_step()
        return CacheStep(self)

    def reserve(self, step: CacheStep, request: CachedRequest, num_new_tokens: int) -> ChunkReservation | None:
        """Reserve the blocks that the request's next chunk writes, the checkpoint's included.

        Returns
        -------
        ChunkReservation or None
            None, and nothing changed, if the pool has too few blocks. Where only the checkpoints do not fit, the
            chunk goes without them.

        Raises
        ------
        ArgumentError
            The step is closed or has a chunk of the request, the chunk is empty or ends beyond the request, or an
            aborted step may have moved the request's state.
        """
        check_step(step, self)
        check_known(self._requests, request)
        check_next_chunk(step, request)
        start = request.num_computed_tokens
        if type(num_new_tokens) is not int or num_new_tokens < 1:
            num_new_tokens = check_int("num_new_tokens", num_new_tokens, 1)
        end = start + num_new_tokens
        if end > request.num_tokens:
            do = "append tokens to the request first"
            refuse("num_new_tokens", f"at most {request.num_tokens - start}", num_new_tokens, do)
        reserved = np.empty((len(self.config.groups), RESERVED_FIELDS), np.int64)
        chunk = start, end, request.num_in_flight > 0, request.last_boundary, request.junction
        if not reserve_chunk(self.pool.words, self._book, request.table, reserved, *chunk):
            return None
        reservation = ChunkReservation(request, start, end, reserved)
        if self.ledger is not None:
            self.ledger.forget_all(reservation.new_states)
        self.pending.reserved(reservation)
        step.reservations.append(reservation)
        step.request_ids.add(request.request_id)
        request.num_computed_tokens = end
        request.open_steps.append(step)
        return reservation

    def commit(self, step: CacheStep, declined: Set[str] = frozenset()) -> None:
        """Publish what the step wrote, and drop what its requests do not read any more.

        Parameters
        ----------
        step : CacheStep
            An open step whose work is done, or enqueued before that of any later step.
        declined : set of str
            Ids of requests whose checkpoints the worker did not write; their running states were. Each
            `has_checkpoint` in this step.

        Raises
        ------
        ArgumentError
            The step was committed or aborted before, or an earlier step of one of its requests is still open.
        LedgerError
            The ledger knows of a block whose content is not what its key says; nothing is published then.
        """
        check_step(step, self)
        check_commit(step, declined)
        if self.ledger is not None:
            check_publications(self, self._book, step, declined)
        step.is_open = False
        for chunk in step.reservations:
            request, start, end, reserved = chunk
            written = start, end, request.request_id in declined, request.last_boundary, request.junction
            commit_chunk(self.pool.words, self._book, request.keys, request.table, reserved, *written)
            request.open_steps.remove(step)
            request.num_committed_tokens = end
            self.pending.settled(chunk)
        self.observer.steps_committed += 1

    def abort(self, what: CacheStep | CachedRequest, has_run: bool = True) -> None:
        """Undo a step, or drop a request with its chunks in all open steps: nothing of them is published.

        Parameters
        ----------
        what : CacheStep or CachedRequest
            An open step, whose reserved blocks are given back; or a request, which is finished: other chunks of its
            steps stay, to be committed.
        has_run : bool
            Whether the worker may have begun it. A state that it was to move on in place is lost then: `reserve`
            refuses the request until it is preempted.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            The step was committed or aborted before, or one of its requests has chunks in a later step.
        """
        check_bool("has_run", has_run)
        if isinstance(what, CachedRequest):
            check_known(self._requests, what)
            abort_request(self, what, has_run)
            self.finish(what)
        else:
            abort_step(self, what, has_run)

    def preempt(self, request: CachedRequest) -> None:
        """Drop all that a request holds; it starts over with a look-up, and finds what it had published."""
        check_idle(self._requests, request)
        release_table(self.pool.words, request.table)
        request.num_computed_tokens = request.num_committed_tokens = request.junction = 0
        request.has_lost_state = False

    def finish(self, request: CachedRequest) -> None:
        """Drop a request and all that it holds."""
        self.preempt(request)
        del self._requests[request.request_id]

    def reset(self) -> None:
        """Forget all that has been published, as after a change of the model's weights.

        Raises
        ------
        ArgumentError
            A request holds blocks: what it goes on to publish would mix both.
        """
        check_none_held(self._requests)
        published = self.observer.published(self.pool)
        self.pool.reset()
        self.observer.forget(published, self.pool.num_evicted)
