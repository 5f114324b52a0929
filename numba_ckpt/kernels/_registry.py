"""Every array operation of the package, for tests and tools that must not miss one."""

from typing import Any, NamedTuple

from numba_ckpt.kernels import (
    apply_staged_writes,
    checkpoint_export,
    copy_blocks,
    gather_block_tables,
    gather_state_indices,
    logits_start_loc,
    plan_rows,
    running_state_indices,
    slot_mapping,
    stage_logits_indices,
    token_to_req_indices,
    zero_blocks,
)

__all__ = ["OPS", "Op"]


class Op(NamedTuple):
    """An operation's three faces: the launcher that users call, its host loops and its CUDA kernel."""

    launcher: Any
    host_loops: tuple[Any, ...]
    kernel: Any


OPS = {
    "apply_staged_writes": Op(
        apply_staged_writes.apply_staged_writes,
        (apply_staged_writes._apply_staged_writes_host,),
        apply_staged_writes._apply_staged_writes_kernel,
    ),
    "checkpoint_export": Op(
        checkpoint_export.export_checkpoints,
        (
            checkpoint_export._export_conv_host,
            checkpoint_export._copy_states_host,
            checkpoint_export._cast_states_host,
        ),
        checkpoint_export._checkpoint_export_kernel,
    ),
    "copy_blocks": Op(
        copy_blocks.copy_blocks,
        (copy_blocks._copy_blocks_host,),
        copy_blocks._copy_blocks_kernel,
    ),
    "gather_block_tables": Op(
        gather_block_tables.gather_block_tables,
        (gather_block_tables._gather_block_tables_host,),
        gather_block_tables._gather_block_tables_kernel,
    ),
    "gather_state_indices": Op(
        gather_state_indices.gather_state_indices,
        (gather_state_indices._gather_state_indices_host,),
        gather_state_indices._gather_state_indices_kernel,
    ),
    "logits_start_loc": Op(
        logits_start_loc.logits_start_loc,
        (logits_start_loc._logits_start_loc_host,),
        logits_start_loc._logits_start_loc_kernel,
    ),
    "plan_rows": Op(
        plan_rows.plan_rows,
        (plan_rows._plan_rows_host,),
        plan_rows._plan_rows_kernel,
    ),
    "running_state_indices": Op(
        running_state_indices.running_state_indices,
        (running_state_indices._running_state_indices_host,),
        running_state_indices._running_state_indices_kernel,
    ),
    "slot_mapping": Op(
        slot_mapping.slot_mapping,
        (slot_mapping._slot_mapping_host,),
        slot_mapping._slot_mapping_kernel,
    ),
    "stage_logits_indices": Op(
        stage_logits_indices.stage_logits_indices,
        (stage_logits_indices._stage_logits_indices_host,),
        stage_logits_indices._stage_logits_indices_kernel,
    ),
    "token_to_req_indices": Op(
        token_to_req_indices.token_to_req_indices,
        (token_to_req_indices._token_to_req_indices_host,),
        token_to_req_indices._token_to_req_indices_kernel,
    ),
    "zero_blocks": Op(
        zero_blocks.zero_blocks,
        (zero_blocks._zero_blocks_host,),
        zero_blocks._zero_blocks_kernel,
    ),
}
"""Operation by name, sorted."""
