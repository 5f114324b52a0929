"""The simulator's tests of recorded calls, with compiled machine code in the simulator's place."""

import pytest

from tests.ptx import needs_compiler  # noqa: F401
from tests.simulator.test_block_tables import (
    test_a_step_is_one_copy_and_three_launches,
    test_recorded_gathers,
    test_recorded_sequences,
    test_recorded_slots,
    test_rows_out_of_range_are_neutral,
    test_slots_beyond_32_bits,
    test_writes_out_of_range_are_left_out,
)
from tests.simulator.test_blocks import test_as_on_the_host, test_mixed_kinds_and_one_group
from tests.simulator.test_fast_prefill import test_recorded_steps, test_strided_indices_and_a_poisoned_buffer
from tests.simulator.test_kernels import (
    test_a_block_outside_the_pool_is_left_out_whole,
    test_a_mirror_that_lies_makes_the_kernel_read_nothing_outside,
    test_a_row_outside_the_batch_is_left_out_whole,
    test_gather_reads_no_masked_or_outside_entry,
    test_mamba2_takes_the_chunk_that_ends_on_the_checkpoint,
    test_recorded_exports,
    test_recorded_steps_and_their_second_group,
    test_recorded_stores,
)
from tests.simulator.test_plan_rows import (
    test_recorded_builders_plan_on_the_device,
    test_what_a_host_would_refuse_has_no_checkpoint,
)
from tests.simulator.test_step_kernels import (
    test_blocks_beyond_int32_are_null_blocks_on_the_device,
    test_recurrent_layers_read_on_the_device_what_they_read_on_the_host,
)

__all__ = [
    "test_a_block_outside_the_pool_is_left_out_whole",
    "test_a_mirror_that_lies_makes_the_kernel_read_nothing_outside",
    "test_a_row_outside_the_batch_is_left_out_whole",
    "test_a_step_is_one_copy_and_three_launches",
    "test_as_on_the_host",
    "test_blocks_beyond_int32_are_null_blocks_on_the_device",
    "test_gather_reads_no_masked_or_outside_entry",
    "test_mamba2_takes_the_chunk_that_ends_on_the_checkpoint",
    "test_mixed_kinds_and_one_group",
    "test_recorded_builders_plan_on_the_device",
    "test_recorded_exports",
    "test_recorded_gathers",
    "test_recorded_sequences",
    "test_recorded_slots",
    "test_recorded_steps",
    "test_recorded_steps_and_their_second_group",
    "test_recorded_stores",
    "test_recurrent_layers_read_on_the_device_what_they_read_on_the_host",
    "test_rows_out_of_range_are_neutral",
    "test_slots_beyond_32_bits",
    "test_strided_indices_and_a_poisoned_buffer",
    "test_what_a_host_would_refuse_has_no_checkpoint",
    "test_writes_out_of_range_are_left_out",
]

pytestmark = pytest.mark.usefixtures("tiny_grids")
