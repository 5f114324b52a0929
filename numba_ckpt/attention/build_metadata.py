"""From a step's batch to the metadata that each layer reads."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._array import Array, backend_of
from numba_ckpt._check import check_array, check_kind, check_shape, refuse
from numba_ckpt.attention.attention_group import AttentionGroup
from numba_ckpt.attention.backend import MetadataBuilder
from numba_ckpt.attention.common_metadata import NO_EXTRA, CommonAttentionMetadata
from numba_ckpt.attention.step_batch import MetadataOptions, StepBatch
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["build_attn_metadata"]

_DEFAULTS = MetadataOptions()
_SLOT_DTYPE = np.dtype(np.int64)
_BLOCK_DTYPES = np.dtype(np.int32), _SLOT_DTYPE
_OWN_FIELDS = frozenset(CommonAttentionMetadata._fields) - {"is_prefilling"}


class _Built(NamedTuple):
    """Metadata that a later group with an equal spec may take over, and what it was made from."""

    metadata: Any
    common: CommonAttentionMetadata
    extra: Mapping[str, Any]

    def serves(self, common: CommonAttentionMetadata, extra: Mapping[str, Any]) -> bool:
        """Say whether another group differs in its block table and slots only."""
        return (
            common.causal is self.common.causal
            and common.is_prefilling is self.common.is_prefilling
            and _are_same(common.extra, self.common.extra)
            and _are_same(extra, self.extra)
        )


def _are_same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a is b or (a.keys() == b.keys() and all(a[key] is b[key] for key in a))


def build_attn_metadata(
    attn_groups: Sequence[Sequence[AttentionGroup]],
    batch: StepBatch,
    block_tables: Sequence[Array],
    slot_mappings: Any,
    options: MetadataOptions = _DEFAULTS,
) -> dict[str, Any]:
    """Build the metadata of one step for all layers.

    Parameters
    ----------
    attn_groups : sequence of sequence of AttentionGroup
        The attention groups of each cache group, as `init_attn_backend` returns them; empty for a cache group whose
        layers read none.
    batch : StepBatch
        The step, or a micro-batch of it.
    block_tables : sequence of ndarray or cupy.ndarray
        int32 or int64 [>= N, C] for each cache group.
    slot_mappings : ndarray, cupy.ndarray or sequence of them
        int64 [groups, >= T], or one [>= T] for each cache group.
    options : MetadataOptions
        Causality, capture, micro-batch, fast prefill, the model's extras.

    Returns
    -------
    dict of str to object
        What the builder of its group made, by layer name; layers of one attention group share an object.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Tables or slots that do not match groups or batch, an unknown group in `causal`, a micro-batch without
        builders, a layer in two groups, or what a builder's `check` refuses: no builder has run then.

    Notes
    -----
    Cache groups whose builders have the same class, an equal spec and as many query heads are planned once: later ones
    only look up their own blocks (`MetadataBuilder.update_block_table`), unless the model or `causal` treats them
    differently. The call itself does the same work for any number of requests, and allocates no arrays.

    Examples
    --------
    >>> from numba_ckpt.attention import AttentionGroup, NoOpBackend, NoOpBuilder
    >>> groups = [[AttentionGroup(NoOpBackend, ("a", "b"), None, 0, (NoOpBuilder(None, ("a", "b"), None),))]]
    >>> starts = np.array([0, 2])
    >>> batch = StepBatch(1, 2, starts, starts, np.array([2]), max_query_len=2, max_seq_len=2)
    >>> metadata = build_attn_metadata(groups, batch, [np.array([[7]], np.int32)], np.array([[112, 113]]))
    >>> metadata["a"] is metadata["b"], metadata["b"].slot_mapping.tolist()
    (True, [112, 113])
    """
    _check_groups(attn_groups, batch, block_tables, slot_mappings, options)
    # All is checked before the first builder runs: builders may write to buffers that layers read.
    try:
        plans = [
            (group, group.get_metadata_builder(options.ubatch_idx), common)
            for group_id, groups in enumerate(attn_groups)
            if groups
            for common in (_common_of(group_id, batch, block_tables[group_id], slot_mappings[group_id], options),)
            for group in groups
        ]
    except TypeError:
        _check_nesting(attn_groups)
        raise
    extras = _extras_of(plans, batch, options)
    _check_twins([group.layer_names for group, _, _ in plans])
    if len(plans) > 1:
        for (_, builder, common), extra in zip(plans, extras, strict=True):
            if builder.has_check:
                builder.check(common, **extra)
    built: dict[Any, _Built] = {}
    metadata_by_layer: dict[str, Any] = {}
    for (group, builder, common), extra in zip(plans, extras, strict=True):
        if options.for_cudagraph_capture:
            metadata = builder.build_for_cudagraph_capture(common)
        else:
            metadata = _build(group, builder, common, extra, built)
        metadata_by_layer.update(dict.fromkeys(group.layer_names, metadata))
    return metadata_by_layer


def _extras_of(plans: Sequence[Any], batch: StepBatch, options: MetadataOptions) -> Sequence[Mapping[str, Any]]:
    """Ask the model what it adds for each builder; not while a graph is captured."""
    if options.model_specific is None or options.for_cudagraph_capture:
        return (NO_EXTRA,) * len(plans)
    extras = [options.model_specific.get_extra_attn_kwargs(builder, batch.num_reqs) for _, builder, _ in plans]
    for extra in extras:
        check_kind("get_extra_attn_kwargs()", extra, Mapping)
    return extras


def _build(
    group: AttentionGroup,
    builder: MetadataBuilder,
    common: CommonAttentionMetadata,
    extra: Mapping[str, Any],
    built: dict[Any, _Built],
) -> Any:
    """Build, or take over what an equal group built in this step."""
    if not builder.supports_update_block_table:
        return builder.build(common, 0, **extra)
    kind = type(builder), builder.spec, builder.kernel_block_size, group.num_heads
    earlier = built.get(kind)
    if earlier is not None and earlier.serves(common, extra):
        return builder.update_block_table(earlier.metadata, common.block_table, common.slot_mapping)
    metadata = builder.build(common, 0, **extra)
    built[kind] = _Built(metadata, common, extra)
    return metadata


def _common_of(
    group_id: int, batch: StepBatch, block_table: Array, slot_mapping: Array, options: MetadataOptions
) -> CommonAttentionMetadata:
    """Make the record of one cache group."""
    if not (
        type(block_table) is type(slot_mapping) is type(batch.seq_lens)
        and slot_mapping.dtype is _SLOT_DTYPE
        and block_table.dtype in _BLOCK_DTYPES
        and block_table.ndim == 2
        and slot_mapping.ndim == 1
        and block_table.shape[0] >= batch.num_reqs
        and slot_mapping.shape[0] >= batch.num_tokens
    ):
        _check_tables(group_id, batch, block_table, slot_mapping)
    causal = options.causal
    if type(causal) is not bool and isinstance(causal, Mapping):
        causal = causal.get(group_id, True)
    is_prefilling, extra = batch.is_prefilling, NO_EXTRA
    if options.model_specific is not None:
        extra = options.model_specific.get_extra_common_attn_kwargs(group_id, batch.num_reqs)
        check_kind("get_extra_common_attn_kwargs()", extra, Mapping)
        extra = dict(extra)
        is_prefilling = extra.pop("is_prefilling", is_prefilling)
        _check_extra(group_id, batch, extra, is_prefilling)
    return CommonAttentionMetadata(
        batch, group_id, block_table, slot_mapping, causal, is_prefilling, options.fast_prefill, extra
    )


def _check_groups(
    attn_groups: Sequence[Sequence[AttentionGroup]],
    batch: StepBatch,
    block_tables: Sequence[Array],
    slot_mappings: Any,
    options: MetadataOptions,
) -> None:
    if type(options) is not MetadataOptions:
        check_kind("options", options, MetadataOptions)
    if type(batch) is not StepBatch:
        check_kind("batch", batch, StepBatch)
    num_groups = len(attn_groups)
    for name, given in (("block_tables", block_tables), ("slot_mappings", slot_mappings)):
        if not hasattr(given, "__len__"):
            do = "pass one for each cache group"
            refuse(name, f"{num_groups} entries", type(given).__name__, do, ArgumentTypeError)
        if len(given) != num_groups:
            do = "pass one for each cache group, also for those without attention groups"
            refuse(name, f"{num_groups} entries, one for each group", len(given), do)
    causal = options.causal
    if type(causal) is bool:
        return
    if isinstance(causal, Mapping):
        unknown = [group_id for group_id in causal if group_id >= num_groups]
        if unknown:
            refuse("causal", f"cache groups in [0, {num_groups})", unknown[0], "name groups of attn_groups")
    elif not isinstance(causal, np.bool_):
        check_shape("causal", causal, (batch.num_reqs,), "it has one flag for each row of the batch")


def _check_tables(group_id: int, batch: StepBatch, block_table: Array, slot_mapping: Array) -> None:
    """Refuse tables of other shapes, dtypes or devices than the batch's."""
    names = f"block_tables[{group_id}]", f"slot_mappings[{group_id}]"
    check_array(names[0], block_table, 2, "i")
    check_array(names[1], slot_mapping, 1, "i")
    if block_table.dtype not in _BLOCK_DTYPES:
        refuse(names[0], "int32 or int64", block_table.dtype, "keep block ids as int32", ArgumentTypeError)
    if slot_mapping.dtype != _SLOT_DTYPE:
        do = "keep slots as int64, which large caches need"
        refuse(names[1], "int64", slot_mapping.dtype, do, ArgumentTypeError)
    if block_table.shape[0] < batch.num_reqs:
        expected = f"at least {batch.num_reqs} rows"
        refuse(names[0], expected, block_table.shape[0], "gather the rows of the whole batch")
    if slot_mapping.shape[0] < batch.num_tokens:
        expected = f"at least {batch.num_tokens} slots"
        refuse(names[1], expected, slot_mapping.shape[0], "map all tokens, padding included")
    backend_of(seq_lens=batch.seq_lens, block_table=block_table, slot_mapping=slot_mapping)


