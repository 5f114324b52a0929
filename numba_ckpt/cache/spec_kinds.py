"""Specs by the name of their kind, for configuration files."""

from collections.abc import Mapping
from typing import Any

from numba_ckpt._check import check_choice, refuse
from numba_ckpt.cache.kv_cache_spec import KVCacheSpec
from numba_ckpt.cache.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from numba_ckpt.cache.state_spec import StateSpec
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["SPEC_KINDS", "spec_from_dict"]

SPEC_KINDS: dict[str, type[KVCacheSpec]] = {
    "full": FullAttentionSpec,
    "mla": MLAAttentionSpec,
    "sliding_window": SlidingWindowSpec,
    "chunked_local": ChunkedLocalAttentionSpec,
    "cross": CrossAttentionSpec,
    "encoder_only": EncoderOnlyAttentionSpec,
    "state": StateSpec,
}
"""Spec class by kind."""


def spec_from_dict(mapping: Mapping[str, Any]) -> KVCacheSpec:
    """Make a spec of a mapping with its ``kind`` and its fields.

    Parameters
    ----------
    mapping : mapping
        ``kind``, one of `SPEC_KINDS`, and the fields of that class.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An unknown kind or key, a missing key, or a wrong value; the message begins with the key.

    Examples
    --------
    >>> spec_from_dict({"kind": "mla", "block_size": 64, "num_kv_heads": 1, "head_size": 576}).page_size_bytes
    73728
    """
    if not isinstance(mapping, Mapping):
        do = "give the kind and fields of a spec"
        refuse("spec", "a mapping", type(mapping).__name__, do, ArgumentTypeError)
    fields = dict(mapping)
    kind = check_choice("kind", fields.pop("kind", None), SPEC_KINDS)
    return SPEC_KINDS[kind].from_dict(fields)
