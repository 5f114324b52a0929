"""Slot mappings by layer: every layer of a cache group looks at its group's row."""

from collections.abc import Sequence

from numba_ckpt._array import Array
from numba_ckpt.cache import KVCacheGroup

__all__ = ["build_slot_mappings_by_layer"]


def build_slot_mappings_by_layer(slot_mappings: Array, groups: Sequence[KVCacheGroup]) -> dict[str, Array]:
    """Return each layer's slot mapping.

    Parameters
    ----------
    slot_mappings : ndarray or cupy.ndarray
        int64 [groups, T], or a sequence of rows; from `BlockTables.compute_slot_mappings`.
    groups : sequence of KVCacheGroup
        The groups, in the order of the rows. Rows without a group and groups without a row are left out; a layer of
        several groups gets the last one's row.

    Returns
    -------
    dict of str to array
        int64 [T] by layer name: views, not copies.

    Examples
    --------
    >>> import numpy as np
    >>> from numba_ckpt.cache import FullAttentionSpec
    >>> group = KVCacheGroup(("layer.0", "layer.1"), FullAttentionSpec(16, num_kv_heads=1, head_size=8))
    >>> mappings = build_slot_mappings_by_layer(np.array([[32, 33, -1]]), [group])
    >>> {name: slots.tolist() for name, slots in mappings.items()}
    {'layer.0': [32, 33, -1], 'layer.1': [32, 33, -1]}
    """
    rows = zip(slot_mappings, groups, strict=False)
    return {layer_name: slots for slots, group in rows for layer_name in group.layer_names}
