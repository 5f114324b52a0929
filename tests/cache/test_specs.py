"""Specs: page bytes, memory, table widths, merging and refusals."""

from dataclasses import replace

import pytest

from numba_ckpt.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    EngineConfig,
    FullAttentionSpec,
    KVCacheSpec,
    LimitsConfig,
    MLAAttentionSpec,
    ParallelConfig,
    SlidingWindowSpec,
    StateSpec,
    UniformTypeSpecs,
    merge_specs,
    spec_from_dict,
)
from numba_ckpt.errors import ArgumentError, ArgumentTypeError

CONFIG = EngineConfig(LimitsConfig(8, 64, 4096))
FULL = FullAttentionSpec(16, 2, 64)
STATES = {"shapes": ((3, 64), (2, 16, 32)), "dtypes": ("bfloat16", "float32")}


@pytest.mark.parametrize(
    ("spec", "page", "width", "most"),
    [
        (FullAttentionSpec(16, 8, 128, "float16"), 16 * 8 * 256 * 2, 256, 256),
        (FullAttentionSpec(16, 8, 128, "fp8"), 16 * 8 * 256, 256, 256),
        (FullAttentionSpec(528, 1, 8, "float32", head_size_v=4), 528 * 12 * 4, 8, 8),
        (FullAttentionSpec(16, 1, 8, sliding_window=64), 16 * 16 * 2, 256, 256),
        (FullAttentionSpec(16, 1, 8, page_size_padded=1024), 1024, 256, 256),
        (MLAAttentionSpec(64, 1, 576), 64 * 576 * 2, 64, 64),
        (SlidingWindowSpec(16, 2, 64, sliding_window=33), 16 * 2 * 128 * 2, 256, 7),  # 32 + 64 tokens, and an edge
        (SlidingWindowSpec(16, 2, 64, sliding_window=10_000), 16 * 2 * 128 * 2, 256, 256),
        (ChunkedLocalAttentionSpec(16, 2, 64, attention_chunk_size=128), 16 * 2 * 128 * 2, 256, 13),
        (CrossAttentionSpec(16, 2, 64, max_encoder_len=1500), 16 * 2 * 128 * 2, 94, 94),
        (EncoderOnlyAttentionSpec(16, 2, 64), 0, 0, 0),
        (StateSpec(1024, **STATES, num_speculative_blocks=3), 384 + 4096, 7, 5),
        (StateSpec(1024, **STATES, num_speculative_blocks=3, num_checkpoint_blocks=1), 384 + 4096, 7, 6),
        (StateSpec(1024, **STATES, cache_mode="all"), 384 + 4096, 4, 4),
        (StateSpec(1024, **STATES, cache_mode="none", num_speculative_blocks=2), 384 + 4096, 3, 3),
        (StateSpec(4096, **STATES, page_size_padded=8192), 8192, 1, 1),
    ],
)
def test_sizes(spec, page, width, most):
    assert spec.page_size_bytes == page
    assert spec.block_table_width(CONFIG) == width
    assert spec.max_blocks(CONFIG) == most
    assert spec.max_memory_bytes(CONFIG) == most * page


def test_context_parallel_ranks_share_full_attention_only():
    config = EngineConfig(LimitsConfig(8, 64, 4097), parallel=ParallelConfig(cp_size=4))
    window = SlidingWindowSpec(16, 2, 64, sliding_window=32)
    assert (FULL.is_cp_sharded, FULL.block_table_width(config)) == (True, 65)
    assert (window.is_cp_sharded, window.block_table_width(config)) == (False, 257)


def test_states_follow_each_other_on_a_page():
    side = StateSpec(4, shapes=((2, 3), (5,), (4,)), dtypes=("float32", "bfloat16", "fp8_e5m2"), page_size_padded=64)
    assert side.offsets == (0, 24, 34)
    assert (side.data_size_bytes, side.page_size_bytes, side.alignment_bytes) == (38, 64, 4)


def test_specs_are_equal_by_value_and_load():
    assert FullAttentionSpec(16, 2, 64, "bf16", 64) == FULL
    assert hash(FullAttentionSpec(16, 2, 64, "bf16", 64)) == hash(FULL)
    assert FullAttentionSpec.from_dict({"block_size": 16, "num_kv_heads": 2, "head_size": 64}) == FULL
    mapping = {"block_size": 1024, "shapes": [[3, 64], [2, 16, 32]], "dtypes": ["bfloat16", "float32"]}
    assert StateSpec.from_dict(mapping) == StateSpec(1024, **STATES)
    assert FULL.padded_to(FULL.page_size_bytes) is FULL
    assert FULL.padded_to(16384).page_size_bytes == 16384


