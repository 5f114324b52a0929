"""What a caller of the prefix cache can get wrong, refused before anything is changed."""

from collections.abc import Set
from types import NoneType
from typing import Any

from numba_ckpt._check import refuse
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.prefix_cache.groups import CacheConfig
from numba_ckpt.prefix_cache.ledger import WriteLedger
from numba_ckpt.prefix_cache.prefix_hashes import PrefixHasher
from numba_ckpt.prefix_cache.request import CachedRequest
from numba_ckpt.prefix_cache.retention import Retention
from numba_ckpt.prefix_cache.step import CacheStep

__all__ = [
    "check_abort",
    "check_commit",
    "check_idle",
    "check_known",
    "check_new_id",
    "check_next_chunk",
    "check_none_held",
    "check_parts",
    "check_step",
]


def check_parts(config: Any, hasher: Any, retention: Any, ledger: Any) -> None:
    """Refuse parts of a cache that are of another kind or do not fit together; hasher and ledger may be None."""
    for name, value, kinds in (
        ("config", config, (CacheConfig,)),
        ("hasher", hasher, (PrefixHasher, NoneType)),
        ("retention", retention, (Retention,)),
        ("ledger", ledger, (WriteLedger, NoneType)),
    ):
        if not isinstance(value, kinds):
            kind = kinds[0].__name__
            refuse(name, f"a {kind}", type(value).__name__, f"make a {kind}", ArgumentTypeError)
    if hasher is not None and hasher.unit != config.hash_block_size:
        refuse("hasher", f"unit {config.hash_block_size}", f"unit {hasher.unit}", "hash in the cache's unit")
    if ledger is not None and ledger.is_in_use:
        refuse("ledger", "a new one", "another cache's", "give each cache a ledger of its own")


def check_new_id(requests: dict[str, CachedRequest], request_id: Any) -> None:
    """Refuse anything but a name that none of a cache's `requests` has."""
    if not isinstance(request_id, str):
        refuse("request_id", "a str", f"{request_id!r} ({type(request_id).__name__})", "name it", ArgumentTypeError)
    if request_id in requests:
        refuse("request_id", "an id not in use", repr(request_id), "finish the other request first")


def check_known(requests: dict[str, CachedRequest], request: Any) -> None:
    """Refuse anything but one of a cache's `requests`."""
    if type(request) is CachedRequest and requests.get(request.request_id) is request:
        return
    if not isinstance(request, CachedRequest):
        refuse("request", "a request of this cache", type(request).__name__, "add it first", ArgumentTypeError)
    refuse("request", "a request of this cache", repr(request.request_id), "add it first")


def check_idle(requests: dict[str, CachedRequest], request: Any) -> None:
    """Refuse anything but one of a cache's `requests` without open chunks."""
    check_known(requests, request)
    if request.num_in_flight:
        got = f"{request.num_in_flight} in flight"
        refuse("request", "a request without open chunks", got, "commit or abort its steps first")


def check_none_held(requests: dict[str, CachedRequest]) -> None:
    """Refuse to go on while one of a cache's `requests` holds blocks."""
    for request in requests.values():
        if request.num_computed_tokens:
            got = f"{request.request_id!r} with {request.num_computed_tokens} computed tokens"
            refuse("requests", "none that holds blocks", got, "preempt or finish it first")


def check_step(step: Any, cache: object) -> None:
    """Refuse anything but an open step of `cache`."""
    if type(step) is CacheStep and step.cache is cache and step.is_open:
        return
    if not isinstance(step, CacheStep) or step.cache is not cache:
        got = "another cache's" if isinstance(step, CacheStep) else type(step).__name__
        refuse("step", "a step of this cache", got, "open one with begin_step", ArgumentTypeError)
    refuse("step", "an open step", "one that was committed or aborted", "begin a new step")


def check_next_chunk(step: CacheStep, request: CachedRequest) -> None:
    """Refuse a request that cannot have another chunk in the step."""
    if request.request_id in step.request_ids:
        got = f"{request.request_id!r}, which has one"
        refuse("request", "one without a chunk in this step", got, "reserve one longer chunk, or begin another step")
    if request.has_lost_state:
        got = f"{request.request_id!r}, of an aborted step"
        refuse("request", "one whose state is whole", got, "preempt it, and look it up again")


def check_commit(step: CacheStep, declined: Any) -> None:
    """Refuse to commit a step before the earlier steps of its requests, and checkpoints declined by nobody."""
    if declined or type(declined) is not frozenset:
        _check_declined(step, declined)
    for request, start, _, _ in step.reservations:
        if start != request.num_committed_tokens:
            got = f"request {request.request_id!r} with an earlier open chunk"
            refuse("step", "the first open step of each of its requests", got, "commit the earlier steps first")


def _check_declined(step: CacheStep, declined: Any) -> None:
    if not isinstance(declined, Set):
        got = type(declined).__name__
        refuse("declined", "a set of request ids", got, "name the requests in a set", ArgumentTypeError)
    asked = {chunk.request.request_id for chunk in step.reservations if chunk.has_checkpoint}
    if unknown := declined - asked:
        expected, do = "ids of requests with a checkpoint in this step", "name those whose chunk `has_checkpoint`"
        refuse("declined", expected, sorted(unknown, key=repr), do)


def check_abort(step: CacheStep) -> None:
    """Refuse to undo a step under later chunks of its requests."""
    for request, _, end, _ in step.reservations:
        if request.num_computed_tokens != end:
            got = f"request {request.request_id!r} with a later chunk"
            refuse("step", "the last step of each of its requests", got, "abort the later steps first")
