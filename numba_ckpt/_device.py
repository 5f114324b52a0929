"""Kernels compiled for a device, without one at hand: arrays that are one launch parameter each.

Numba passes an array to a kernel as 5 + 2n parameters. A `CompactArray` is the same array as one, laid out as a C
program would::

    struct { void *data; int64_t shape[n], strides[n]; }    // strides in bytes

Only what compiles imports this file; it needs numba-cuda, not a driver.
"""

import functools
import operator
from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.core import cgutils
from numba.core.datamodel.models import ArrayModel
from numba.cuda.extending import lower_builtin, register_model

from numba_ckpt._primitives import element_address

__all__ = ["CompactArray", "compile_ptx", "launch_bounds", "with_entry"]

_WORD = ir.IntType(64)
_GLOBAL_MEMORY = 1
_MIN_RESIDENT_THREADS = 1024


class CompactArray(types.Array):  # type: ignore[misc]
    """The type of an array with any strides that is one launch parameter; an index never counts from the end."""

    def __init__(self, dtype: Any, ndim: int) -> None:
        super().__init__(dtype, ndim, "A")


@register_model(CompactArray)
class _CompactArrayModel(ArrayModel):  # type: ignore[misc]
    def get_argument_type(self) -> Any:
        data = self.get_value_type().elements[self.get_field_position("data")]
        return ir.LiteralStructType([data] + [_WORD] * (2 * self._fe_type.ndim))

    def from_argument(self, builder: Any, value: Any) -> Any:
        ndim = self._fe_type.ndim
        data, *words = (builder.extract_value(value, i) for i in range(1 + 2 * ndim))
        array = cgutils.get_null_value(self.get_value_type())
        item_bytes = getattr(self._fe_type.dtype, "bitwidth", 8) // 8
        fields = {"data": data, "nitems": functools.reduce(builder.mul, words[:ndim]), "itemsize": _WORD(item_bytes)}
        fields |= {"shape": cgutils.pack_array(builder, words[:ndim])}
        fields |= {"strides": cgutils.pack_array(builder, words[ndim:])}
        for name, field in fields.items():
            array = self.set(builder, array, field, name)
        return array


def _element(context: Any, builder: Any, kind: CompactArray, value: Any, index: tuple[Any, Any]) -> Any:
    """Return a pointer to an element, known to lie in global memory."""
    array = context.make_array(kind)(context, builder, value)
    if not isinstance(index[0], types.BaseTuple):
        index = types.UniTuple(index[0], 1), cgutils.pack_array(builder, [index[1]])
    address = element_address(context, builder, array, index)
    return builder.inttoptr(address, ir.PointerType(context.get_data_type(kind.dtype), _GLOBAL_MEMORY))


def _getitem(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind, index = signature.args
    address = _element(context, builder, kind, arguments[0], (index, arguments[1]))
    return context.unpack_value(builder, kind.dtype, address)


def _setitem(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
    kind, index, written = signature.args
    address = _element(context, builder, kind, arguments[0], (index, arguments[1]))
    value = context.cast(builder, arguments[2], written, kind.dtype)
    context.pack_value(builder, kind.dtype, value, address)


for _index in types.Integer, types.BaseTuple:
    lower_builtin(operator.getitem, CompactArray, _index)(_getitem)
    lower_builtin(operator.setitem, CompactArray, _index, types.Any)(_setitem)


def launch_bounds(num_threads: int) -> tuple[int, int]:
    """Return (threads per block, blocks at a time): at most 64 registers, so that 1024 threads have work under way."""
    return num_threads, _MIN_RESIDENT_THREADS // num_threads


def with_entry(ptx: str, name: str) -> str:
    """Return PTX with its kernel's mangled name replaced."""
    mangled = ptx.partition(".entry ")[2].partition("(")[0].strip()
    return ptx.replace(mangled, name)


def compile_ptx(kernel: Any, argument_types: tuple[Any, ...], capability: tuple[int, int], num_threads: int) -> str:
    """Return the PTX of a kernel for a compute capability such as (9, 0), whose entry has the kernel's name.

    It can be launched with blocks of up to `num_threads`. `argument_types` are numba's types of numbers, and a
    `CompactArray` for each array.
    """
    bounds = launch_bounds(num_threads)
    ptx, _ = cuda.compile_ptx(kernel.py_func, argument_types, cc=capability, launch_bounds=bounds)
    return with_entry(str(ptx), kernel.py_func.__name__)
