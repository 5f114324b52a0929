"""A backend that plans nothing: its layers read the step as it is."""

from typing import Any

from numba_ckpt.attention.backend import AttentionBackend, AttentionCGSupport, MetadataBuilder
from numba_ckpt.attention.common_metadata import CommonAttentionMetadata

__all__ = ["NoOpBackend", "NoOpBuilder"]


class NoOpBuilder(MetadataBuilder):
    """Hands on what every builder gets.

    Examples
    --------
    >>> NoOpBuilder(None, ("layer",), None).get_cudagraph_support().name
    'ALWAYS'
    """

    def build(self, common: CommonAttentionMetadata, common_prefix_len: int = 0, **extra: Any) -> Any:
        """Return `common`."""
        return common

    def get_cudagraph_support(self) -> AttentionCGSupport:
        """Return ALWAYS: nothing is launched."""
        return AttentionCGSupport.ALWAYS


class NoOpBackend(AttentionBackend):
    """For layers that need no plan, and for measuring what the plumbing itself costs."""

    @classmethod
    def builder_class(cls) -> type[MetadataBuilder]:
        """Return `NoOpBuilder`."""
        return NoOpBuilder
