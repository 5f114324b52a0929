"""The sizes that place a group's checkpoints, from what its layers cache and how the engine is configured."""

from numba_ckpt._check import refuse
from numba_ckpt.cache import EngineConfig, StateSpec
from numba_ckpt.planning import CheckpointGeometry

__all__ = ["check_state_spec", "checkpoint_geometry"]


def check_state_spec(spec: StateSpec, config: EngineConfig) -> None:
    """Refuse a spec that contradicts the engine's configuration."""
    if spec.cache_mode != config.cache.mode:
        expected = f"{config.cache.mode!r}, the engine's cache.mode"
        refuse("spec.cache_mode", expected, repr(spec.cache_mode), "make the spec from the engine's configuration")
    if spec.num_speculative_blocks < config.speculation.num_draft_tokens:
        expected = f"at least {config.speculation.num_draft_tokens}: one for the state after each draft"
        refuse("spec.num_speculative_blocks", expected, spec.num_speculative_blocks, "raise it, or draft fewer tokens")


def checkpoint_geometry(spec: StateSpec, config: EngineConfig) -> CheckpointGeometry | None:
    """Return the sizes that place checkpoints; None while the unit of hits is unresolved."""
    cache = config.cache
    if cache.cache_hit_alignment_tokens is None:
        return None
    return CheckpointGeometry(
        cache.hash_block_size or cache.block_size,
        spec.block_size,
        cache.cache_hit_alignment_tokens,
        spec.checkpoint_alignment,
        config.speculation.drop_eagle_block,
    )
