"""Checks of what a model hands in: its layers, names of them, and their backends."""

from collections.abc import Collection, Mapping
from typing import Any

from numba_ckpt._check import refuse
from numba_ckpt.attention.backend import AttentionBackend, AttentionLayer, MetadataBuilder
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["check_builder", "check_layer_names", "check_layers", "checked_backend"]


def check_layers(layers: Any) -> None:
    """Refuse anything but a mapping from names to layers."""
    if not isinstance(layers, Mapping):
        refuse("layers", "a mapping from names to layers", type(layers).__name__, "name the layers", ArgumentTypeError)
    for name, layer in layers.items():
        if not isinstance(name, str) or not isinstance(layer, AttentionLayer):
            expected, do = "an AttentionLayer by name", "implement that protocol"
            refuse(f"layers[{name!r}]", expected, type(layer).__name__, do, ArgumentTypeError)


def check_layer_names(name: str, layer_names: Collection[str], layers: Collection[str] | None) -> frozenset[str]:
    """Return names as a set, refusing a single name and, where layers are given, names of none of them."""
    if isinstance(layer_names, str) or not isinstance(layer_names, Collection):
        refuse(name, "a collection of names", repr(layer_names), "put the name in a set", ArgumentTypeError)
    unknown = [] if layers is None else [layer for layer in layer_names if layer not in layers]
    if unknown:
        refuse(name, "names of layers", ", ".join(map(repr, unknown)), "check them against the model's layers")
    return frozenset(layer_names)


def checked_backend(layer_name: str, backend: Any) -> type[AttentionBackend]:
    """Return what a layer's `get_attn_backend` returned, if it is a backend."""
    name = f"{layer_name}.get_attn_backend()"
    if not isinstance(backend, type) or not issubclass(backend, AttentionBackend):
        refuse(name, "a class of AttentionBackend", repr(backend), "return the class, not an object", ArgumentTypeError)
    return backend


def check_builder(backend: type[AttentionBackend]) -> None:
    """Refuse a backend that names no class of builders."""
    builder: Any = backend.builder_class()
    if not isinstance(builder, type) or not issubclass(builder, MetadataBuilder):
        got, do = repr(builder), "return the class, not an object"
        refuse(f"{backend.name}.builder_class()", "a class of MetadataBuilder", got, do, ArgumentTypeError)
