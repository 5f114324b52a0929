"""What rules and kernels need below Python: strides without division, addresses, 16-byte moves, division on a device.

Each is a Python function, for the simulator and for code that is not compiled, and next to it the code that compilers
put in its place, on hosts and devices alike. Addresses are int64; an access must be aligned to its width.
"""

import ctypes
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit, types, uint32, uint64
from numba.core import cgutils, typing
from numba.core.imputils import RefType, iternext_impl
from numba.extending import lower_builtin, models, register_model, type_callable

__all__ = [
    "address_of",
    "device_quotient",
    "element_address",
    "load_chunk",
    "load_item",
    "on_device",
    "routine",
    "store_chunk",
    "store_item",
    "strided",
]

F = TypeVar("F", bound=Callable[..., Any])

_CHUNK_BYTES = 16
_ITEM_SIZES = 1, 2, 4, 8
_GLOBAL_MEMORY = 1
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_CHUNK = ir.VectorType(_INT32, 4)
_WORDS = types.UniTuple(types.uint32, 4)


def _compiles(function: Callable[..., Any], result: Any, *kinds: Any) -> Callable[[F], F]:
    """Let a generator of code stand for calls of `function`, whose arguments are converted to `kinds` first."""

    def typer(*arguments: Any) -> Any:
        return result

    def decorate(generate: F) -> F:
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            given = zip(arguments, signature.args, kinds, strict=True)
            code = generate(context, builder, *(context.cast(builder, *value) for value in given))
            return context.get_dummy_value() if code is None else code

        typer.pysig = inspect.signature(function)  # type: ignore[attr-defined]
        type_callable(function)(lambda context: typer)
        lower_builtin(function, *[types.Any] * len(kinds))(lower)
        return generate

    return decorate


def _is_device(builder: Any) -> bool:
    return "nvptx" in builder.module.triple


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Return a typed pointer; on a device one that is known to lie in global memory."""
    return builder.inttoptr(address, ir.PointerType(kind, _GLOBAL_MEMORY if _is_device(builder) else 0))


def on_device() -> bool:
    """Say whether this code runs on a GPU, where other ways to compute the same are cheap."""
    return False


@_compiles(on_device, types.boolean)
def _generate_on_device(context: Any, builder: Any) -> Any:
    return cgutils.true_bit if _is_device(builder) else cgutils.false_bit


def device_quotient(n: int, divisor: int) -> int:
    """Return ``n // divisor`` of uint64, without the subroutine that a 64-bit division is on a GPU.

    Numbers below 2^32, nearly all there are, take a 32-bit division; others a loop over the quotient's bits.
    """
    if (n | divisor) >> uint64(32) == 0:
        return int(uint64(uint32(n) // uint32(divisor)))
    quotient, bit = uint64(0), uint64(1)
    while (divisor < n) & (divisor >> uint64(63) == 0):
        divisor <<= uint64(1)
        bit <<= uint64(1)
    while bit != 0:
        if n >= divisor:
            n -= divisor
            quotient |= bit
        divisor >>= uint64(1)
        bit >>= uint64(1)
    return int(quotient)


@_compiles(device_quotient, types.uint64, types.uint64, types.uint64)
def _generate_device_quotient(context: Any, builder: Any, n: Any, divisor: Any) -> Any:
    if not _is_device(builder):
        return builder.udiv(n, divisor)  # never reached: it stands behind `on_device`
    signature = typing.signature(types.uint64, types.uint64, types.uint64)
    return context.compile_internal(builder, device_quotient, signature, (n, divisor))


def strided(first: int, size: int, step: int) -> Iterable[int]:
    """Return ``range(first, size, step)`` for a positive step; a compiled range divides to count its items first."""
    return range(first, size, step)


class _Strides(types.SimpleIteratorType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("strided", types.int64)


_STRIDES = _Strides()


@register_model(_Strides)
class _StridesModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        members = [("index", types.EphemeralPointer(types.int64)), ("size", types.int64), ("step", types.int64)]
        super().__init__(manager, kind, members)


@_compiles(strided, _STRIDES, types.int64, types.int64, types.int64)
def _generate_strided(context: Any, builder: Any, first: Any, size: Any, step: Any) -> Any:
    state = cgutils.create_struct_proxy(_STRIDES)(context, builder)
    state.index = cgutils.alloca_once_value(builder, first)
    state.size, state.step = size, step
    return state._getvalue()


@iternext_impl(RefType.UNTRACKED)  # type: ignore[untyped-decorator]
def _next_stride(context: Any, builder: Any, signature: Any, arguments: Any, result: Any) -> None:
    state = cgutils.create_struct_proxy(_STRIDES)(context, builder, arguments[0])
    index = builder.load(state.index)
    result.set_valid(builder.icmp_signed("<", index, state.size))
    result.yield_(index)
    builder.store(builder.add(index, state.step), state.index)


# The decorator's wrapper says that it is numba's, which devices do not take from the hosts' registry.
_next_stride.__module__ = __name__
lower_builtin("iternext", _Strides)(_next_stride)


def address_of(array: Any, indices: tuple[int, ...]) -> int:
    """Return the address of an element, whether it exists or not."""
    steps = (int(index) * int(stride) for index, stride in zip(indices, array.strides, strict=True))
    return int(array.ctypes.data) + sum(steps)


def element_address(context: Any, builder: Any, array: Any, indices: tuple[Any, Any]) -> Any:
    """Return the code for an element's address, from an array's members and a tuple of indices (type, value)."""
    kinds, values = indices
    address = builder.ptrtoint(array.data, _INT64)
    positions = cgutils.unpack_tuple(builder, values, len(kinds))
    for position, kind, stride in zip(positions, kinds, cgutils.unpack_tuple(builder, array.strides), strict=True):
        step = context.cast(builder, position, kind, types.int64)
        address = builder.add(address, builder.mul(step, stride))
    return address


def _lower_address_of(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return element_address(context, builder, array, (signature.args[1], arguments[1]))


type_callable(address_of)(lambda context: lambda array, indices: types.int64)
lower_builtin(address_of, types.Array, types.BaseTuple)(_lower_address_of)


def load_item(address: int, num_bytes: int) -> int:
    """Return the unsigned word of 1, 2, 4 or 8 bytes at an address."""
    return int.from_bytes(ctypes.string_at(int(address), int(num_bytes)), sys.byteorder)


def store_item(address: int, value: int, num_bytes: int) -> None:
    """Store the low 1, 2, 4 or 8 bytes of a word at an address."""
    low = int(value) & ((1 << 8 * int(num_bytes)) - 1)
    ctypes.memmove(int(address), low.to_bytes(int(num_bytes), sys.byteorder), int(num_bytes))


def _each_size(builder: Any, num_bytes: Any) -> Iterator[Any]:
    """Generate code for each size an item can have; compilers keep the one that a kernel's dtypes choose."""
    for size in _ITEM_SIZES:
        with builder.if_then(builder.icmp_unsigned("==", num_bytes, _INT64(size))):
            yield ir.IntType(8 * size)


