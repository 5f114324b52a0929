"""Arrays of single layers over one allocation, without a copy."""

from typing import Any

from numba_ckpt._array import Array, Backend, backend_of
from numba_ckpt._check import check_array, check_writable, describe, refuse
from numba_ckpt.cache.layouts import ArrayView, LayerMemory
from numba_ckpt.cache.memory_plan import MemoryPlan
from numba_ckpt.cache.specs import AttentionSpec
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["LayerCache", "split_kv", "view_caches"]

LayerCache = Any
"""One array of an attention layer, a tuple of arrays of a layer with states."""


def view_caches(memory: Array, plan: MemoryPlan) -> dict[str, LayerCache]:
    """View an allocation as the caches of its layers.

    Parameters
    ----------
    memory : ndarray or cupy.ndarray
        uint8, contiguous, at least `plan.size_bytes`.
    plan : MemoryPlan
        Where the layers lie.

    Returns
    -------
    dict
        For each attention layer an array [kernel blocks, heads, tokens, content]; for each layer with states a tuple of
        arrays [blocks, ...], one per state. Elements that NumPy lacks (bfloat16, float8) are unsigned words.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Memory of another dtype or shape, too small, read-only, or misaligned.

    Examples
    --------
    >>> import numpy as np
    >>> from numba_ckpt.cache import StateSpec, plan_kv_cache, plan_memory
    >>> spec = StateSpec(64, shapes=((3, 8), (2, 4, 4)), dtypes=("float16", "float32"))
    >>> plan = plan_memory(plan_kv_cache({"mixer": spec}, num_blocks=10))
    >>> conv, recurrent = view_caches(np.zeros(plan.size_bytes, np.uint8), plan)["mixer"]
    >>> conv.shape, conv.strides, recurrent.shape, recurrent.strides
    ((10, 3, 8), (176, 16, 2), (10, 2, 4, 4), (176, 64, 16, 4))
    """
    check_array("memory", memory, 1)
    if memory.dtype != "uint8":
        refuse("memory", "bytes (uint8)", describe(memory), "view it as uint8", ArgumentTypeError)
    if memory.size < plan.size_bytes:
        refuse("memory", f"at least {plan.size_bytes} bytes", memory.size, "allocate plan.size_bytes")
    if memory.size > 1 and memory.strides != (1,):
        refuse("memory", "contiguous bytes", f"strides {memory.strides}", "allocate it in one piece")
    check_writable("memory", memory)
    backend = backend_of(memory=memory)
    if memory.size and (address := backend.address(memory)) % plan.alignment_bytes:
        expected = f"an address that is a multiple of {plan.alignment_bytes}"
        refuse("memory", expected, hex(address), "allocate it anew, or cut it off at a multiple")
    return {name: _view_layer(backend, memory, layer) for name, layer in plan.layers.items()}


def _view_layer(backend: Backend, memory: Array, layer: LayerMemory) -> LayerCache:
    views = tuple(_view(backend, memory, view) for view in layer.views)
    return views if layer.is_state else views[0]


def _view(backend: Backend, memory: Array, view: ArrayView) -> Array:
    elements = memory[view.offset : view.offset + view.span_bytes].view(view.dtype)
    return backend.as_strided(elements, view.shape, view.strides)


def split_kv(cache: Array, spec: AttentionSpec) -> tuple[Array, Array]:
    """View keys and values of an attention layer's cache.

    A head's key and value of one token lie side by side, so the views share their strides and neither is contiguous:
    kernels have to step by the strides.

    Parameters
    ----------
    cache : ndarray or cupy.ndarray
        [kernel blocks, heads, tokens, content].
    spec : AttentionSpec
        What the layer caches.

    Returns
    -------
    tuple of ndarray or cupy.ndarray
        Keys [kernel blocks, heads, tokens, head_size] and values [kernel blocks, heads, tokens, head_size_v].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A cache of another shape, or a spec without values (a latent).

    Examples
    --------
    >>> import numpy as np
    >>> from numba_ckpt.cache import FullAttentionSpec
    >>> keys, values = split_kv(np.zeros((10, 2, 16, 12)), FullAttentionSpec(16, 2, head_size=8, head_size_v=4))
    >>> keys.shape, values.shape
    ((10, 2, 16, 8), (10, 2, 16, 4))
    """
    if not isinstance(spec, AttentionSpec):
        refuse("spec", "an AttentionSpec", type(spec).__name__, "states have views of their own", ArgumentTypeError)
    if spec.head_size_v == 0:
        refuse("spec", "keys and values", f"{type(spec).__name__}, one latent", "use the whole cache")
    check_array("cache", cache, 4)
    if (cache.shape[1], cache.shape[3]) != (spec.num_kv_heads, spec.content_size):
        expected = f"{spec.num_kv_heads} heads and {spec.content_size} elements of content"
        refuse("cache", expected, describe(cache), "pass the layer's own cache")
    return cache[..., : spec.head_size], cache[..., spec.head_size :]
