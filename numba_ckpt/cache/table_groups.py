"""From cache groups to the shape of their block tables."""

from collections.abc import Sequence

from numba_ckpt._check import check_kind, refuse
from numba_ckpt.cache.config import EngineConfig
from numba_ckpt.cache.groups import KVCacheConfig
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.cache.merge_specs import UniformTypeSpecs
from numba_ckpt.cache.specs import SlidingWindowSpec
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.planning import TableGroup

__all__ = ["table_groups"]


def table_groups(
    kv_cache_config: KVCacheConfig, config: EngineConfig, kernel_block_sizes: Sequence[int] | None = None
) -> list[TableGroup]:
    """Return the table of each cache group.

    Parameters
    ----------
    kv_cache_config : KVCacheConfig
        The groups.
    config : EngineConfig
        Limits, and context parallelism.
    kernel_block_sizes : sequence of int, optional
        Block size of each group's attention kernels; by default the groups' own.

    Returns
    -------
    list of TableGroup

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Not one kernel block size per group, or one that does not divide the group's block, or divides a block of
        states.

    Examples
    --------
    >>> from numba_ckpt.cache import KVCacheConfig, KVCacheGroup, StateSpec
    >>> limits = {"max_num_requests": 8, "max_num_batched_tokens": 2048, "max_model_len": 4096}
    >>> spec = StateSpec(block_size=1024, shapes=((8,),), dtypes=("float32",), num_speculative_blocks=3)
    >>> states = KVCacheConfig(10, (KVCacheGroup(("layer.0",), spec),), ())
    >>> table_groups(states, EngineConfig.from_dict({"limits": limits}))[0].width
    7
    """
    if not isinstance(kv_cache_config, KVCacheConfig):
        got, do = type(kv_cache_config).__name__, "plan the groups first"
        refuse("kv_cache_config", "a KVCacheConfig", got, do, ArgumentTypeError)
    if not isinstance(config, EngineConfig):
        do = "load it with EngineConfig.from_dict"
        refuse("config", "an EngineConfig", type(config).__name__, do, ArgumentTypeError)
    specs = [group.spec for group in kv_cache_config.groups]
    sizes = [spec.block_size for spec in specs]
    if kernel_block_sizes is not None:
        check_kind("kernel_block_sizes", kernel_block_sizes, Sequence)
        sizes = list(kernel_block_sizes)
    if len(sizes) != len(specs):
        expected, do = f"one size for each of {len(specs)} groups", "take them from init_attn_backend"
        refuse("kernel_block_sizes", expected, len(sizes), do)
    return [_table_group(index, spec, config, sizes[index]) for index, spec in enumerate(specs)]


def _table_group(index: int, spec: KVCacheSpec, config: EngineConfig, kernel_block_size: int) -> TableGroup:
    width, parallel = spec.block_table_width(config), config.parallel
    first = spec.specs[0][1] if isinstance(spec, UniformTypeSpecs) else spec
    first.num_kernel_blocks(f"kernel_block_sizes[{index}]", kernel_block_size)
    sharded = (parallel.cp_size, parallel.cp_rank, parallel.cp_interleave) if first.is_cp_sharded else (1, 0, 1)
    window = first.sliding_window if isinstance(first, SlidingWindowSpec) else None
    return TableGroup(spec.block_size, width, kernel_block_size, window, *sharded, has_slots=first.has_slots)
