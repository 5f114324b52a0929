"""The machine code of every kernel, for every architecture and all dtypes; and that planted faults are found in it."""

import pytest
from numba import types

from numba_ckpt._device import CompactArray, compile_ptx
from numba_ckpt._jit import cuda, int64, kernel, strided
from numba_ckpt.kernels._launch import THREADS_PER_BLOCK
from numba_ckpt.kernels._registry import OPS
from tests.compile.compile_kernels import ARCHITECTURES, argument_type, compile_function
from tests.compile.machine_code import faults
from tests.compile.signatures import BULK, SIGNATURES


def test_every_kernel_has_signatures():
    assert {signature.op for signature in SIGNATURES} == set(OPS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("signature", SIGNATURES, ids=str)
def test_machine_code(compiled, signature, architecture):
    code = compiled[signature, architecture]
    is_bulk, reads = signature.op in BULK, signature.op != "zero_blocks"
    assert faults(code, len(signature.arguments), is_bulk, reads) == []


def test_the_package_compiles_to_the_same():
    signature = SIGNATURES[0]
    kernel, arguments = OPS[signature.op].kernel, tuple(map(argument_type, signature.arguments))
    ours, _ = (code.ptx for code in compile_function(kernel, signature.arguments, "sm_90", "sm_80"))
    ptx = compile_ptx(kernel, arguments, (9, 0), THREADS_PER_BLOCK)
    # The names of globals before the entry are numbered.
    assert ptx.partition(".visible .entry")[2] == ours.partition(".visible .entry")[2] != ""


def ordinary_type(text):
    kind = argument_type(text)
    return types.Array(kind.dtype, kind.ndim, "A") if isinstance(kind, CompactArray) else kind


@pytest.mark.parametrize("op", OPS)
def test_an_ordinary_launch_compiles(op):
    arguments = next(signature.arguments for signature in SIGNATURES if signature.op == op)
    ptx, _ = cuda.compile_ptx(OPS[op].kernel.py_func, tuple(map(ordinary_type, arguments)), cc=(9, 0))
    assert ".entry" in ptx
    assert op not in BULK or "st.global.v4" in ptx


def planted(kernel, *arguments, is_bulk=False):
    """Faults of a kernel of this file."""
    (compiled,) = compile_function(kernel, arguments, "sm_90")
    return faults(compiled, len(arguments), is_bulk)


@kernel
def copy_kernel(a, b):
    for index in strided(cuda.threadIdx.x, a.size, cuda.blockDim.x):
        a[index] = b[index]


def test_a_sound_kernel_has_no_faults():
    assert planted(copy_kernel, "u4[1]", "u4[1]") == []


def test_a_scalar_loop_is_found():
    found = planted(copy_kernel, "u4[1]", "u4[1]", is_bulk=True)
    assert found == ["the main loop loads 32 and stores 32 bits at a time"]


def many_values_kernel():
    """Write a kernel that holds 48 values of 64 bits at a time, more than fit 64 registers."""
    names = [f"v{k}" for k in range(48)]
    lines = ["def spill_kernel(a, b, size):", "    for index in strided(cuda.threadIdx.x, size, cuda.blockDim.x):"]
    lines += [f"        {name} = a[index + {k}]" for k, name in enumerate(names)]
    lines += ["        b[index] = 0"]  # might change a: what was loaded must be kept
    lines += [f"        b[index * 48 + {k}] = {name}" for k, name in enumerate(names)]
    scope = {"strided": strided, "cuda": cuda}
    exec("\n".join(lines), scope)
    return kernel(scope["spill_kernel"])


def test_a_spill_is_found():
    found = planted(many_values_kernel(), "i8[1]", "i8[1]", "i8")
    assert [fault.partition(" ")[2] for fault in found] == [
        "bytes spill loads",
        "bytes spill stores",
        "bytes stack frame",
    ]


@kernel
def type_error_kernel(a, b):
    a[0] = b.missing


def test_a_type_error_is_found():
    (found,) = planted(type_error_kernel, "i8[1]", "i8[1]")
    assert found.startswith("does not compile: ")
    assert "missing" in found


@kernel
def division_kernel(a, divisor):
    for index in strided(cuda.threadIdx.x, a.size, cuda.blockDim.x):
        a[index] = a[index] // divisor


@kernel
def float_division_kernel(a, divisor):
    a[0] = int64(a[0] / divisor)


@pytest.mark.parametrize(("kernel", "name"), [(division_kernel, "div.s64"), (float_division_kernel, "div.rn.f64")])
def test_a_division_is_found(kernel, name):
    assert planted(kernel, "i8[1]", "i8") == ["calls a function", f"divides by {name}"]


@kernel
def local_array_kernel(a, size):
    scratch = cuda.local.array(64, int64)
    for index in range(size):
        scratch[a[index] & 63] = index
    for index in range(size):
        a[index] = scratch[index & 63]


def test_local_memory_is_found():
    found = planted(local_array_kernel, "i8[1]", "i8")
    assert "512 bytes stack frame" in found
    assert any("is not known to be a 64-bit address of global memory" in fault for fault in found)


def test_a_parameter_too_many_is_found():
    (compiled,) = compile_function(copy_kernel, ("u4[1]", "u4[1]"), "sm_90")
    assert faults(compiled, 1) == ["2 launch parameters for 1 arguments"]
