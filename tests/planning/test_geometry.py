"""The geometry is a plain value: checked once, frozen, comparable."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from numba_ckpt.planning import CheckpointGeometry, compute_prefill_checkpoints

GEOMETRY = CheckpointGeometry(16, 2048, 32, checkpoint_alignment=64, num_hash_lookahead_tokens=3)


def test_defaults():
    geometry = CheckpointGeometry(16, 2048, 32, checkpoint_alignment=None)
    assert geometry.checkpoint_alignment is None
    assert geometry.drop_eagle_block is False
    assert geometry.num_hash_lookahead_tokens == 0


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CheckpointGeometry)])
def test_is_frozen(field):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(GEOMETRY, field, 1)


def test_equal_sizes_are_equal_geometries():
    twin = CheckpointGeometry(16, 2048, 32, 64, False, 3)
    assert twin == GEOMETRY
    assert hash(twin) == hash(GEOMETRY)
    assert dataclasses.replace(twin, hash_block_size=8) != GEOMETRY


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint64])
def test_numpy_scalars_become_plain_values(dtype):
    geometry = CheckpointGeometry(dtype(16), dtype(64), dtype(16), dtype(16), np.bool_(True), dtype(2))
    values = dataclasses.astuple(geometry)[:6]
    assert values == (16, 64, 16, 16, True, 2)
    assert [type(value) for value in values] == [int, int, int, int, bool, int]


def test_the_largest_sizes():
    largest = 2**31 - 1
    geometry = CheckpointGeometry(largest, largest, largest, largest, True, largest)
    assert compute_prefill_checkpoints([largest], [largest], geometry).any is False


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_plan_alike(duplicate):
    twin = duplicate(GEOMETRY)
    assert twin == GEOMETRY
    plans = [compute_prefill_checkpoints([5000], [5000], geometry) for geometry in (GEOMETRY, twin)]
    assert plans[0].offsets.tolist() == plans[1].offsets.tolist() != [0]
