"""Where everything gets its compiler: decorators, the scalar casts, ``cuda`` and what compiled code has beside Python.

Every other file takes its compiler from here, so that what numba is asked for (inlining, on-disk caching, C division)
is decided once, and ``mypy --strict`` sees plain functions. Only `_primitives` and `_device` know numba too.
"""

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.core.config
import numpy as np
from numba import cuda
from numba.core import cgutils
from numba.extending import intrinsic

from numba_ckpt._primitives import (
    address_of,
    device_quotient,
    load_chunk,
    load_item,
    on_device,
    routine,
    store_chunk,
    store_item,
    strided,
)

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "SIMULATED",
    "address_of",
    "atomic_loop",
    "borrow",
    "borrow_part",
    "closed_loop",
    "copy_bytes",
    "cuda",
    "device_quotient",
    "float64",
    "fused_loop",
    "host_loop",
    "inlined_loop",
    "int32",
    "int64",
    "kernel",
    "load_chunk",
    "load_item",
    "on_device",
    "open_loop",
    "routine",
    "rule",
    "store_chunk",
    "store_item",
    "strided",
    "strided_loop",
    "uint32",
    "uint64",
    "view_part",
]

# Casts that compiled code, the simulator and plain Python understand alike.
int32: Any = numba.int32
int64: Any = numba.int64
uint32: Any = numba.uint32
uint64: Any = numba.uint64
float64: Any = numba.float64

SIMULATED: bool = bool(numba.core.config.ENABLE_CUDASIM)


def rule(function: F) -> F:
    """Compile a scalar rule that Python, host loops, kernels and the simulator call alike.

    Inlining at the call site is what lets a kernel use it without a device at hand. The C error model keeps a hidden
    zero test out of host loops, where it would stop vectorisation: a rule states its domain and never raises.
    """
    return cast(F, numba.njit(inline="always", error_model="numpy", cache=True)(function))


def host_loop(function: F) -> F:
    """Compile a loop over NumPy arrays; cached on disk, releases the GIL."""
    return cast(F, numba.njit(error_model="numpy", cache=True, nogil=True)(function))


def atomic_loop(function: F) -> F:
    """Compile a host loop that keeps the GIL: to other threads a call is one step.

    For short loops over memory that outlives them, where letting go costs time and lets another thread see half of it.
    """
    return cast(F, numba.njit(error_model="numpy", cache=True)(function))


def fused_loop(function: F) -> F:
    """Compile a host loop whose multiply-add pairs become one instruction.

    Only for rules on integers, which are proven exact whether an intermediate product is rounded or not.
    """
    return cast(F, numba.njit(error_model="numpy", fastmath={"contract"}, cache=True, nogil=True)(function))


def inlined_loop(function: F) -> F:
    """Compile a part of a host loop into each of its callers; may take arrays, unlike a `rule`."""
    return cast(F, numba.njit(inline="always", error_model="numpy")(function))


def closed_loop(function: F) -> F:
    """Compile a host loop that takes only the argument types it was opened for with `open_loop`.

    Anything else raises TypeError, at the price of the look-up that the dispatcher makes anyway: a type check of hot
    calls for free. With compilation switched off it always raises, so that callers take their checked path.
    """
    if numba.core.config.DISABLE_JIT:

        def closed(*args: Any) -> Any:
            raise TypeError(f"{function.__name__} is not compiled")

        return cast(F, closed)
    loop: Any = numba.njit(error_model="numpy", nogil=True)(function)
    loop._can_compile = False
    _compilers[loop] = host_loop(function)
    return cast(F, loop)


_compilers: dict[Any, Any] = {}
_opening = threading.RLock()


def open_loop(loop: Any, arguments: tuple[Any, ...], any_strides: bool = False) -> None:
    """Compile a `closed_loop` (or read its cache) for the types of these arguments; again is a no-op.

    Another dispatcher compiles, so that the closed one never has a moment in which it would take anything.
    """
    if numba.core.config.DISABLE_JIT:
        return
    types = [numba.typeof(argument) for argument in arguments]
    if any_strides:
        types = [kind.copy(layout="A") if isinstance(kind, numba.types.Array) else kind for kind in types]
    signature = tuple(types)
    with _opening:
        if signature not in loop.overloads:
            _compilers[loop].compile(signature)
            loop.add_overload(_compilers[loop].overloads[signature])


def strided_loop(function: F) -> F:
    """Compile a host loop once for all strides of its arrays, instead of once for each memory layout.

    For loops that take many arrays and are not bound by their inner stride.
    """
    if numba.core.config.DISABLE_JIT:
        return function
    loop: Any = closed_loop(function)

    def call(*arguments: Any) -> Any:
        try:
            return loop(*arguments)
        except TypeError:
            open_loop(loop, arguments, any_strides=True)
            return loop(*arguments)

    return cast(F, functools.wraps(function)(call))


@intrinsic
def _memcpy(typing_context, destination, source, num_bytes):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointers = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        cgutils.raw_memcpy(builder, *pointers, arguments[2], 1)
        return context.get_dummy_value()

    return numba.void(numba.uintp, numba.uintp, numba.uintp), generate


def _memcpy_interpreted(destination: int, source: int, num_bytes: int) -> None:
    ctypes.memmove(int(destination), int(source), int(num_bytes))


copy_bytes: Any = _memcpy_interpreted if numba.core.config.DISABLE_JIT else _memcpy
"""``copy_bytes(destination, source, num_bytes)``: memcpy between addresses, inside host loops."""


@intrinsic
def _pointer(typing_context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return numba.types.voidptr(numba.uintp), generate


def _borrow(array: Any) -> Any:
    return numba.carray(_pointer(array.ctypes.data), array.shape, array.dtype)


def _borrow_part(words: Any, start: int, stop: int, size: int, dtype: Any) -> Any:
    return numba.carray(_pointer(words[start:stop].ctypes.data), (size,), dtype)


def _borrow_interpreted(array: Any) -> Any:
    return array


def view_part(words: Any, start: int, stop: int, size: int, dtype: Any) -> Any:
    """Return what `borrow_part` does, outside compiled code."""
    part = words[start:stop].view(dtype)[:size]
    # Loops read the fields of a record as attributes, which NumPy's own arrays do not have.
    return part.view(np.recarray) if numba.core.config.DISABLE_JIT and part.dtype.names else part


borrow: Any = _borrow_interpreted if numba.core.config.DISABLE_JIT else inlined_loop(_borrow)
"""``borrow(array)``: the contiguous array, without its owner, inside a host loop that does not outlive it.

Slicing an array, or handing it to another loop, counts references atomically, which is most of the work of a short
loop. A borrowed array has no owner to count for.
"""
borrow_part: Any = view_part if numba.core.config.DISABLE_JIT else inlined_loop(_borrow_part)
"""``borrow_part(words, start, stop, size, dtype)``: `size` entries of `dtype` in a part of an int64 array, borrowed."""


def kernel(function: F) -> F:
    """Mark a CUDA kernel: compiled for the device (or the simulator) at its first launch."""
    return cast(F, cuda.jit(function))
