"""What an export reads may not lie in what it writes, on either side; interleaved pages of one buffer may."""

import numpy as np
import pytest

from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvInput,
    ConvRecurrentExporter,
    InitialConvState,
    RecurrentCache,
    RecurrentInput,
)
from numba_ckpt.errors import ArgumentError
from numba_ckpt.testing import poisoned

STARTS = np.array([0, 8])


def make():
    conv, states = poisoned((4, 2, 3), np.float32), poisoned((4, 6), np.float32)
    return conv, states, ConvRecurrentExporter(ConvCache(conv), RecurrentCache(states))


def one(offset=4, block=2):
    return CheckpointTargets(np.array([offset]), np.array([block]))


def source(tokens=None, **more):
    return ConvInput(np.ones((8, 2), np.float32) if tokens is None else tokens, STARTS, **more)


def state():
    return RecurrentInput(np.ones((1, 6), np.float32))


def refused(name, call, *caches):
    before = [cache.tobytes() for cache in caches]
    with pytest.raises(ArgumentError, match=rf"^{name}: expected .*memory"):
        call()
    assert [cache.tobytes() for cache in caches] == before


def test_two_caches_of_the_same_bytes():
    pages = np.zeros((4, 6), np.float32)
    refused(
        "recurrent_cache.states",
        lambda: ConvRecurrentExporter(ConvCache(pages.reshape(4, 2, 3)), RecurrentCache(pages)),
        pages,
    )


def test_tokens_in_the_recurrent_cache():
    conv, states, exporter = make()
    tokens = states.reshape(-1, 2)[:8]
    refused("tokens", lambda: exporter.export(one(), source(tokens), state()), conv, states)


def test_states_in_the_conv_cache():
    conv, states, exporter = make()
    inside = RecurrentInput(conv.reshape(4, 6)[:1])
    refused("recurrent.states", lambda: exporter.export(one(), source(), inside), conv, states)


def test_initial_windows_in_the_recurrent_cache():
    conv, states, exporter = make()
    initial = InitialConvState(states.reshape(4, 2, 3), np.array([1]))
    refused("initial.states", lambda: exporter.export(one(2), source(initial=initial), state()), conv, states)


@pytest.mark.parametrize("name", ["offsets", "state_indices", "rows"])
def test_index_arrays_in_a_cache(name):
    conv, states = np.zeros((4, 2, 4), np.int64), np.zeros((4, 4), np.int64)
    exporter = ConvRecurrentExporter(ConvCache(conv), RecurrentCache(states))
    inside = states[3, :1]
    arrays = {"offsets": np.array([4]), "state_indices": np.array([2]), "rows": np.array([0])} | {name: inside}
    tokens = ConvInput(np.zeros((8, 2), np.int64), STARTS)
    call = CheckpointTargets(**arrays)
    refused(name, lambda: exporter.export(call, tokens, RecurrentInput(np.ones((1, 4), np.int64))), conv, states)


def test_sources_of_a_row_in_a_cache():
    states = np.zeros((4, 4), np.int64)
    exporter = ConvRecurrentExporter(ConvCache(np.zeros((4, 2, 3), np.float32)), RecurrentCache(states))
    rows = RecurrentInput(np.ones((1, 4), np.int64), states[2, :1])
    refused("recurrent.rows", lambda: exporter.export(one(), source(), rows), states)


def test_pages_that_hold_window_and_state_side_by_side():
    pages = poisoned((4, 12), np.float32)
    conv, states = pages[:, :6].reshape(4, 2, 3), pages[:, 6:]
    assert np.shares_memory(conv, pages)
    exporter = ConvRecurrentExporter(ConvCache(conv), RecurrentCache(states))
    exporter.export(one(), source(), state())
    assert (pages[2] == 1).all()
    assert np.isnan(pages[[0, 1, 3]]).all()


def test_a_source_between_the_pages():
    pages = np.zeros((4, 12), np.float32)
    pages[:, 6:] = 7
    exporter = ConvRecurrentExporter(ConvCache(np.zeros((4, 2, 3), np.float32)), RecurrentCache(pages[:, :6]))
    exporter.export(one(), source(), RecurrentInput(pages[:1, 6:]))
    assert (pages[2] == 7).all()
    assert (pages[[0, 1, 3], :6] == 0).all()


def test_elements_of_a_cache_that_overlap():
    backing = np.zeros(40, np.float32)
    overlapping = np.lib.stride_tricks.as_strided(backing, (10, 2, 3), (8, 4, 4))
    with pytest.raises(ArgumentError, match=r"conv_cache.states: expected elements of their own memory"):
        ConvCache(overlapping)


def test_an_empty_pool_is_no_broadcast():
    assert ConvCache(np.zeros((0, 2, 3), np.float32)).state_len == 3


def test_initial_windows_in_the_first_blocks_of_a_larger_cache():
    conv, _, exporter = make()
    conv[1] = 5
    initial = InitialConvState(conv[:2], np.array([1]))
    exporter.export(one(2, block=3), source(initial=initial), state())
    assert conv[3].tolist() == [[5, 1, 1]] * 2
