"""Golden g6: what the metadata builders of a step are handed, call by call, as recorded from vLLM."""

from collections import defaultdict

import numpy as np
import pytest

from numba_ckpt.attention import (
    AttentionGroup,
    FastPrefillBatchMetadata,
    MetadataBuilder,
    MetadataOptions,
    NoOpBackend,
    StepBatch,
    build_attn_metadata,
)
from tests.golden.pack import read_records

CASES = read_records("g6_build_attn_metadata")


def _on_host(array, get):
    return array if isinstance(array, np.ndarray) else get(array)


class Recorder(MetadataBuilder):
    """Writes down what it is handed; the metadata is the call's number."""

    def __init__(self, place, calls, get):
        super().__init__(None, (), None)
        self.place, self.calls, self.get = place, calls, get

    def build(self, common, common_prefix_len=0, **extra):
        return self._note("build", common, common_prefix_len, extra)

    def build_for_cudagraph_capture(self, common):
        return self._note("capture", common, None, {})

    def _note(self, kind, common, common_prefix_len, extra):
        batch, fast = common.batch, common.fast_prefill
        plain = {
            "group": self.place[0],
            "subgroup": self.place[1],
            "kind": kind,
            "common_prefix_len": common_prefix_len,
            "extra": {key: list(value) for key, value in extra.items()},
            "block_table_fill": int(_on_host(common.block_table, self.get).flat[0]),
            "causal": common.causal,
            "max_query_len": batch.max_query_len,
            "max_seq_len": batch.max_seq_len,
            "num_reqs": batch.num_reqs,
            "num_actual_tokens": batch.num_tokens,
            "mm_req_doc_ranges": batch.mm_req_doc_ranges,
            "num_logits_indices": fast and fast.num_logits_indices,
            "max_logits_per_req": fast and fast.max_logits_per_req,
        }
        arrays = {
            "seq_lens": batch.seq_lens,
            "seq_lens_cpu_upper_bound": batch.seq_lens_cpu_upper_bound,
            "dcp_local_seq_lens": batch.dcp_local_seq_lens,
            "dcp_local_seq_lens_cpu_upper_bound": batch.dcp_local_seq_lens_cpu_upper_bound,
            "slot_mapping": common.slot_mapping[: batch.num_tokens],
            "is_prefilling": common.is_prefilling,
            "positions": batch.positions,
            "req_idx": batch.req_idx,
            "logits_indices_padded": fast and fast.logits_indices_padded,
        }
        self.calls.append(
            plain | {name: None if a is None else _on_host(a, self.get).tolist() for name, a in arrays.items()}
        )
        return len(self.calls) - 1


class ModelExtras:
    """A model that marks its builders, and says for each group which rows prefill."""

    def __init__(self, is_prefilling):
        self.is_prefilling = is_prefilling

    def get_extra_common_attn_kwargs(self, kv_cache_group_id, num_reqs):
        flags = self.is_prefilling[kv_cache_group_id]
        return {} if flags is None else {"is_prefilling": np.array(flags)}

    def get_extra_attn_kwargs(self, builder, num_reqs):
        return {"tag": builder.place}


def as_array(values, dtype=np.int32):
    return None if values is None else np.array(values, dtype)


def first_call(case):
    """What is the same in all calls; a step of which no group reads anything has none."""
    lens = max(case["query_lens"]), max(case["seq_lens_padded"])
    nobody = defaultdict(lambda: None, max_query_len=lens[0], max_seq_len=lens[1])
    return case["calls"][0] if case["calls"] else nobody


def batch_of(case, put):
    first, starts = first_call(case), np.concatenate(([0], np.cumsum(case["query_lens"])))
    lens = np.array(case["seq_lens_padded"], np.int32)
    ranges = first["mm_req_doc_ranges"]
    own_flags = not case["optional"]["model_specific"]
    return StepBatch(
        case["num_reqs"],
        int(starts[-1]),
        put(starts.astype(np.int32)),
        starts.astype(np.int32),
        put(lens),
        first["max_query_len"],
        first["max_seq_len"],
        as_array(first["seq_lens_cpu_upper_bound"]),
        put(as_array(first["dcp_local_seq_lens"])),
        as_array(first["dcp_local_seq_lens_cpu_upper_bound"]),
        put(as_array(first["positions"], np.int64)),
        as_array(first["is_prefilling"], np.bool_) if own_flags else None,
        ranges and {int(row): [tuple(pair) for pair in pairs] for row, pairs in ranges.items()},
        as_array(first["req_idx"]),
    )


def options_of(case, put):
    first, causal = first_call(case), case["causal"]
    fast = None
    if case["fast_prefill"] and case["calls"]:
        indices = np.array(first["logits_indices_padded"], np.int32)
        fast = FastPrefillBatchMetadata(
            put(indices),
            first["num_logits_indices"],
            first["max_logits_per_req"],
            np.zeros(case["num_reqs"] + 1, np.int32),
        )
    flags = {call["group"]: call["is_prefilling"] for call in case["calls"]}
    return MetadataOptions(
        causal if isinstance(causal, bool) else {int(group): flag for group, flag in causal.items()},
        case["for_cudagraph_capture"],
        0,
        fast,
        ModelExtras(flags) if case["optional"]["model_specific"] else None,
    )


def groups_of(case, calls, get):
    return [
        [
            AttentionGroup(NoOpBackend, tuple(names), None, index, (Recorder((index, place), calls, get),))
            for place, names in enumerate(groups)
        ]
        for index, groups in enumerate(case["groups"])
    ]


def normalized(call):
    ranges = call["mm_req_doc_ranges"]
    plain = ranges and {str(row): [list(pair) for pair in pairs] for row, pairs in ranges.items()}
    return call | {"mm_req_doc_ranges": plain}


def as_it_is(array):
    return array


def check_case(case, put=as_it_is, get=as_it_is):
    """Build a recorded step's metadata and compare every call; `put` and `get` move arrays to a device and back."""
    calls, num_groups, num_reqs = [], len(case["groups"]), case["num_reqs"]
    batch = batch_of(case, lambda array: None if array is None else put(array))
    tables = [put(np.full((num_reqs, 3), 100 + group, np.int32)) for group in range(num_groups)]
    slots = put(np.arange(num_groups * batch.num_tokens, dtype=np.int64).reshape(num_groups, -1))
    metadata = build_attn_metadata(groups_of(case, calls, get), batch, tables, slots, options_of(case, put))
    assert [normalized(call) for call in calls] == [normalized(call) for call in case["calls"]]
    places = [[call["group"], call["subgroup"]] for call in calls]
    assert {name: places[number] for name, number in metadata.items()} == case["layer_to_group"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_builders_are_handed_what_was_recorded(case):
    check_case(case)


def test_all_records_are_there():
    assert len(CASES) == 50
