"""What can be captured in a CUDA graph, and whose fault it is if that is little."""

from collections.abc import Collection, Iterator, Sequence

from numba_ckpt._check import check_kind
from numba_ckpt.attention.attention_group import AttentionGroup
from numba_ckpt.attention.backend import AttentionCGSupport, AttentionCGSupportInfo
from numba_ckpt.attention.check_layers import check_layer_names

__all__ = ["get_attn_cg_support", "get_query_lens_mismatch_unsupported_backend"]

Groups = Sequence[Sequence[AttentionGroup]]


def _checked(attn_groups: Groups, layer_names: Collection[str] | None) -> Iterator[AttentionGroup]:
    """Yield groups with one of the layers; without names, all groups."""
    if layer_names is not None:
        layer_names = check_layer_names("checked_layer_names", layer_names, None)
    for groups in attn_groups:
        for group in groups:
            if layer_names is None or not set(group.layer_names).isdisjoint(layer_names):
                yield group


def get_attn_cg_support(
    attn_groups: Groups, checked_layer_names: Collection[str] | None = None
) -> AttentionCGSupportInfo:
    """Return the weakest CUDA-graph support among the builders, and the first backend that has it.

    Builders are asked, not backends: one that had to choose a fallback path which waits for the device says NEVER,
    whatever its backend can do elsewhere.

    Parameters
    ----------
    attn_groups : sequence of sequences of AttentionGroup
        As `init_attn_backend` returns them.
    checked_layer_names : collection of str, optional
        Only groups with one of these layers count; all by default.

    Returns
    -------
    AttentionCGSupportInfo
        ALWAYS without a backend's name if there is nothing to narrow it.

    Examples
    --------
    >>> get_attn_cg_support([[]]).min_cg_support.name
    'ALWAYS'
    """
    info = AttentionCGSupportInfo()
    for group in _checked(attn_groups, checked_layer_names):
        support = group.get_metadata_builder().get_cudagraph_support()
        check_kind(f"{group.backend.name}'s get_cudagraph_support()", support, AttentionCGSupport)
        info = info.narrow(support, group.backend.name)
    return info


def get_query_lens_mismatch_unsupported_backend(
    attn_groups: Groups, checked_layer_names: Collection[str] | None = None
) -> str | None:
    """Name the first backend that needs exact query lengths on the host.

    Adaptive verification of drafts shortens queries on the device, so that the host only knows upper bounds.

    Parameters
    ----------
    attn_groups : sequence of sequences of AttentionGroup
        As `init_attn_backend` returns them.
    checked_layer_names : collection of str, optional
        Only groups with one of these layers count; all by default.

    Returns
    -------
    str or None
        None if every backend takes upper bounds.

    Examples
    --------
    >>> get_query_lens_mismatch_unsupported_backend([]) is None
    True
    """
    for group in _checked(attn_groups, checked_layer_names):
        if not group.backend.supports_device_cpu_query_lens_mismatch():
            return group.backend.name
    return None
