"""Which block size the kernels of a cache group read: the cache manager's, or a part of it."""

from collections.abc import Mapping, Sequence
from math import gcd

from numba_ckpt._check import check_int, refuse
from numba_ckpt.attention.attention_group import AttentionGroup
from numba_ckpt.attention.backend import AttentionBackend, MultipleOf
from numba_ckpt.cache import KVCacheConfig
from numba_ckpt.errors import ArgumentTypeError

__all__ = [
    "check_peer_kernel_block_sizes",
    "prepare_kernel_block_sizes",
    "select_kernel_block_size",
    "select_peer_kernel_block_size",
]

Backends = Sequence[type[AttentionBackend]]


def select_kernel_block_size(block_size: int, backends: Backends) -> int:
    """Choose a block size that every backend reads, and that divides the cache manager's.

    Parameters
    ----------
    block_size : int
        Tokens of the manager's block.
    backends : sequence of AttentionBackend classes
        Those that share a block table; without any, the manager's size is kept.

    Returns
    -------
    int
        `block_size` if all backends support it; else the largest size that one of them names, all support and
        `block_size` is a multiple of.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        There is none (the message lists what each backend supports), or a backend's sizes are no sizes.

    Examples
    --------
    >>> from numba_ckpt.attention import AttentionBackend, MultipleOf
    >>> class Exact(AttentionBackend):
    ...     @classmethod
    ...     def supported_kernel_block_sizes(cls):
    ...         return (16, 32)
    >>> class Multiples(AttentionBackend):
    ...     @classmethod
    ...     def supported_kernel_block_sizes(cls):
    ...         return (MultipleOf(16),)
    >>> select_kernel_block_size(256, [Exact, Multiples]), select_kernel_block_size(528, [Exact, Multiples])
    (32, 16)
    >>> select_kernel_block_size(24, [Exact, Multiples])
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: block_size: expected ... (Exact: 16, 32; Multiples: multiples of 16), got 24; ...
    """
    check_int("block_size", block_size, 1)
    supported = {backend: _sizes_of(backend) for backend in backends}
    named = {size for sizes in supported.values() for size in sizes if isinstance(size, int)}
    candidates = (size for size in (block_size, *sorted(named, reverse=True)) if block_size % size == 0)
    common = [size for size in candidates if all(_allows(sizes, size) for sizes in supported.values())]
    if not common:
        listed = "; ".join(
            f"{backend.name}: {', '.join(map(str, sizes)) or 'none'}" for backend, sizes in supported.items()
        )
        expected = f"a multiple of a size that every backend supports ({listed})"
        do = "choose another block size, or put these layers in groups of their own"
        refuse("block_size", expected, block_size, do)
    return common[0]


def _sizes_of(backend: type[AttentionBackend]) -> tuple[int | MultipleOf, ...]:
    name = f"{backend.name}.supported_kernel_block_sizes()"
    sizes = backend.supported_kernel_block_sizes()
    if not isinstance(sizes, (tuple, list)):
        refuse(name, "a tuple", repr(sizes), "return a tuple of sizes", ArgumentTypeError)
    return tuple(size if isinstance(size, MultipleOf) else check_int(name, size, 1) for size in sizes)


def _allows(sizes: Sequence[int | MultipleOf], size: int) -> bool:
    return any(one.allows(size) if isinstance(one, MultipleOf) else one == size for one in sizes)


def prepare_kernel_block_sizes(
    kv_cache_config: KVCacheConfig, attn_groups: Sequence[Sequence[AttentionGroup]]
) -> list[int]:
    """Choose the kernel block size of every cache group.

    Parameters
    ----------
    kv_cache_config : KVCacheConfig
        The cache groups.
    attn_groups : sequence of sequences of AttentionGroup
        One entry for each cache group. A group without any keeps the manager's size, and so do states, which have no
        tokens to split.

    Returns
    -------
    list of int
        Tokens of a kernel block, one for each cache group.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        See `select_kernel_block_size`; the message begins with the group's number.
    """
    sizes = []
    for index, (group, members) in enumerate(zip(kv_cache_config.groups, attn_groups, strict=True)):
        try:
            backends = [member.backend for member in members if member.spec.can_split_blocks]
            sizes.append(select_kernel_block_size(group.spec.block_size, backends))
        except ValueError as cause:
            raise type(cause)(f"groups[{index}].{cause}") from None
    return sizes


def select_peer_kernel_block_size(block_sizes: Mapping[str, int], backends: Backends) -> int:
    """Choose one kernel block size for peers that send pages to each other and cut their blocks differently.

    It depends only on what is passed, so that peers who know each other's block sizes come to the same answer: where
    each chose for itself, blocks of 4192 and of 2112 tokens (as tensor-parallel ranks of other counts have) led to
    kernel blocks that did not fit each other.

    Parameters
    ----------
    block_sizes : mapping of str to int
        Tokens of the manager's block, for each peer by name.
    backends : sequence of AttentionBackend classes
        Those of the group.

    Returns
    -------
    int
        Tokens of a kernel block; divides every peer's block.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No peer, or no such size.

    Examples
    --------
    >>> from numba_ckpt.attention import AttentionBackend, MultipleOf
    >>> class Multiples(AttentionBackend):
    ...     @classmethod
    ...     def supported_kernel_block_sizes(cls):
    ...         return (MultipleOf(16),)
    >>> select_peer_kernel_block_size({"prefill": 4192, "decode": 2112}, [Multiples])
    32
    """
    if not block_sizes:
        refuse("block_sizes", "at least one peer", "none", "name the peers and their block sizes")
    sizes = {peer: check_int(f"block_sizes[{peer!r}]", size, 1) for peer, size in block_sizes.items()}
    try:
        return select_kernel_block_size(gcd(*sizes.values()), backends)
    except ValueError as cause:
        peers = ", ".join(f"{peer} {size}" for peer, size in sizes.items())
        raise type(cause)(f"{cause} (the greatest common divisor of {peers})") from None


def check_peer_kernel_block_sizes(kernel_block_sizes: Mapping[str, Sequence[int]]) -> None:
    """Refuse peers whose kernel block sizes differ; to be asked before pages are transferred.

    Parameters
    ----------
    kernel_block_sizes : mapping of str to sequence of int
        Each peer's sizes, one for each cache group.

    Raises
    ------
    ArgumentError
        They differ, in number or in a group.

    Examples
    --------
    >>> check_peer_kernel_block_sizes({"prefill": [32, 16], "decode": [32, 16]})
    >>> check_peer_kernel_block_sizes({"prefill": [32], "decode": [64]})
    Traceback (most recent call last):
    numba_ckpt.errors.ArgumentError: kernel_block_sizes: expected the same for all peers, got prefill [32], ...
    """
    listed = {peer: list(sizes) for peer, sizes in kernel_block_sizes.items()}
    if any(sizes != next(iter(listed.values())) for sizes in listed.values()):
        got = ", ".join(f"{peer} {sizes}" for peer, sizes in listed.items())
        do = "agree with select_peer_kernel_block_size before anything is transferred"
        refuse("kernel_block_sizes", "the same for all peers", got, do)
