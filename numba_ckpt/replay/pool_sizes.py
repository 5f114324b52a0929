"""How many blocks a pool has, from what people know of it: tokens, or the memory that a model's caches may take."""

from dataclasses import dataclass

from numba_ckpt._check import check_choice, check_int, refuse
from numba_ckpt.rules import floor_div

__all__ = ["MODELS", "ModelMemory", "blocks_in_gib", "blocks_of_tokens"]

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What the caches of a hybrid model take, over all of its layers, in bytes.

    Attributes
    ----------
    attention_token_bytes : int
        Keys and values of a token, bfloat16.
    state_bytes : int
        Recurrent states, float32, and convolution windows, bfloat16.
    """

    attention_token_bytes: int
    state_bytes: int

    def block_bytes(self, attention_block: int) -> int:
        """Return the bytes of a block that is `attention_block` tokens of attention or one state."""
        return max(attention_block * self.attention_token_bytes, self.state_bytes)


# Sizes as in the models' published configurations: layers × (heads × head size × ...) × bytes of an element.
MODELS = {
    "qwen3-next-80b-a3b": ModelMemory(12 * 2 * 2 * 256 * 2, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)),
    "granite-4.0-h-small": ModelMemory(4 * 2 * 8 * 128 * 2, 36 * (128 * 64 * 128 * 4 + 8448 * 3 * 2)),
    "nemotron-h-8b": ModelMemory(4 * 2 * 8 * 128 * 2, 24 * (128 * 64 * 128 * 4 + 10_240 * 3 * 2)),
}
"""Models by name."""


def blocks_of_tokens(num_tokens: int, attention_block: int) -> int:
    """Return the blocks, null block included, of a pool as large as the attention blocks of `num_tokens` tokens.

    Examples
    --------
    >>> blocks_of_tokens(4_000_000, 512)
    7813
    """
    attention_block = check_int("attention_block", attention_block, 1)
    return floor_div(check_int("pool_tokens", num_tokens, attention_block), attention_block) + 1


def blocks_in_gib(gib: float, model: str, attention_block: int) -> int:
    """Return the blocks, null block included, of a model's caches in `gib` GiB.

    Attention and states share the pool, so a block is as large as the larger of an attention block and a state.

    Examples
    --------
    >>> blocks_in_gib(40, "qwen3-next-80b-a3b", 512)
    556
    """
    attention_block = check_int("attention_block", attention_block, 1)
    block_bytes = MODELS[check_choice("model", model, MODELS)].block_bytes(attention_block)
    if not block_bytes <= gib * _GIB < 2**60:
        refuse("pool_gib", f"at least one block of {block_bytes / _GIB:.3g} GiB", gib, "give the pool more memory")
    return int(gib * _GIB) // block_bytes + 1
