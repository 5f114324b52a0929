"""Recorded inputs and outputs of the seed's functions and of its upstream, as typed records.

Lengths and positions count tokens. bfloat16 arrays are uint16 bit patterns. `pack.py` says how the files were made.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from numba_ckpt.planning import CheckpointGeometry
from numba_ckpt.prefix_cache import PrefillProgress, SplitPolicy
from tests.golden.pack import read_arrays, read_records

__all__ = [
    "BuilderCase",
    "ChunkCase",
    "ExportCase",
    "PlanCase",
    "PositionCase",
    "SplitCase",
    "StoreCase",
    "ValidityCase",
    "builder_cases",
    "chunk_cases",
    "export_cases",
    "plan_cases",
    "position_cases",
    "split_cases",
    "store_cases",
    "validity_cases",
]


class PositionCase(NamedTuple):
    """One row of set a: the reusable boundary of a prefill."""

    num_tokens: int
    unit: int
    drop_eagle_block: bool
    num_lookahead_tokens: int
    position: int


class ValidityCase(NamedTuple):
    """One row of set b: whether a query can export a checkpoint."""

    query_start: int
    query_end: int
    position: int
    hash_block_size: int
    state_block_size: int
    checkpoint_alignment: int | None
    valid: bool


class PlanCase(NamedTuple):
    """One batch of set c: the plan of its rows."""

    geometry: CheckpointGeometry
    seq_lens: list[int]
    query_lens: list[int]
    offsets: list[int]
    block_cols: list[int]


class ChunkCase(NamedTuple):
    """One batch of set d: its chunk layout."""

    chunk_size: int
    num_computed_tokens: list[int]
    query_start_loc: list[int]
    checkpoint_offsets: list[int] | None
    cu_chunk_seqlens: list[int]
    chunk_rows: list[int]
    last_chunk_indices: list[int]
    checkpoint_chunk_indices: list[int]


class SplitCase(NamedTuple):
    """One row of set e: the length of a chunk, given `num_new_tokens` that the scheduler would compute."""

    progress: PrefillProgress
    num_new_tokens: int
    policy: SplitPolicy
    result: int


class ExportCase(NamedTuple):
    """One call of set f1: conv windows and recurrent rows written into raw page storage.

    Arrays: ``raw`` [tokens, width + padding], ``conv_before``/``conv_after`` raw storage in `layout`, and where
    `recurrent` is given ``rec_src`` [sources, *shape], ``rec_before``/``rec_after`` [blocks, row size + padding].
    """

    dtype: str
    width: int
    state_len: int | None
    conv_len: int
    layout: str
    num_blocks: int
    query_start_loc: list[int]
    offsets: list[int]
    state_indices: list[int]
    token_indices: list[int] | None
    recurrent: dict[str, Any] | None
    arrays: dict[str, np.ndarray]


class StoreCase(NamedTuple):
    """One call of set f2: Mamba2's store.

    Arrays: as `ExportCase`, but ``x`` [dim, tokens] for the tokens and ``chunk_states``, ``ssm_*`` for the states.
    """

    dtype: str
    state_dtype: str
    dim: int
    state_len: int
    conv_len: int
    layout: str
    num_blocks: int
    query_start_loc: list[int]
    offsets: list[int]
    state_indices: list[int]
    chunk_indices: list[int]
    state_shape: list[int]
    state_size: int
    arrays: dict[str, np.ndarray]


class BuilderCase(NamedTuple):
    """One call of set h: the metadata builder from end to end; `result` None means no metadata."""

    cache_mode: str
    num_checkpoint_blocks: int
    geometry: CheckpointGeometry | None
    query_start_loc: list[int]
    seq_lens: list[int]
    block_table: list[list[int]]
    other_block_table: list[list[int]]
    request_rows: list[int]
    result: dict[str, list[int]] | None


def _geometry(record: dict[str, Any], drop_eagle_block: bool) -> CheckpointGeometry | None:
    if record["hash_block_size"] is None or record["cache_hit_alignment_tokens"] is None:
        return None
    return CheckpointGeometry(
        record["hash_block_size"],
        record["mamba_block_size"],
        record["cache_hit_alignment_tokens"],
        record["checkpoint_alignment"],
        drop_eagle_block=drop_eagle_block,
        num_hash_lookahead_tokens=record["num_hash_lookahead_tokens"],
    )


def _drops_eagle_block(record: dict[str, Any]) -> bool:
    """Say what upstream's builder asks the rule: no block is dropped where hashes look ahead instead.

    The rule itself (sets a and c) takes both and lets the drop win.
    """
    return bool(record["use_eagle_block_drop"]) and record["num_hash_lookahead_tokens"] == 0


def _rows(name: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    recorded = read_records(name)
    return zip(*(recorded[column] for column in columns), strict=True)


def _arrays_of(stored: dict[str, np.ndarray], key: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(key): array for name, array in stored.items() if name.startswith(key)}


@cache
def position_cases() -> tuple[PositionCase, ...]:
    columns = ("num_tokens", "hash_block_size", "drop_eagle_block", "num_hash_lookahead_tokens", "position")
    return tuple(PositionCase(*row) for row in _rows("a_position", columns))


@cache
def validity_cases() -> tuple[ValidityCase, ...]:
    sizes = ("hash_block_size", "mamba_block_size", "checkpoint_alignment")
    columns = ("query_start", "query_end", "checkpoint_position", *sizes, "valid")
    return tuple(ValidityCase(*row) for row in _rows("b_validity", columns))


@cache
def plan_cases() -> tuple[PlanCase, ...]:
    return tuple(
        PlanCase(_geometry(r, r["drop_eagle_block"]), r["seq_lens"], r["query_lens"], r["offsets"], r["cols"])
        for r in read_records("c_compute")
    )


@cache
def chunk_cases() -> tuple[ChunkCase, ...]:
    names = {"cu_chunk_seqlens": "cu_chunk_seqlen", "chunk_rows": "seq_idx"}
    columns = [names.get(field, field) for field in ChunkCase._fields]
    return tuple(ChunkCase(*(record[column] for column in columns)) for record in read_records("d_chunk_metadata"))


def _split_policy(row: dict[str, Any]) -> SplitPolicy:
    """Say upstream's sizes and switches in ours: hits are as fine as hashes only where partial ones are on."""
    geometry = CheckpointGeometry(
        row["hash_block_size"],
        row["cache_block_size"],
        row["hash_block_size" if row["mamba_partial_cache_hit"] else "scheduler_block_size"],
        row["mamba_prefill_checkpoint_alignment"] if row["mamba_has_prefill_checkpoint_blocks"] else None,
        row["use_eagle_block_drop"],
        row["num_hash_lookahead_tokens"],
    )
    limits = row["max_num_scheduled_tokens"], row["long_prefill_token_threshold"] or None
    return SplitPolicy(geometry, *limits, exact_junction=row["mamba_shared_prefix_checkpoint"])


