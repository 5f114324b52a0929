"""Rules on machine code, where a device does not compute as a host does: division, and rounding to 16 bits."""

import numpy as np
import pytest

from numba_ckpt._jit import cuda, kernel
from numba_ckpt.rules import CAST_BFLOAT16, CAST_FLOAT16, cast_bits, ceil_div, floor_div, floor_to, is_multiple
from tests.ptx import needs_compiler  # noqa: F401
from tests.ptx.device import PtxDevice
from tests.ptx.interpreter.rounding import round_float


@kernel
def divide_kernel(numbers, divisors, results):
    index = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if index < numbers.size:
        n, divisor = numbers[index], divisors[index]
        results[0, index] = floor_div(n, divisor)
        results[1, index] = ceil_div(n, divisor)
        results[2, index] = floor_to(n, divisor)
        results[3, index] = is_multiple(n, divisor)


@kernel
def cast_kernel(bits, cast, results):
    index = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if index < bits.size:
        results[index] = cast_bits(bits[index], cast)


def edges(*powers):
    return [sign * (2**power + shift) for power in powers for shift in (-1, 0, 1) for sign in (-1, 1)]


def quotients():
    """Pairs around the places where a division changes its way, and random ones of every size."""
    rng = np.random.default_rng(3)
    numbers = [0, 1, -1, *edges(16, 31, 32, 33, 50, 53, 62), 2**63 - 1, -(2**63) + 1]
    divisors = [1, 2, 3, 7, *(abs(edge) for edge in edges(16, 31, 32, 50, 62)), 2**63 - 1]
    pairs = [(n, divisor) for n in numbers for divisor in divisors]
    sizes = rng.integers(0, 64, (600, 2))
    pairs += [
        (int(rng.integers(-(2**63), 2**63 - 1)) >> a, (int(rng.integers(0, 2**63 - 1)) >> b) or 1) for a, b in sizes
    ]
    # What floor_to returns must be there.
    return [pair for pair in pairs if pair[0] // pair[1] * pair[1] >= -(2**63)]


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)], ids=["sm_90", "sm_100"])
def test_divisions(capability):
    pairs = quotients()
    numbers, divisors = (np.array(column) for column in zip(*pairs, strict=True))
    results = np.zeros((4, len(pairs)), np.int64)
    grid = -(-len(pairs) // 128), 1
    PtxDevice(capability=capability).launch(divide_kernel, grid, 128, (numbers, divisors, results))
    assert results.T.tolist() == [[n // d, -(-n // d), n // d * d, n % d == 0] for n, d in pairs]


@pytest.mark.parametrize(
    ("cast", "half"), [(CAST_FLOAT16, "f16"), (CAST_BFLOAT16, "bf16")], ids=["float16", "bfloat16"]
)
def test_roundings(cast, half):
    high = np.arange(2**16, dtype=np.uint32)[::5] << 16
    # Below, on and above each tie, for both formats.
    bits = np.concatenate([high | low for low in (0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    results = np.zeros(bits.size, np.uint16)
    PtxDevice().launch(cast_kernel, (-(-bits.size // 256), 1), 256, (bits, cast, results))
    singles = bits.view(np.float32)
    is_nan = np.isnan(singles)
    with np.errstate(all="ignore"):
        expected = round_float(singles.astype(np.float64), half, "rn").view(np.uint16)
    assert (results == expected)[~is_nan].all()
    # A NaN keeps its sign and its leading bits here, where a GPU's own conversion has one NaN only.
    infinity = 0x7C00 if half == "f16" else 0x7F80
    assert ((results & 0x7FFF) > infinity)[is_nan].all()
