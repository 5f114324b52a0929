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

__all__ = ["CompactArray", "compile_ptx"]

_WORD = ir.IntType(64)
_GLOBAL_MEMORY = 1


class CompactArray(types.Array):
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
        fields = {"data": data, "nitems": functools.reduce(builder.mul, words[:ndim])}
        fields |= {"shape": cgutils.pack_array(builder, words[:ndim])}
        fields |= {"strides": cgutils.pack_array(builder, words[ndim:])}
        for name, field in fields.items():
            array = self.set(builder, array, field, name)
        return array


def _element(context: Any, builder: Any, kind: CompactArray, value: Any, index: Any) -> Any:
    """Return the address of an element, known to lie in global memory."""
    array = context.make_array(kind)(context, builder, value)
    indices = index[1] if isinstance(index[0], types.BaseTuple) else [index[1]]
    kinds = index[0] if isinstance(index[0], types.BaseTuple) else [index[0]]
    if isinstance(index[0], types.BaseTuple):
        indices = cgutils.unpack_tuple(builder, index[1], len(index[0]))
    address = builder.ptrtoint(array.data, _WORD)
    for position, of, stride in zip(indices, kinds, cgutils.unpack_tuple(builder, array.strides), strict=True):
        step = context.cast(builder, position, of, types.int64)
        address = builder.add(address, builder.mul(step, stride))
    pointee = context.get_data_type(kind.dtype)
    return builder.inttoptr(address, ir.PointerType(pointee, _GLOBAL_MEMORY))


@lower_builtin(operator.getitem, CompactArray, types.Integer)
@lower_builtin(operator.getitem, CompactArray, types.BaseTuple)
def _getitem(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind, index = signature.args
    address = _element(context, builder, kind, arguments[0], (index, arguments[1]))
    return context.unpack_value(builder, kind.dtype, address)


@lower_builtin(operator.setitem, CompactArray, types.Integer, types.Any)
@lower_builtin(operator.setitem, CompactArray, types.BaseTuple, types.Any)
def _setitem(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
    kind, index, written = signature.args
    address = _element(context, builder, kind, arguments[0], (index, arguments[1]))
    value = context.cast(builder, arguments[2], written, kind.dtype)
    context.pack_value(builder, kind.dtype, value, address)


def compile_ptx(kernel: Any, argument_types: tuple[Any, ...], capability: tuple[int, int], num_threads: int) -> str:
    """Compile a kernel for blocks of at most `num_threads` and return its PTX; its entry is the kernel's name."""
    ptx, _ = cuda.compile_ptx(kernel.py_func, argument_types, cc=capability, launch_bounds=num_threads)
    entry = str(ptx).partition(".entry ")[2].partition("(")[0].strip()
    return str(ptx).replace(entry, kernel.py_func.__name__)
