"""The rules inside a user's own CUDA kernel."""

import numpy as np

from numba_ckpt._jit import cuda
from numba_ckpt.rules import (
    bfloat16_bits,
    checkpoint_position,
    float16_bits,
    global_index,
    is_checkpoint_valid,
    prefill_checkpoint,
)
from tests.golden import plan_cases, position_cases, validity_cases


@cuda.jit
def plan_kernel(seq_lens, query_lens, params, offsets, cols):
    row = cuda.grid(1)
    if row < seq_lens.size:
        end, start = seq_lens[row], seq_lens[row] - query_lens[row]
        offsets[row], cols[row] = prefill_checkpoint(
            start, end, params[0], params[1], params[2], params[3], params[4] != 0, params[5]
        )


def test_a_user_kernel_plans_what_was_recorded():
    for case in plan_cases()[::10]:
        size = len(case.seq_lens)
        offsets, cols = np.empty(size, np.int32), np.empty(size, np.int64)
        lens = np.array(case.seq_lens), np.array(case.query_lens)
        plan_kernel[-(-size // 4), 4](*lens, case.geometry.params, offsets, cols)
        assert offsets.tolist() == case.offsets
        assert cols.tolist() == case.block_cols


@cuda.jit
def position_kernel(num_tokens, units, drops, lookaheads, positions):
    row = cuda.grid(1)
    if row < num_tokens.size:
        positions[row] = checkpoint_position(num_tokens[row], units[row], drops[row], lookaheads[row])


def test_a_user_kernel_places_what_was_recorded():
    cases = position_cases()[::10]
    columns = [np.array(column) for column in zip(*cases, strict=True)]
    positions = np.empty(len(cases), np.int64)
    position_kernel[-(-len(cases) // 4), 4](*columns[:4], positions)
    assert positions.tolist() == columns[4].tolist()


@cuda.jit
def validity_kernel(sizes, valid):
    row = cuda.grid(1)
    if row < valid.size:
        valid[row] = is_checkpoint_valid(
            sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3], sizes[row, 4], sizes[row, 5]
        )


def test_a_user_kernel_judges_as_was_recorded():
    cases = validity_cases()[::20]
    sizes = np.array([[0 if size is None else size for size in case[:6]] for case in cases])
    valid = np.empty(len(cases), np.bool_)
    validity_kernel[-(-len(cases) // 4), 4](sizes, valid)
    assert valid.tolist() == [case.valid for case in cases]
    assert valid.any()


@cuda.jit
def wide_kernel(out):
    # 32-bit inputs, answers beyond 32 bits.
    out[0] = global_index(np.int32(8_388_608), np.int32(256), np.int32(255))
    offset, out[2] = prefill_checkpoint(
        np.int32(0), np.int32(2_000_000_000), np.int32(16), np.int32(16), np.int32(1), np.int32(1), False, np.int32(0)
    )
    out[1] = offset


def test_rules_compute_in_64_bits_whatever_the_kernel_passes():
    out = np.zeros(3, np.int64)
    wide_kernel[1, 1](out)
    assert out.tolist() == [2**31 + 255, 1_999_999_984, 1_999_999_998]


@cuda.jit
def rounding_kernel(bits, halves, brains):
    index = cuda.grid(1)
    if index < bits.size:
        halves[index] = float16_bits(bits[index])
        brains[index] = bfloat16_bits(bits[index])


def test_rounding_of_single_floats():
    floats = np.array([0, -0.0, 1, 65504, 65520, 1e-8, 6e-8, 3.1415927, -np.inf], np.float32)
    halves, brains = np.empty(floats.size, np.uint16), np.empty(floats.size, np.uint16)
    rounding_kernel[3, 4](floats.view(np.uint32), halves, brains)
    with np.errstate(over="ignore"):
        assert halves.tolist() == floats.astype(np.float16).view(np.uint16).tolist()
    assert brains[2] == 0x3F80
    assert brains[8] == 0xFF80