def _progress(row: dict[str, Any]) -> PrefillProgress:
    start = sum(row[f"num_{kind}computed_tokens"] for kind in ("", "new_local_", "external_"))
    return PrefillProgress(start, row["num_prompt_tokens"], row["num_tokens"], row["shared_prefix_boundary"])


@cache
def split_cases() -> tuple[SplitCase, ...]:
    columns = read_records("e_block_aligned_split")
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return tuple(SplitCase(_progress(row), row["num_new_tokens"], _split_policy(row), row["result"]) for row in rows)


def _array_cases(name: str, record_type: Any, names: dict[str, str]) -> tuple[Any, ...]:
    stored = read_arrays(name)
    columns = [names.get(field, field) for field in record_type._fields[:-1]]
    return tuple(
        record_type(*(record[column] for column in columns), _arrays_of(stored, record["key"]))
        for record in read_records(name)
    )


@cache
def export_cases() -> tuple[ExportCase, ...]:
    return _array_cases("f1_export", ExportCase, {"query_start_loc": "cu_seqlens", "offsets": "checkpoint_offsets"})


@cache
def store_cases() -> tuple[StoreCase, ...]:
    names = {"chunk_indices": "chunk_idx", "state_shape": "ssm_shape", "state_size": "ssm_row_size"}
    return _array_cases("f2_mamba2_store", StoreCase, {"offsets": "checkpoint_offsets", **names})


@cache
def builder_cases() -> tuple[BuilderCase, ...]:
    return tuple(
        BuilderCase(
            r["mamba_cache_mode"],
            r["num_prefill_checkpoint_blocks"],
            _geometry(r, _drops_eagle_block(r)),
            *(r[name] for name in BuilderCase._fields[3:]),
        )
        for r in read_records("h_builder")
    )