def test_specs_load_by_kind():
    fields = {"block_size": 16, "num_kv_heads": 2, "head_size": 64}
    assert spec_from_dict({"kind": "full", **fields}) == FULL
    window = spec_from_dict({"kind": "sliding_window", "sliding_window": 32, **fields})
    assert window == SlidingWindowSpec(16, 2, 64, sliding_window=32)
    for mapping, message in (
        ({"kind": "half", **fields}, "kind: expected one of 'full', 'mla'"),
        (fields, "kind: expected one of"),
        ({"kind": "full", "block_size": 16}, "num_kv_heads: expected a value, got no such key"),
        ({"kind": "full", "window": 3, **fields}, "window: expected one of the keys block_size"),
        ([fields], "spec: expected a mapping"),
    ):
        with pytest.raises(ArgumentError, match="^" + message):
            spec_from_dict(mapping)


def test_merging():
    assert merge_specs([FULL, FullAttentionSpec(16, 2, 64)]) is FULL
    # B67: a window of one layer is never the window of all.
    with pytest.raises(ArgumentError, match="sliding_window None and 128"):
        merge_specs([FULL, FullAttentionSpec(16, 2, 64, sliding_window=128)])
    with pytest.raises(ArgumentError, match="FullAttentionSpec and MLAAttentionSpec"):
        merge_specs([FULL, MLAAttentionSpec(16, 2, 64)])
    with pytest.raises(ArgumentError, match="block_size 16 and 32, dtype 'bfloat16' and 'float32'"):
        merge_specs([FULL, FULL, FullAttentionSpec(32, 2, 64, "float32")])
    with pytest.raises(ArgumentError, match="at least one spec"):
        merge_specs([])


def test_uniform_specs_keep_each_layers_own():
    local = FullAttentionSpec(16, 4, 64, sliding_window=128)
    spec = UniformTypeSpecs((("global", FULL), ("local", local)))
    assert (spec.of("global").sliding_window, spec.of("local").sliding_window) == (None, 128)
    assert spec.page_size_bytes == FULL.page_size_bytes + local.page_size_bytes
    assert spec.max_memory_bytes(CONFIG) == FULL.max_memory_bytes(CONFIG) + local.max_memory_bytes(CONFIG)
    assert spec.block_table_width(CONFIG) == 256
    assert spec.with_layer("shared", "local").of("shared") is local
    assert hash(spec) == hash(UniformTypeSpecs((("global", FULL), ("local", local))))


def test_layers_of_one_table_keep_the_same_blocks():
    state = StateSpec(16, ((4,),), ("float32",))
    changes = {
        "cache_mode": "none",
        "num_speculative_blocks": 1,
        "num_checkpoint_blocks": 1,
        "checkpoint_alignment": 8,
        "block_size": 32,
    }
    for name, value in changes.items():
        with pytest.raises(ArgumentError, match=f"specs: expected layers that can share .*{name}"):
            UniformTypeSpecs((("a", state), ("b", replace(state, **{name: value}))))
    other_shapes = replace(state, shapes=((4,), (8,)), dtypes=("float32", "float32"), page_size_padded=64)
    assert UniformTypeSpecs((("a", state), ("b", other_shapes))).page_size_bytes == 16 + 64