@_compiles(load_item, types.uint64, types.int64, types.int64)
def _generate_load_item(context: Any, builder: Any, address: Any, num_bytes: Any) -> Any:
    loaded = cgutils.alloca_once_value(builder, _INT64(0))
    for kind in _each_size(builder, num_bytes):
        item = builder.load(_pointer(builder, address, kind))
        builder.store(builder.zext(item, _INT64) if kind.width < 64 else item, loaded)
    return builder.load(loaded)


@_compiles(store_item, types.none, types.int64, types.uint64, types.int64)
def _generate_store_item(context: Any, builder: Any, address: Any, value: Any, num_bytes: Any) -> None:
    for kind in _each_size(builder, num_bytes):
        item = builder.trunc(value, kind) if kind.width < 64 else value
        builder.store(item, _pointer(builder, address, kind))


def _words_at(address: int) -> Any:
    assert address % _CHUNK_BYTES == 0, "a chunk is aligned"
    return (ctypes.c_uint32 * 4).from_address(int(address))


def load_chunk(address: int) -> tuple[int, ...]:
    """Return the four 32-bit words at an address that is a multiple of 16."""
    return tuple(_words_at(address))


def store_chunk(address: int, words: tuple[int, ...]) -> None:
    """Store four 32-bit words at an address that is a multiple of 16."""
    _words_at(address)[:] = [int(word) & 0xFFFFFFFF for word in words]


@_compiles(load_chunk, _WORDS, types.int64)
def _generate_load_chunk(context: Any, builder: Any, address: Any) -> Any:
    chunk = builder.load(_pointer(builder, address, _CHUNK), align=_CHUNK_BYTES)
    words = [builder.extract_element(chunk, _INT32(index)) for index in range(4)]
    return context.make_tuple(builder, _WORDS, words)


@_compiles(store_chunk, types.none, types.int64, _WORDS)
def _generate_store_chunk(context: Any, builder: Any, address: Any, words: Any) -> None:
    chunk = _CHUNK(ir.Undefined)
    for index, word in enumerate(cgutils.unpack_tuple(builder, words, 4)):
        chunk = builder.insert_element(chunk, word, _INT32(index))
    builder.store(chunk, _pointer(builder, address, _CHUNK), align=_CHUNK_BYTES)


def routine(result: Any = types.none) -> Callable[[F], F]:
    """Compile a function of integers by itself, instead of into each caller as a `rule`: its result's type, or none.

    That makes a kernel quick to compile; a device's compiler merges the two all the same. In the simulator the routine
    runs as the host's code.
    """

    def decorate(function: F) -> F:
        compiled = njit(error_model="numpy", cache=True)(function)
        kinds = [types.int64] * len(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return compiled(*arguments)

        @_compiles(call, result, *kinds)
        def generate(context: Any, builder: Any, *arguments: Any) -> Any:
            return context.compile_internal(builder, function, typing.signature(result, *kinds), arguments)

        return cast(F, call)

    return decorate
