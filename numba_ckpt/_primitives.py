"""What rules and kernels need below Python: strides without division, addresses, 16-byte moves, division on a device.

Each is a Python function, for the simulator and for code that is not compiled, and next to it what compilers put in its
place, on hosts and devices alike. Addresses are int64; loads and stores are as wide as they say and must be aligned so.
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
_CHUNK = ir.VectorType(ir.IntType(32), 4)
_WORDS = types.UniTuple(types.uint32, 4)
_GLOBAL_MEMORY = 1


def _is_device(builder: Any) -> bool:
    return "nvptx" in builder.module.triple


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Return a typed pointer; on a device into global memory, which makes for shorter accesses."""
    space = _GLOBAL_MEMORY if _is_device(builder) else 0
    return builder.inttoptr(address, ir.PointerType(kind, space))


def on_device() -> bool:
    """Say whether this code runs on a GPU, where some ways to compute the same are dear; known when it is compiled."""
    return False


@type_callable(on_device)
def _type_on_device(context: Any) -> Any:
    return lambda: types.boolean


@lower_builtin(on_device)
def _lower_on_device(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return cgutils.true_bit if _is_device(builder) else cgutils.false_bit


def device_quotient(n: int, divisor: int) -> int:
    """Return ``n // divisor`` for uint64, without the subroutine that a 64-bit division is on a GPU.

    Numbers below 2^32, nearly all there are, take a 32-bit division; others a loop over the quotient's bits.
    """
    if (n | divisor) >> uint64(32) == 0:
        return uint64(uint32(n) // uint32(divisor))
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
    return quotient


@type_callable(device_quotient)
def _type_device_quotient(context: Any) -> Any:
    return lambda n, divisor: types.uint64


@lower_builtin(device_quotient, types.uint64, types.uint64)
def _lower_device_quotient(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    if _is_device(builder):
        return context.compile_internal(builder, device_quotient, signature, arguments)
    return cgutils.get_null_value(arguments[0].type)  # stands behind `on_device`


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


@type_callable(strided)
def _type_strided(context: Any) -> Any:
    return lambda first, size, step: _STRIDES


@lower_builtin(strided, types.Integer, types.Integer, types.Integer)
def _lower_strided(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    pairs = zip(arguments, signature.args, strict=True)
    first, size, step = (context.cast(builder, value, kind, types.int64) for value, kind in pairs)
    state = cgutils.create_struct_proxy(_STRIDES)(context, builder)
    state.index = cgutils.alloca_once_value(builder, first)
    builder.store(first, state.index)
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


def routine(result: Any = types.none) -> Callable[[F], F]:
    """Compile a function of integers by itself, on hosts and devices, instead of into each caller as a `rule`.

    It costs a kernel a fraction of the time to compile; a device's compiler merges it all the same. In the simulator it
    runs as the host's code.
    """

    def decorate(function: F) -> F:
        compiled = njit(error_model="numpy", cache=True)(function)
        num_arguments = len(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return compiled(*arguments)

        @type_callable(call)
        def type_call(context: Any) -> Any:
            def typer(*arguments: Any) -> Any:
                return result

            typer.pysig = inspect.signature(function)  # type: ignore[attr-defined]
            return typer

        @lower_builtin(call, *[types.Integer] * num_arguments)
        def lower_call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pairs = zip(arguments, signature.args, strict=True)
            words = [context.cast(builder, value, kind, types.int64) for value, kind in pairs]
            signature = typing.signature(result, *[types.int64] * num_arguments)
            return context.compile_internal(builder, function, signature, words)

        return cast(F, call)

    return decorate


def address_of(array: Any, indices: tuple[int, ...]) -> int:
    """Return the address of an element; it need not exist."""
    steps = (int(index) * stride for index, stride in zip(indices, array.strides, strict=True))
    return int(array.ctypes.data) + sum(steps)


@type_callable(address_of)
def _type_address_of(context: Any) -> Any:
    return lambda array, indices: types.int64


@lower_builtin(address_of, types.Array, types.BaseTuple)
def _lower_address_of(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return element_address(context, builder, array, (signature.args[1], arguments[1]))


def element_address(context: Any, builder: Any, array: Any, indices: tuple[Any, Any]) -> Any:
    """Return the code for an element's address, from an array's members and a tuple of indices (type, value)."""
    kinds, values = indices
    address = builder.ptrtoint(array.data, ir.IntType(64))
    positions = cgutils.unpack_tuple(builder, values, len(kinds))
    for position, kind, stride in zip(positions, kinds, cgutils.unpack_tuple(builder, array.strides), strict=True):
        step = context.cast(builder, position, kind, types.int64)
        address = builder.add(address, builder.mul(step, stride))
    return address


def load_item(address: int, num_bytes: int) -> int:
    """Return the unsigned word of 1, 2, 4 or 8 bytes at an address."""
    return int.from_bytes(ctypes.string_at(int(address), int(num_bytes)), sys.byteorder)


def store_item(address: int, value: int, num_bytes: int) -> None:
    """Store the low 1, 2, 4 or 8 bytes of a word at an address."""
    low = int(value) & ((1 << 8 * int(num_bytes)) - 1)
    ctypes.memmove(int(address), low.to_bytes(int(num_bytes), sys.byteorder), int(num_bytes))


@type_callable(load_item)
def _type_load_item(context: Any) -> Any:
    return lambda address, num_bytes: types.uint64


@type_callable(store_item)
def _type_store_item(context: Any) -> Any:
    return lambda address, value, num_bytes: types.none


def _for_each_size(builder: Any, num_bytes: Any) -> Iterator[Any]:
    """Generate code for each size an item can have; compilers keep the one that a kernel's dtype chooses."""
    for size in _ITEM_SIZES:
        with builder.if_then(builder.icmp_unsigned("==", num_bytes, ir.Constant(num_bytes.type, size))):
            yield ir.IntType(8 * size)


@lower_builtin(load_item, types.Integer, types.Integer)
def _lower_load_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    word = ir.IntType(64)
    loaded = cgutils.alloca_once_value(builder, word(0))
    for kind in _for_each_size(builder, arguments[1]):
        item = builder.load(_pointer(builder, arguments[0], kind))
        builder.store(builder.zext(item, word) if kind.width < 64 else item, loaded)
    return builder.load(loaded)


@lower_builtin(store_item, types.Integer, types.Integer, types.Integer)
def _lower_store_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    address, value, num_bytes = arguments
    value = context.cast(builder, value, signature.args[1], types.uint64)
    for kind in _for_each_size(builder, num_bytes):
        item = builder.trunc(value, kind) if kind.width < 64 else value
        builder.store(item, _pointer(builder, address, kind))
    return context.get_dummy_value()


def load_chunk(address: int) -> tuple[int, ...]:
    """Return the four 32-bit words at an address that is a multiple of 16."""
    return tuple(_words_at(address))


def store_chunk(address: int, words: tuple[int, ...]) -> None:
    """Store four 32-bit words at an address that is a multiple of 16."""
    _words_at(address)[:] = [int(word) & 0xFFFFFFFF for word in words]


def _words_at(address: int) -> Any:
    assert address % _CHUNK_BYTES == 0, "a chunk is aligned"
    return (ctypes.c_uint32 * 4).from_address(int(address))


@type_callable(load_chunk)
def _type_load_chunk(context: Any) -> Any:
    return lambda address: _WORDS


@type_callable(store_chunk)
def _type_store_chunk(context: Any) -> Any:
    return lambda address, words: types.none if words == _WORDS else None


@lower_builtin(load_chunk, types.Integer)
def _lower_load_chunk(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    chunk = builder.load(_pointer(builder, arguments[0], _CHUNK), align=_CHUNK_BYTES)
    words = [builder.extract_element(chunk, ir.IntType(32)(index)) for index in range(4)]
    return context.make_tuple(builder, _WORDS, words)


@lower_builtin(store_chunk, types.Integer, _WORDS)
def _lower_store_chunk(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    chunk = _CHUNK(ir.Undefined)
    for index, word in enumerate(cgutils.unpack_tuple(builder, arguments[1], 4)):
        chunk = builder.insert_element(chunk, word, ir.IntType(32)(index))
    builder.store(chunk, _pointer(builder, arguments[0], _CHUNK), align=_CHUNK_BYTES)
    return context.get_dummy_value()