WINDOW = SlidingWindowSpec(16, 2, 64, sliding_window=32)
BAD = {
    "block": (lambda: FullAttentionSpec(0, 2, 64), "block_size: expected an integer"),
    "float block": (lambda: FullAttentionSpec(16.0, 2, 64), "block_size: expected an integer"),
    "heads": (lambda: FullAttentionSpec(16, 0, 64), "num_kv_heads: expected"),
    "head size": (lambda: FullAttentionSpec(16, 2, -1), "head_size: expected"),
    "value size": (lambda: FullAttentionSpec(16, 2, 64, head_size_v=0), "head_size_v: expected"),
    "dtype": (lambda: FullAttentionSpec(16, 2, 64, "auto"), "dtype: expected one of bfloat16"),
    "no dtype name": (lambda: FullAttentionSpec(16, 2, 64, float), "dtype: expected one of bfloat16"),
    "small page": (lambda: FullAttentionSpec(16, 2, 64, page_size_padded=64), r"page_size_padded: .* \[8192, "),
    "odd page": (lambda: FULL.padded_to(8193), "page_size_padded: expected a multiple of 2, got 8193"),
    "window and chunk": (
        lambda: FullAttentionSpec(16, 2, 64, sliding_window=4, attention_chunk_size=4),
        "attention_chunk_size: expected None",
    ),
    "latent with a value": (lambda: MLAAttentionSpec(16, 1, 64, head_size_v=64), "head_size_v: expected 0 or None"),
    "no window": (lambda: SlidingWindowSpec(16, 2, 64), "sliding_window: expected"),
    "no chunk": (lambda: ChunkedLocalAttentionSpec(16, 2, 64), "attention_chunk_size: expected"),
    "no encoder": (lambda: CrossAttentionSpec(16, 2, 64), "max_encoder_len: expected"),
    "states missing": (lambda: StateSpec(4, (), ()), "shapes: expected a tuple, one entry per state"),
    "dtypes missing": (lambda: StateSpec(4, ((3,), (4,)), ("float32",)), "dtypes: expected 2 entries"),
    "empty shape": (lambda: StateSpec(4, ((),), ("float32",)), "shapes: expected a tuple of sizes"),
    "list of shapes": (lambda: StateSpec(4, [[3]], ("float32",)), "shapes: expected a tuple"),
    "zero size": (lambda: StateSpec(4, ((3, 0),), ("float32",)), "shapes: expected an integer"),
    "state dtype": (lambda: StateSpec(4, ((3,),), ("f99",)), "dtypes: expected one of"),
    "state mode": (lambda: StateSpec(4, ((3,),), ("float32",), "some"), "cache_mode: expected one of"),
    "misaligned": (lambda: StateSpec(4, ((3,), (4,)), ("bf16", "float32")), "shapes: expected states that begin"),
    "page misaligned": (lambda: StateSpec(4, ((3,), (1,)), ("float32", "bf16")), "page_size_padded: .*pad it to 16"),
    "speculative": (lambda: StateSpec(4, ((3,),), ("float32",), num_speculative_blocks=-1), "num_speculative_blocks:"),
    "checkpoints": (lambda: StateSpec(4, ((3,),), ("float32",), num_checkpoint_blocks=None), "num_checkpoint_blocks:"),
    "alignment": (lambda: StateSpec(4, ((3,),), ("float32",), checkpoint_alignment=0), "checkpoint_alignment: exp"),
    "no layers": (lambda: UniformTypeSpecs(()), "specs: expected at least one layer"),
    "one twice": (lambda: UniformTypeSpecs((("a", FULL), ("a", FULL))), "specs: expected each layer once"),
    "two blocks": (
        lambda: UniformTypeSpecs((("a", FULL), ("b", FullAttentionSpec(32, 2, 64)))),
        "specs: .*block_size 16 and 32 in 'b'",
    ),
    "two kinds": (lambda: UniformTypeSpecs((("a", FULL), ("b", WINDOW))), "specs: .*FullAttentionSpec and Sliding"),
    "two windows": (
        lambda: UniformTypeSpecs((("a", WINDOW), ("b", SlidingWindowSpec(16, 2, 64, sliding_window=64)))),
        "specs: .*sliding_window 32 and 64 in 'b'",
    ),
    "no spec": (lambda: UniformTypeSpecs((("a", 3),)), "specs: expected the spec of the one layer 'a'"),
    "unknown layer": (lambda: UniformTypeSpecs((("a", FULL),)).of("b"), "layer_name: expected one of a, got 'b'"),
    "padded as one": (lambda: UniformTypeSpecs((("a", FULL),)).padded_to(10**6), "page_size_bytes: expected pages of"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_refusals(make, message):
    with pytest.raises(ArgumentError, match="^" + message):
        make()


def test_wrong_types_are_type_errors():
    with pytest.raises(ArgumentTypeError):
        FullAttentionSpec(16, 2, 64, float)
    with pytest.raises(ArgumentTypeError):
        FullAttentionSpec("16", 2, 64)
    with pytest.raises(TypeError, match="abstract"):
        KVCacheSpec(16)
