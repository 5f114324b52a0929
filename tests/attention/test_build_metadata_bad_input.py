"""Steps that are refused: what the message says, and that no builder runs and no array changes."""

import numpy as np
import pytest

from numba_ckpt.attention import (
    AttentionGroup,
    MetadataBuilder,
    MetadataOptions,
    NoOpBackend,
    StepBatch,
    build_attn_metadata,
)
from numba_ckpt.cache import LimitsConfig
from numba_ckpt.errors import ArgumentError
from tests.attention.test_build_metadata import LENS, STARTS, Model, batch_of, groups_of, tables_of

LIMITS = LimitsConfig(max_num_requests=4, max_num_batched_tokens=16, max_model_len=64)


class Nobody(MetadataBuilder):
    def build(self, common, common_prefix_len=0, **extra):
        raise AssertionError("a refused step reached a builder")


def nobody(count=2):
    return groups_of(*(Nobody(None, (), None) for _ in range(count)))


def build(groups=None, tables=None, slots=None, **options):
    own_tables, own_slots = tables_of()
    return build_attn_metadata(
        nobody() if groups is None else groups,
        batch_of(),
        own_tables if tables is None else tables,
        own_slots if slots is None else slots,
        MetadataOptions(**options),
    )


BAD = {
    "fewer starts than rows": (lambda: batch_of(starts=STARTS[:3]), "query_start_loc", "at least 4 entries"),
    "fewer lengths than rows": (lambda: batch_of(lens=LENS[:2]), "seq_lens", "at least 3 entries"),
    "starts in floats": (lambda: batch_of(starts=STARTS * 1.0), "query_start_loc", "float64"),
    "lengths in a list": (lambda: batch_of(lens=[3, 9, 0]), "seq_lens", "list"),
    "starts that fall": (lambda: batch_of(starts=np.array([0, 3, 2, 4])), "query_start_loc_cpu", "never fall"),
    "starts that begin late": (lambda: batch_of(starts=STARTS + 1), "query_start_loc_cpu", "0 first"),
    "more tokens than the batch": (lambda: batch_of(num_tokens=3), "query_start_loc_cpu", "at most 3"),
    "a query beyond its bound": (lambda: batch_of(bounds=(2, 9)), "max_query_len", "3 tokens in row 0"),
    "a length beyond its bound": (lambda: batch_of(bounds=(3, 8)), "seq_lens", "9 in row 1"),
    "a sequence shorter than its query": (lambda: batch_of(lens=np.array([2, 9, 0])), "seq_lens", "2 in row 0"),
    "a negative count": (lambda: batch_of(num_reqs=-1), "num_reqs", "-1"),
    "half a request": (lambda: batch_of(num_reqs=1.5), "num_reqs", "1.5"),
    "too few positions": (lambda: batch_of(positions=np.arange(5)), "positions", "at least 6"),
    "positions beyond the model": (
        lambda: batch_of(positions=np.array([0, 1, 2, 64, 0, 0]), limits=LIMITS),
        "positions",
        "64",
    ),
    "negative positions": (lambda: batch_of(positions=-np.arange(6), limits=LIMITS), "positions", "-5"),
    "more rows than the limit": (
        lambda: StepBatch(5, 5, np.arange(6), np.arange(6), np.ones(5, int), 1, 1, limits=LIMITS),
        "num_reqs",
        "at most 4",
    ),
    "more tokens than the limit": (lambda: batch_of(num_tokens=17, limits=LIMITS), "num_tokens", "at most 16"),
    "a model length beyond the limit": (lambda: batch_of(bounds=(3, 65), limits=LIMITS), "max_seq_len", "at most 64"),
    "flags in ints": (lambda: batch_of(is_prefilling=np.ones(3, int)), "is_prefilling", "bool"),
    "too few flags": (lambda: batch_of(is_prefilling=np.ones(2, bool)), "is_prefilling", "at least 3"),
    "ranges in a list": (lambda: batch_of(mm_req_doc_ranges=[(0, 3)]), "mm_req_doc_ranges", "list"),
    "ranges of no row": (lambda: batch_of(mm_req_doc_ranges={3: []}), "mm_req_doc_ranges", "3"),
    "a buffer too short": (lambda: batch_of(token_to_req_buffer=np.zeros(5, np.int32)), "token_to_req_buffer", "6"),
    "too few tables": (lambda: build(tables=tables_of(1)[0]), "block_tables", "2 entries"),
    "too few slot mappings": (lambda: build(slots=tables_of(1)[1]), "slot_mappings", "2 entries"),
    "a table of too few rows": (lambda: build(tables=tables_of(2, 2)[0]), "block_tables[0]", "at least 3 rows"),
    "too few slots": (lambda: build(slots=tables_of(2, 3, 5)[1]), "slot_mappings[0]", "at least 6"),
    "a table of floats": (lambda: build(tables=[np.zeros((3, 2))] * 2), "block_tables[0]", "float64"),
    "slots in floats": (lambda: build(slots=np.zeros((2, 6))), "slot_mappings[0]", "float64"),
    "causal for no group": (lambda: build(causal={2: False}), "causal", "2"),
    "causal in words": (lambda: build(causal="yes"), "causal", "str"),
    "causal by a number": (lambda: build(causal={0: 1}), "causal[0]", "1"),
    "a micro-batch without builders": (lambda: build(ubatch_idx=1), "ubatch_idx", "1"),
    "a negative micro-batch": (lambda: build(ubatch_idx=-1), "ubatch_idx", "-1"),
    "capture as a number": (lambda: build(for_cudagraph_capture=1), "for_cudagraph_capture", "1"),
    "fast prefill of nobody": (lambda: build(fast_prefill=3), "fast_prefill", "int"),
    "a model without extras": (lambda: build(model_specific=3), "model_specific", "int"),
    "a field that is taken": (lambda: build(model_specific=Model({"causal": 1})), "model_specific", "'causal'"),
    "flags of another length": (
        lambda: build(model_specific=Model({"is_prefilling": np.ones(2, bool)})),
        "is_prefilling of group 0",
        "(3,)",
    ),
    "flags in a list": (
        lambda: build(model_specific=Model({"is_prefilling": [True] * 3})),
        "is_prefilling of group 0",
        "list",
    ),
    "a table in a list": (lambda: build(tables=[[[1, 2]] * 3] * 2), "block_tables[0]", "list"),
    "slots in a list": (lambda: build(slots=[[0] * 6] * 2), "slot_mappings[0]", "list"),
    "a table of one dimension": (lambda: build(tables=[np.zeros(6, np.int32)] * 2), "block_tables[0]", "(6,)"),
    "slots of two dimensions": (lambda: build(slots=np.zeros((2, 6, 1), np.int64)), "slot_mappings[0]", "(6, 1)"),
    "a table of bytes": (lambda: build(tables=[np.zeros((3, 2), np.int8)] * 2), "block_tables[0]", "int8"),
    "slots of 32 bits": (lambda: build(slots=np.zeros((2, 6), np.int32)), "slot_mappings[0]", "int32"),
    "a short table of the second group": (
        lambda: build(tables=[tables_of()[0][0], np.zeros((2, 2), np.int32)]),
        "block_tables[1]",
        "at least 3 rows",
    ),
    "causal by row of another batch": (lambda: build(causal=np.ones(4, bool)), "causal", "(4,)"),
    "causal by row in ints": (lambda: build(causal=np.ones(3, int)), "causal", "int64"),
    "causal for a negative group": (lambda: build(causal={-1: True}), "causal", "-1"),
    "a second micro-batch in one group only": (
        lambda: build(
            [nobody(1)[0], [AttentionGroup(NoOpBackend, ("x",), None, 1, (Nobody(None, (), None),) * 2)]], ubatch_idx=1
        ),
        "ubatch_idx",
        "one of 1 micro-batches",
    ),
    "a sibling group with the layer": (lambda: build([nobody(1)[0] * 2, []]), "attn_groups", "'0.a' in two"),
    "a layer in two groups": (
        lambda: build([nobody(1)[0], [AttentionGroup(NoOpBackend, ("0.a",), None, 1, (Nobody(None, (), None),))]]),
        "attn_groups",
        "'0.a' in two",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_mistakes_are_refused_before_anything_happens(case):
    call, *parts = case
    before = STARTS.copy(), LENS.copy()
    with pytest.raises(ArgumentError, match=r"expected .+, got .+; \w+") as raised:
        call()
    for part in parts:
        assert part in str(raised.value)
    assert np.array_equal(STARTS, before[0])
    assert np.array_equal(LENS, before[1])
