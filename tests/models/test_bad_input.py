"""What a step of the hybrid stack refuses, without having changed anything."""

import numpy as np
import pytest

from numba_ckpt.checkpoint import PrefillCheckpointBuilder
from numba_ckpt.errors import ArgumentError
from numba_ckpt.models import (
    BlockShape,
    GatedDeltaResult,
    GatedDeltaTokens,
    HybridCaches,
    HybridConfig,
    HybridModel,
    LayerStates,
    Mamba2Result,
    Mamba2Tokens,
    ShortConvResult,
    StateSpec,
    gated_delta,
    mamba2_scan,
    short_conv,
)
from numba_ckpt.planning import BatchLayout, CheckpointGeometry, compute_chunk_layout

MODEL = HybridModel(HybridConfig())
TABLE = np.array([[1, 2, 3], [4, 5, 6]], np.int32)


def good():
    """Two rows: a prefill of 40 tokens, and 3 tokens after 5."""
    stores = [MODEL.new_kv_store(48), MODEL.new_kv_store(48)]
    stores[1].append(np.zeros((5, 2, 6), np.float32), np.zeros((5, 2, 6), np.float32))
    return {
        "token_ids": np.zeros(43, np.int64),
        "seq_lens": np.array([40, 8]),
        "starts": np.array([0, 40, 43]),
        "table": TABLE,
        "states": MODEL.new_states(8),
        "stores": stores,
        "checkpoint": None,
    }


def metadata(**changes):
    builder = PrefillCheckpointBuilder(CheckpointGeometry(4, 16, 4, 1))
    made = builder.build(BatchLayout(np.array([40, 8]), np.array([0, 40, 43]), TABLE), [0])
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


CASES = [
    ({"token_ids": np.zeros(42, np.int64)}, "token_ids: expected 43 tokens, got 42"),
    ({"token_ids": np.full(43, 64)}, r"token_ids: expected ids in \[0, 64\)"),
    ({"token_ids": np.full(43, -1)}, r"token_ids: expected ids in \[0, 64\)"),
    ({"token_ids": np.zeros(43)}, "token_ids: expected an integer dtype"),
    ({"token_ids": [0] * 43}, "token_ids: expected a 1-d array"),
    ({"seq_lens": np.array([40])}, "seq_lens_cpu: expected shape"),
    ({"seq_lens": np.array([39, 8])}, "num_computed_tokens: expected at least 0"),
    ({"starts": np.array([0, 44, 43])}, "query_start_loc_cpu: expected starts that never fall"),
    ({"starts": np.array([1, 40, 43])}, "query_start_loc_cpu"),
    ({"starts": np.array([], np.int64)}, "query_start_loc_cpu"),
    ({"table": TABLE[:1]}, "block_table: expected 2 rows, got 1"),
    ({"table": TABLE[:, :2]}, "block_table: expected 3 columns, got 2"),
    ({"table": TABLE[0]}, "block_table: expected 2 dimension"),
    ({"table": TABLE * 0}, "block_table, column 2: expected a block for the running state"),
    ({"table": TABLE + 4}, r"block_table: expected block ids in \[0, 8\)"),
    ({"table": -TABLE}, r"block_table: expected block ids in \[0, 8\)"),
    ({"states": MODEL.new_states(3)}, r"block_table: expected block ids in \[0, 3\)"),
    ({"states": MODEL.new_states(8)[:1]}, "states: expected the pools of 2 blocks"),
    ({"states": MODEL.new_states(8)[::-1]}, "states: expected the pools of 2 blocks"),
    ({"stores": [MODEL.new_kv_store(48)] * 2}, r"kv_stores: expected \[0, 5\] tokens stored, got \[0, 0\]"),
    ({"stores": []}, "kv_stores: expected"),
    ({"checkpoint": metadata(checkpoint_offsets=np.array([41]))}, "checkpoint_offsets: expected an offset in"),
    ({"checkpoint": metadata(request_rows=None)}, "checkpoint.request_rows: expected the planned rows"),
    ({"checkpoint": metadata(state_indices=np.array([9]))}, r"block_table: expected block ids in \[0, 8\)"),
]


