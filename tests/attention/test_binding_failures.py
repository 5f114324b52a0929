"""Whatever fails on the way, no layer stays bound and no memory is kept."""

import contextlib
import gc
import weakref

import numpy as np
import pytest

from numba_ckpt.attention import CachePlacement, init_kv_cache
from numba_ckpt.attention import binding as binding_module
from numba_ckpt.errors import ArgumentError
from tests.attention.cached_layers import FULL, Layer, hosted, hybrid, planned


class Failing(Layer):
    def bind_kv_cache(self, cache):
        if cache is not None:
            raise RuntimeError("no room for a graph")
        super().bind_kv_cache(cache)


def test_a_layer_that_fails_leaves_nobody_bound_and_nothing_on_the_host(monkeypatch):
    layers = hybrid()
    config, failing = hosted(layers), layers | {"layers.3.attn": Failing(FULL)}
    tiers, tier_class = [], binding_module.HostTier
    monkeypatch.setattr(binding_module, "HostTier", lambda *args: tiers.append(tier_class(*args)) or tiers[-1])
    with pytest.raises(RuntimeError, match="no room"):
        init_kv_cache(failing, config, CachePlacement(num_hot_blocks=3))
    assert [layer.bound[-1:] for layer in failing.values()] == [[None]] * 4 + [[]] * 2
    with pytest.raises(ArgumentError, match="closed"):
        tiers[0].load(np.array([1]))


class Counted:
    """An array module that keeps track of its arrays, and has room for so many of them."""

    def __init__(self, room=99):
        self.room, self.alive = room, []

    def zeros(self, *arguments):
        if len(self.alive) == self.room:
            raise MemoryError
        self.alive.append(weakref.ref(array := np.zeros(*arguments)))
        return array


def assert_fails_without_a_trace(layers, config, module):
    """Fail, and look while the error is still kept."""
    with pytest.raises((RuntimeError, MemoryError)) as failure:
        init_kv_cache(layers, config, CachePlacement(array_module=module, num_hot_blocks=3))
    assert all(cache is None for layer in layers.values() for cache in layer.bound[-1:])
    for layer in layers.values():
        layer.bound.clear()
    gc.collect()
    assert failure.tb is not None
    assert not any(array() is not None for array in module.alive)


@pytest.mark.parametrize("at", range(5))
def test_whichever_layer_fails_no_memory_is_kept(at):
    layers = hybrid()
    config, name = hosted(layers), list(layers)[at]
    failing = Failing(layers[name].spec, layers[name].kv_sharing_target_layer_name, num_heads=layers[name].num_heads)
    module = Counted()
    assert_fails_without_a_trace(layers | {name: failing}, config, module)
    assert len(module.alive) == 2


@pytest.mark.parametrize("room", [0, 1])
def test_whichever_allocation_fails_no_memory_is_kept(room):
    layers = hybrid()
    assert_fails_without_a_trace(layers, hosted(layers), module := Counted(room))
    assert len(module.alive) == room


def test_pages_that_do_not_fit_on_the_host_keep_no_memory(monkeypatch):
    layers = hybrid()

    def no_room(*arguments):
        raise MemoryError("pinned")

    monkeypatch.setattr(binding_module, "HostTier", no_room)
    assert_fails_without_a_trace(layers, hosted(layers), Counted())


def test_a_smaller_hot_set_fits_while_the_first_failure_is_handled():
    layers = hybrid()

    class Small(Counted):
        """Room for what is alive, not for what was once."""

        def zeros(self, size, dtype):
            self.alive = [array for array in self.alive if array() is not None]
            if sum(array().nbytes for array in self.alive) + size > 10_000:
                raise MemoryError
            return super().zeros(size, dtype)

    module, config = Small(), hosted(layers)
    try:
        init_kv_cache(layers, config, CachePlacement(array_module=module, num_hot_blocks=1000))
    except MemoryError:
        caches = init_kv_cache(layers, config, CachePlacement(array_module=module, num_hot_blocks=3))
    assert caches.host_tier.num_slots == 3


def test_a_context_that_fails_at_its_end_binds_nothing(monkeypatch):
    layers = hybrid()
    tiers, tier_class = [], binding_module.HostTier
    monkeypatch.setattr(binding_module, "HostTier", lambda *args: tiers.append(tier_class(*args)) or tiers[-1])

    @contextlib.contextmanager
    def context():
        yield
        raise RuntimeError("pool")

    with pytest.raises(RuntimeError, match="pool"):
        init_kv_cache(layers, hosted(layers), CachePlacement(num_hot_blocks=3), context())
    assert not any(layer.bound for layer in layers.values())
    with pytest.raises(ArgumentError, match="closed"):
        tiers[0].load([1])


def test_a_context_that_holds_an_error_back_is_refused():
    layers = hybrid()
    with pytest.raises(ArgumentError, match="allocation_context: expected a context that lets errors through"):
        init_kv_cache(
            layers, planned(layers), CachePlacement(array_module=Counted(0)), contextlib.suppress(MemoryError)
        )
    assert not any(layer.bound for layer in layers.values())


class Stuck(Failing):
    def bind_kv_cache(self, cache):
        raise RuntimeError("no room for a graph" if cache is not None else "stuck")


def test_a_layer_that_cannot_be_unbound_keeps_no_other_bound():
    layers = hybrid()
    with pytest.raises(RuntimeError, match="no room") as raised:
        init_kv_cache(layers | {"layers.3.attn": Stuck(FULL)}, planned(layers))
    assert raised.value.__notes__ == ["layers.3.attn could not be unbound: RuntimeError('stuck')"]
    assert all(layers[f"layers.{name}"].bound[-1] is None for name in ("0.mixer", "1.attn", "2.mixer"))
