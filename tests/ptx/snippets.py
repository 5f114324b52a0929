"""Small programs written out, for tests of single instructions and of control flow."""

import numpy as np

from tests.ptx.interpreter import Memory, parse_kernel, run

REGISTERS = ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>, %a<5>;"
PREFIXES = {8: "%h", 16: "%h", 32: "%r", 64: "%d"}


def program(body, parameters=()):
    """A kernel with registers of all widths; `parameters` are pointers, in %a0, %a1, ..."""
    declared = ", ".join(f".param .u64 {name}" for name in parameters)
    loads = " ".join(f"ld.param.u64 %a{i}, [{name}];" for i, name in enumerate(parameters))
    return parse_kernel(f".version 9.0\n.entry snippet({declared}) {{\n{REGISTERS} {loads}\n{body}\nret;\n}}")


def run_on(arrays, body, grid=(1,), block=(1,), written=None):
    """Run `body` on arrays, changed in place; pointers to them are in %a0, %a1, ..., in their order."""
    memory = Memory()
    bases = [memory.declare(name, array.view(np.uint8).ravel(), written).base for name, array in arrays.items()]
    run(program(body, tuple(arrays)), grid, block, bases, memory)
    return memory


def evaluate(opcode, result, *sources):
    """Run one instruction, in a block of its own for each value of the arrays; `result` is overwritten.

    Values of 8 bits are held in registers of 16; an array of bool is a predicate.
    """
    arrays = {f"in{i}": np.ascontiguousarray(source) for i, source in enumerate(sources)} | {"out": result}
    lines, operands = ["mov.u32 %r8, %ctaid.x; cvt.u64.u32 %d1, %r8;"], []
    for index, array in enumerate(arrays.values()):
        bits = 8 * array.itemsize
        register = f"{PREFIXES[bits]}{index + 2}"
        lines.append(f"mad.lo.s64 %a{index}, %d1, {array.itemsize}, %a{index};")
        operands.append(f"%p{index}" if array.dtype == bool else register)
        if array is not result:
            lines.append(f"ld.global.b{bits} {register}, [%a{index}];")
        if array is not result and array.dtype == bool:
            lines.append(f"setp.ne.b16 %p{index}, {register}, 0;")
    lines.append(f"{opcode} {', '.join([operands[-1], *operands[:-1]])};")
    bits, register = 8 * result.itemsize, operands[-1]
    if result.dtype == bool:
        lines.append(f"selp.b16 %h8, 1, 0, {register};")
        register = "%h8"
    lines.append(f"st.global.b{bits} [%a{len(sources)}], {register};")
    run_on(arrays, "\n".join(lines), grid=(result.size,))
    return result
