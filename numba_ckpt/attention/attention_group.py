"""Layers of one cache group that read the same metadata."""

from dataclasses import dataclass

from numba_ckpt._check import refuse
from numba_ckpt.attention.backend import AttentionBackend, MetadataBuilder
from numba_ckpt.cache import KVCacheSpec

__all__ = ["AttentionGroup"]


@dataclass(frozen=True, eq=False, slots=True)
class AttentionGroup:
    """Layers of one cache group with the same backend, spec and number of query heads.

    Attributes
    ----------
    backend : type of AttentionBackend
        What runs them.
    layer_names : tuple of str
        In the order of the cache group.
    spec : KVCacheSpec
        What each of them caches.
    kv_cache_group_id : int
        The cache group whose block table and slot mapping they read.
    metadata_builders : tuple of MetadataBuilder
        One for each micro-batch.
    num_heads : int
        Query heads of each layer on this rank; 0 for layers without any.
    """

    backend: type[AttentionBackend]
    layer_names: tuple[str, ...]
    spec: KVCacheSpec
    kv_cache_group_id: int
    metadata_builders: tuple[MetadataBuilder, ...] = ()
    num_heads: int = 0

    def get_metadata_builder(self, ubatch_idx: int = 0) -> MetadataBuilder:
        """Return the builder of a micro-batch.

        Raises
        ------
        ArgumentError
            There is none.
        """
        builders = self.metadata_builders
        if not 0 <= ubatch_idx < len(builders):
            expected = f"one of {len(builders)} micro-batches, from 0"
            refuse("ubatch_idx", expected, ubatch_idx, "raise parallel.num_ubatches, or make the builders first")
        return builders[ubatch_idx]
