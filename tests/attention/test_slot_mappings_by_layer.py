"""Slot mappings by layer: the recordings, and views instead of copies."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_ckpt.attention import build_slot_mappings_by_layer
from tests.golden.pack import read_records


@pytest.mark.parametrize("case", read_records("g5_slot_mappings_by_layer"), ids=lambda c: len(c["group_layer_names"]))
def test_recorded_layers(case):
    slots = np.array(case["slot_mappings"], np.int64)
    # Stand-ins: upstream's groups may be empty, which KVCacheGroup refuses.
    groups = [SimpleNamespace(layer_names=names) for names in case["group_layer_names"]]
    mappings = build_slot_mappings_by_layer(slots, groups)
    assert list(mappings) == case["layer_order"]
    for name, row in case["layer_to_row"].items():
        assert np.shares_memory(mappings[name], slots[row])
        assert mappings[name].tolist() == case["slot_mappings"][row]