def _check_extra(group_id: int, batch: StepBatch, extra: Mapping[str, Any], is_prefilling: Any) -> None:
    taken = sorted(_OWN_FIELDS & extra.keys())
    if taken:
        got = f"{taken[0]!r} for group {group_id}"
        refuse("model_specific", "is_prefilling and names of its own", got, "build_attn_metadata sets that field")
    if is_prefilling is not batch.is_prefilling and is_prefilling is not None:
        name = f"is_prefilling of group {group_id}"
        if not isinstance(is_prefilling, np.ndarray):
            got = type(is_prefilling).__name__
            refuse(name, "a NumPy array", got, "keep it on the host", ArgumentTypeError)
        check_array(name, is_prefilling, 1, "b")
        check_shape(name, is_prefilling, (batch.num_reqs,), "it has one flag for each row of the batch")


def _check_nesting(attn_groups: Sequence[Any]) -> None:
    if any(isinstance(groups, AttentionGroup) for groups in attn_groups):
        do = "pass what init_attn_backend returned"
        refuse("attn_groups", "a list of groups for each cache group", "a flat list", do, ArgumentTypeError)


def _check_twins(names_by_group: list[tuple[str, ...]]) -> None:
    if len(set().union(*names_by_group)) != sum(map(len, names_by_group)):
        names = list(chain.from_iterable(names_by_group))
        twin = next(name for name in names if names.count(name) > 1)
        refuse("attn_groups", "every layer in one group", f"{twin!r} in two", "name each layer once")
