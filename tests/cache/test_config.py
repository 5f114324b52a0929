"""Configuration: defaults, loading, and errors that name the key."""

import json

import pytest

from numba_ckpt.cache import CacheConfig, EngineConfig, LimitsConfig, ParallelConfig, SpeculationConfig
from numba_ckpt.errors import ArgumentError, ArgumentTypeError

LIMITS = {"max_num_requests": 8, "max_num_batched_tokens": 2048, "max_model_len": 4096}


def test_defaults():
    config = EngineConfig(LimitsConfig(**LIMITS))
    assert config.cache == CacheConfig("align", 16, 16, None, "LBHNC", False)
    assert (config.speculation, config.parallel) == (SpeculationConfig(0, False), ParallelConfig(1, 1, 0, 1))
    assert hash(config) == hash(EngineConfig(LimitsConfig(**LIMITS)))


def test_json_is_the_same_as_records():
    whole = {
        "limits": LIMITS,
        "cache": {"mode": "none", "block_size": 528, "hash_block_size": 16, "layout": "BLNHC"},
        "speculation": {"num_draft_tokens": 3, "drop_eagle_block": True},
        "parallel": {"cp_size": 2, "cp_rank": 1, "cp_interleave": 4},
    }
    config = EngineConfig.from_json(json.dumps(whole))
    assert config.limits == LimitsConfig(8, 2048, 4096)
    assert config.cache == CacheConfig("none", 528, 16, layout="BLNHC")
    assert config.speculation == SpeculationConfig(3, True)
    assert config.parallel == ParallelConfig(1, 2, 1, 4)
    assert EngineConfig.from_dict({"limits": config.limits}).limits is config.limits


BAD = {
    "unknown part": ({"limit": LIMITS}, "limit: expected one of the keys limits, cache"),
    "no limits": ({}, "limits: expected a value, got no such key"),
    "limits missing": ({"limits": {"max_num_requests": 1}}, "limits.max_num_batched_tokens: expected a value"),
    "unknown limit": ({"limits": LIMITS | {"max_len": 3}}, "limits.max_len: expected one of the keys"),
    "zero": ({"limits": LIMITS | {"max_model_len": 0}}, r"limits.max_model_len: expected an integer in \[1, "),
    "float": ({"limits": LIMITS | {"max_num_requests": 1.5}}, "limits.max_num_requests: expected an integer"),
    "bool": ({"limits": LIMITS | {"max_num_requests": True}}, "limits.max_num_requests: expected an integer"),
    "null": ({"limits": LIMITS | {"max_num_requests": None}}, "limits.max_num_requests: expected an integer"),
    "a list for a part": ({"limits": [1, 2, 3]}, "limits: expected a mapping, got"),
    "a number for a part": ({"limits": LIMITS, "cache": 16}, "cache: expected a mapping, got 16"),
    "mode": ({"limits": LIMITS, "cache": {"mode": "some"}}, "cache.mode: expected one of 'none', 'all', 'align'"),
    "layout": ({"limits": LIMITS, "cache": {"layout": "HND"}}, "cache.layout: expected one of 'LBHNC'"),
    "block": ({"limits": LIMITS, "cache": {"block_size": 0}}, "cache.block_size: expected"),
    "hash": ({"limits": LIMITS, "cache": {"hash_block_size": 5}}, "cache.hash_block_size: expected a divisor of block"),
    "hit": ({"limits": LIMITS, "cache": {"cache_hit_alignment_tokens": 0}}, "cache.cache_hit_alignment_tokens: exp"),
    "switch": ({"limits": LIMITS, "cache": {"kv_sharing_fast_prefill": 1}}, "cache.kv_sharing_fast_prefill: expected"),
    "drafts": ({"limits": LIMITS, "speculation": {"num_draft_tokens": -1}}, "speculation.num_draft_tokens: expected"),
    "eagle": ({"limits": LIMITS, "speculation": {"drop_eagle_block": "no"}}, "speculation.drop_eagle_block: expected"),
    "ubatches": ({"limits": LIMITS, "parallel": {"num_ubatches": 0}}, "parallel.num_ubatches: expected"),
    "rank": ({"limits": LIMITS, "parallel": {"cp_size": 2, "cp_rank": 2}}, r"parallel.cp_rank: .* \[0, 1\], got 2"),
}


@pytest.mark.parametrize(("mapping", "message"), BAD.values(), ids=BAD)
def test_a_wrong_key_or_value_is_named_by_its_path(mapping, message):
    with pytest.raises(ArgumentError, match="^" + message):
        EngineConfig.from_dict(mapping)
    with pytest.raises(ArgumentError, match="^" + message):
        EngineConfig.from_json(json.dumps(mapping))


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", None])
def test_what_is_no_json_object(text):
    with pytest.raises(ArgumentError, match="EngineConfig: expected a"):
        EngineConfig.from_json(text)


def test_parts_of_other_kinds():
    with pytest.raises(ArgumentTypeError, match="limits: expected a LimitsConfig, got dict"):
        EngineConfig(LIMITS)
    with pytest.raises(ArgumentTypeError, match="cache: expected a CacheConfig, got NoneType"):
        EngineConfig(LimitsConfig(**LIMITS), None)
