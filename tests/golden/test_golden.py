"""The packed vectors are complete, and equal the recordings where those lie beside the checkout."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import golden
from tests.golden import pack

RECORDINGS = Path(__file__).parents[2].parent / "shared" / "golden"
beside = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the checkout")


@pytest.mark.parametrize(
    ("cases", "count"),
    [
        (golden.position_cases, 2000),
        (golden.validity_cases, 5000),
        (golden.plan_cases, 500),
        (golden.chunk_cases, 300),
        (golden.split_cases, 1000),
        (golden.export_cases, 90),
        (golden.store_cases, 48),
        (golden.builder_cases, 120),
    ],
)
def test_every_record_is_packed(cases, count):
    assert len(cases()) == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("f3_block_table_sequences", 24),
        ("f3_gather_block_tables", 120),
        ("f4_slot_mappings", 150),
        ("g5_slot_mappings_by_layer", 50),
    ],
)
def test_every_record_of_block_tables_is_packed(name, count):
    assert len(pack.read_records(name)) == count


@beside
@pytest.mark.parametrize("name", pack.RECORDS)
def test_records_equal_the_recording(name):
    assert pack.read_records(name) == json.loads((RECORDINGS / f"{name}.json").read_text())


@beside
@pytest.mark.parametrize("name", pack.ARRAYS)
def test_arrays_equal_the_recording(name):
    packed = pack.read_arrays(name)
    with np.load(RECORDINGS / f"{name}.npz") as recorded:
        assert packed.keys() == set(recorded.files)
        for key in recorded.files:
            array = recorded[key]
            assert (packed[key].dtype, packed[key].shape) == (array.dtype, array.shape)
            assert packed[key].tobytes() == array.tobytes()
