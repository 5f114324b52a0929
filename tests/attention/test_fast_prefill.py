"""Fast prefill: who is eligible, what a step stages, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.attention import FastPrefillHelper, get_kv_sharing_fast_prefill_eligible_layers
from numba_ckpt.errors import ArgumentError
from numba_ckpt.testing import poisoned
from tests.attention.layers import PAGED, Layer, engine_config
from tests.golden.pack import read_records


def test_recorded_eligible_layers():
    cases = read_records("g2_fast_prefill_eligible")
    assert len(cases) == 60
    for case in cases:
        targets = case["kv_sharing_target"]
        layers = {name: Layer(PAGED, targets.get(name)) for name in case["layer_names"]}
        drafts = case["draft_layer_names"]
        config = engine_config(fast_prefill=case["enabled"])
        eligible = get_kv_sharing_fast_prefill_eligible_layers(layers, config, drafts and set(drafts))
        assert sorted(eligible) == sorted(case["eligible"])


class Dispatch:
    """Pads to the next captured size, and remembers what it was asked."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.calls = []

    def __call__(self, *, num_reqs, num_tokens, num_active_loras):
        call = {"num_reqs": num_reqs, "num_tokens": num_tokens, "num_active_loras": num_active_loras}
        self.calls.append(call | {"uniform_token_count": None})
        return min((size for size in self.sizes or () if size >= num_tokens), default=num_tokens)


def test_recorded_steps():
    cases = read_records("g4_fast_prefill_prepare")
    assert len(cases) == 50
    for case in cases:
        dispatch = Dispatch(case["capture_sizes"])
        helper = FastPrefillHelper(dispatch, np.zeros(case["max_num_tokens"], np.int32))
        for step in case["steps"]:
            metadata = helper.prepare(
                np.array(step["logits_indices"]),
                np.array(step["cu_num_logits"]),
                step["has_prefill"],
                step["cg_mode"] == "FULL",
                step["num_ubatches"],
                step["num_active_loras"],
            )
            assert helper.buffer.tolist() == step["buffer_after"]
            assert (metadata is None) == (step["result"] is None)
            if metadata is not None:
                names = step["result"].keys()
                result = {name: np.asarray(getattr(metadata, name)).tolist() for name in names}
                assert result == step["result"]
                assert np.shares_memory(metadata.logits_indices_padded, helper.buffer)
                assert metadata.cu_num_logits_cpu.tolist() == step["cu_num_logits"]
        assert dispatch.calls == case["dispatch_calls"]


def unpadded(num_tokens, **_):
    return num_tokens


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 9), st.sampled_from([np.int32, np.int64]))
def test_padding_repeats_the_last_and_leaves_real_ones(counts, num_more, dtype):
    logits = np.arange(sum(counts), dtype=dtype) * 3 + 1
    cu_num_logits = np.cumsum([0, *counts])
    helper = FastPrefillHelper(lambda num_tokens, **_: num_tokens + num_more, poisoned((30,), np.int32))
    step = helper.prepare(logits, cu_num_logits, True)
    if not logits.size:
        assert step is None
        return
    expected = [*logits.tolist(), *[int(logits[-1])] * num_more]
    assert step.logits_indices_padded.tolist() == expected[:30]
    assert helper.buffer.tolist() == [*logits.tolist(), *[int(logits[-1])] * (30 - logits.size)]
    assert (step.num_logits_indices, step.max_logits_per_req) == (logits.size, max(counts))


def test_b69_a_step_without_logits_has_no_metadata():
    helper = FastPrefillHelper(unpadded, poisoned((4,), np.int32))
    assert helper.prepare(None, np.array([0]), True) is None
    assert helper.prepare(np.empty(0, np.int64), np.array([0, 0]), True) is None
    assert helper.buffer.tolist() == [-1] * 4


def prepare(logits=(3, 8, 9), cu=(0, 2, 3), dispatch=unpadded, size=8, **options):
    helper = FastPrefillHelper(dispatch, np.full(size, -7, np.int32))
    try:
        return helper.prepare(np.asarray(logits), np.asarray(cu), **({"has_prefill": True} | options))
    finally:
        assert helper.buffer.tolist() == [-7] * size


READ_ONLY = np.zeros(4, np.int32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FastPrefillHelper(8, np.zeros(4, np.int32)), "dispatch: expected a callable, got int"),
        (lambda: FastPrefillHelper(unpadded, [0, 0]), "buffer: expected a 1-d array"),
        (lambda: FastPrefillHelper(unpadded, np.zeros(4, np.int64)), r"buffer: expected contiguous int32 .*got int64"),
        (lambda: FastPrefillHelper(unpadded, np.zeros(8, np.int32)[::2]), "buffer: expected contiguous int32"),
        (lambda: FastPrefillHelper(unpadded, np.zeros(0, np.int32)), "buffer: expected contiguous int32"),
        (lambda: FastPrefillHelper(unpadded, np.zeros((2, 2), np.int32)), r"buffer: expected 1 dimension"),
        (lambda: FastPrefillHelper(unpadded, READ_ONLY), "buffer: expected a writable array"),
        (lambda: prepare(has_prefill=1), "has_prefill: expected True or False"),
        (lambda: prepare(full_graph=None), "full_graph: expected True or False"),
        (lambda: prepare(num_ubatches=0), "num_ubatches: expected an integer in"),
        (lambda: prepare(logits=(3.0, 8.0, 9.0)), "logits_indices: expected an integer dtype"),
        (lambda: prepare(logits=((3, 8, 9),)), "logits_indices: expected 1 dimension"),
        (lambda: prepare(logits=(3, -1, 9)), "logits_indices: expected tokens of the batch, .* got -1"),
        (lambda: prepare(size=2), "logits_indices: expected at most 2, got 3"),
        (
            lambda: prepare(cu=(0, 2)),
            r"cu_num_logits_cpu: expected counts that rise from 0 to the 3 logits, got \[0, 2\]",
        ),
        (lambda: prepare(cu=(0, 4, 3)), "cu_num_logits_cpu: expected counts that rise"),
        (lambda: prepare(cu=(1, 2, 4)), "cu_num_logits_cpu: expected counts that rise"),
        (lambda: prepare(cu=(3,)), "cu_num_logits_cpu: expected counts that rise"),
        (lambda: prepare(cu=(0.0, 3.0)), "cu_num_logits_cpu: expected an integer dtype"),
        (lambda: prepare(dispatch=lambda **_: 2), r"dispatch\(\): expected an integer in \[3, "),
        (lambda: prepare(dispatch=lambda **_: None), r"dispatch\(\): expected an integer, got None"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
