"""Pack recorded vectors into the files beside this one: ``python tests/golden/pack.py FOLDER_OF_RECORDINGS``.

An array recorded after a write is stored as its difference (XOR of bits) from the one before it, which compresses well
because a write touches little.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RECORDS = (
    "a_position",
    "b_validity",
    "c_compute",
    "d_chunk_metadata",
    "e_block_aligned_split",
    "f1_export",
    "f2_mamba2_store",
    "f3_block_table_sequences",
    "f3_gather_block_tables",
    "f4_slot_mappings",
    "g1_mm_prefix_ranges",
    "g2_fast_prefill_eligible",
    "g3_cg_support_narrow",
    "g4_fast_prefill_prepare",
    "g5_slot_mappings_by_layer",
    "g6_build_attn_metadata",
    "h_builder",
)
ARRAYS = ("f1_export", "f2_mamba2_store")


def as_bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def before_of(key: str) -> str | None:
    """Name the array that `key` is the later state of."""
    return key.removesuffix("after") + "before" if key.endswith("after") else None


def read_records(name: str) -> Any:
    return json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))


def read_arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    for key, array in arrays.items():
        if before := before_of(key):
            arrays[key] = (as_bits(array) ^ as_bits(arrays[before])).view(arrays[before].dtype)
    return arrays


def pack(source: Path) -> None:
    for name in RECORDS:
        text = json.dumps(json.loads((source / f"{name}.json").read_text()), separators=(",", ":"))
        (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    for name in ARRAYS:
        with np.load(source / f"{name}.npz") as recorded:
            arrays = {key: recorded[key] for key in recorded.files}
        for key in [key for key in arrays if before_of(key)]:
            arrays[key] = as_bits(arrays[key]) ^ as_bits(arrays[str(before_of(key))])
        np.savez_compressed(HERE / f"{name}.npz", **arrays)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
