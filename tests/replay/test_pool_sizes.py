import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.replay.pool_sizes import MODELS, blocks_in_gib, blocks_of_tokens


@pytest.mark.parametrize("model", MODELS)
def test_a_block_holds_a_state_or_attention_whichever_is_larger(model):
    memory = MODELS[model]
    assert memory.block_bytes(1) == memory.state_bytes
    assert memory.block_bytes(100_000) == 100_000 * memory.attention_token_bytes
    num_blocks = blocks_in_gib(10, model, 1024)
    assert (num_blocks - 1) * memory.block_bytes(1024) <= 10 * 2**30 < num_blocks * memory.block_bytes(1024)


def test_tokens_are_whole_blocks_of_attention():
    assert [blocks_of_tokens(num_tokens, 512) for num_tokens in (512, 1023, 1024)] == [2, 2, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda: blocks_of_tokens(511, 512),
        lambda: blocks_of_tokens(100, 0),
        lambda: blocks_of_tokens(1.5, 1),
        lambda: blocks_in_gib(0, "nemotron-h-8b", 512),
        lambda: blocks_in_gib(float("inf"), "nemotron-h-8b", 512),
        lambda: blocks_in_gib(1, "a model", 512),
        lambda: blocks_in_gib(1, "nemotron-h-8b", 0),
    ],
)
def test_bad_sizes_are_refused(call):
    with pytest.raises(ArgumentError):
        call()