@pytest.mark.parametrize(("change", "message"), CASES, ids=[message[:50] for _, message in CASES])
def test_a_step_refuses(change, message):
    case = good() | change
    batch = BatchLayout(case["seq_lens"], case["starts"], case["table"])
    stored = [store.num_tokens for store in case["stores"]]
    with pytest.raises(ArgumentError, match=message):
        MODEL.prefill(case["token_ids"], batch, HybridCaches(case["states"], case["stores"]), case["checkpoint"])
    assert all(np.isnan(pool.recurrent.states).all() and np.isnan(pool.conv.states).all() for pool in case["states"])
    assert [store.num_tokens for store in case["stores"]] == stored


def test_a_store_too_small_is_refused_before_the_first_layer():
    case = good() | {"stores": [MODEL.new_kv_store(39), good()["stores"][1]]}
    batch = BatchLayout(case["seq_lens"], case["starts"], case["table"])
    with pytest.raises(ArgumentError, match="kv_store: expected at most 39 tokens, got 40"):
        MODEL.prefill(case["token_ids"], batch, HybridCaches(case["states"], case["stores"]))
    assert all(np.isnan(pool.recurrent.states).all() for pool in case["states"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HybridConfig(state_block_size=0), "state_block_size: expected an integer in"),
        (lambda: HybridConfig(chunk_size=0.5), "chunk_size: expected an integer, got 0.5"),
        (lambda: HybridConfig(recurrent=(12, 2, 4, 6)), "recurrent: expected a BlockShape, got tuple"),
        (lambda: StateSpec(2, 3, (4, -1), "KV"), "state_shape: expected an integer in"),
        (lambda: StateSpec(0, 3, (4,), "K"), "channels: expected an integer in"),
        (lambda: BlockShape(12, 0, 4, 6), "heads: expected an integer in"),
        (lambda: BlockShape(12, 2, 4, 6, conv_width=1), "conv_width: expected an integer in"),
        (lambda: HybridModel(HybridConfig(recurrent=BlockShape(12, 2, 4, 6, state_dtype="int8"))), "state_dtype"),
        (lambda: StateSpec(2, 3, (4,), "K", conv_layout="NHWC"), "conv_layout: expected one of"),
        (lambda: LayerStates(StateSpec(2, 3, (4,), "K"), 0), "num_blocks: expected an integer in"),
    ],
)
def test_sizes_are_refused_when_they_are_set(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        ((2, 2, 6), (1, 2, 6), r"values: expected shape \(2, 2, 6\)"),
        ((2, 2, 5), (2, 2, 5), r"keys: expected shape \(any, 2, 6\)"),
        ((2, 12), (2, 12), "keys: expected 3 dimension"),
    ],
)
def test_a_store_takes_only_tokens_of_its_shape(keys, values, message):
    store = MODEL.new_kv_store(4)
    with pytest.raises(ArgumentError, match=message):
        store.append(np.zeros(keys, np.float32), np.zeros(values, np.float32))
    assert store.num_tokens == 0


def floats(*shape):
    return np.zeros(shape, np.float32)


def conv_over(taken):
    return short_conv(taken, floats(2, 4), [0, 3], out=ShortConvResult(taken, floats(1, 1, 4)))


def delta_over(taken):
    tokens = GatedDeltaTokens(floats(3, 1, 4), floats(3, 1, 4), taken.reshape(3, 1, 4), floats(3, 1), floats(3, 1))
    results = GatedDeltaResult(tokens.value, floats(1, 1, 4, 4), floats(0, 1, 4, 4))
    return gated_delta(tokens, [0, 3], out=results)


def scan_over(taken):
    x = taken.reshape(3, 1, 4)
    tokens = Mamba2Tokens(x, floats(3, 1), floats(3, 1, 2), floats(3, 1, 2), floats(1), floats(1))
    return mamba2_scan(tokens, compute_chunk_layout([0], [0, 3], 4), out=Mamba2Result(x, floats(1, 1, 4, 2)))


@pytest.mark.parametrize("run", [conv_over, delta_over, scan_over])
def test_results_may_not_lie_over_inputs(run):
    taken = np.ones((3, 4), np.float32)
    with pytest.raises(ArgumentError, match=r"out\.outputs: expected memory apart from"):
        run(taken)
    assert (taken == 1).all()


def test_reading_outside_the_pool_is_refused():
    pool = LayerStates(StateSpec(2, 3, (4,), "K"), 5)
    for block in (-1, 5):
        with pytest.raises(ArgumentError, match=r"blocks: expected block ids in \[0, 5\)"):
            pool.gather(np.array([1, block]), np.array([True, True]))
