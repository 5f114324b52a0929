"""``numba-ckpt layout``: what it prints, draws and refuses."""

import json
from pathlib import Path

import pytest

from numba_ckpt.cli import main
from numba_ckpt.errors import ArgumentError
from numba_ckpt.replay.layout_config import LayoutConfig, plan_layout, read_layout_config

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "hybrid.json"
LIMITS = {"max_num_requests": 8, "max_num_batched_tokens": 512, "max_model_len": 4096}
FULL = {"kind": "full", "block_size": 64, "num_kv_heads": 2, "head_size": 64}
STATE = {"kind": "state", "block_size": 1024, "shapes": [[3, 64], [4, 16, 16]], "dtypes": ["bfloat16", "float32"]}


def make(**changes):
    layers = [{"name": "{}.mixer", "repeat": 2, "spec": STATE}, {"name": "{}.attn", "repeat": 2, "spec": FULL}]
    return {"engine": {"limits": LIMITS}, "layers": layers, "num_blocks": 200} | changes


def write(tmp_path, record):
    path = tmp_path / "model.json"
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return str(path)


def test_the_example_is_planned_as_its_page_says(capsys):
    assert main(["layout", str(EXAMPLE)]) == 0
    out = capsys.readouterr().out
    assert "7 groups share 1,985 blocks" in out
    assert "layers.7.attn → layers.5.attn" in out
    assert "65,505 × 8 × 16 × 256" in out  # blocks of 528 tokens read as 33 of 16
    assert "4 GiB in one allocation" in out


def test_layers_of_different_groups_lie_in_the_same_bytes():
    plan = plan_layout(LayoutConfig.from_dict(make(kernel_block_size=16)))
    config = plan.memory.kv_cache_config
    assert [tensor.layer_names for tensor in config.tensors] == [("0.mixer", "0.attn"), ("1.mixer", "1.attn")]
    assert plan.kernel_block_sizes == [None, 16]
    page = 64 * 2 * (64 + 64) * 2
    assert {config.spec_of(name).page_size_bytes for name in ("0.mixer", "1.attn")} == {page}
    assert plan.memory.size_bytes == 2 * 200 * page
    assert plan.memory.layers["1.attn"].views[0].shape == (200 * 4, 2, 16, 128)


def test_a_sharing_layer_joins_its_target_and_takes_no_memory():
    layers = [*make()["layers"], {"name": "reader", "shares": "1.attn"}]
    alone, shared = (plan_layout(LayoutConfig.from_dict(make(**more))) for more in ({}, {"layers": layers}))
    assert shared.memory.size_bytes == alone.memory.size_bytes
    assert shared.memory.kv_cache_config.group_of("reader") is shared.memory.kv_cache_config.group_of("1.attn")


def test_memory_instead_of_blocks():
    plan = plan_layout(LayoutConfig.from_dict(make(num_blocks=None, available_gib=0.5)))
    assert 2**29 - 2 * 32768 < plan.memory.size_bytes <= 2**29


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_memory_map_is_drawn(tmp_path, suffix, capsys):
    picture = tmp_path / f"map.{suffix}"
    assert main(["layout", str(EXAMPLE), "--plot", str(picture)]) == 0
    assert str(picture) in capsys.readouterr().out
    assert picture.stat().st_size > 5000
    if suffix == "svg":
        text = picture.read_text()
        for word in ("State", "FullAttention", "SlidingWindow", "padding", "tensor 0"):
            assert word in text or word.encode().hex() in text or "<path" in text


def spec(**changes):
    return {"name": "a", "spec": FULL | changes}


BAD = {
    "no JSON": ("{", "LayoutConfig", "JSON"),
    "a list": ("[]", "LayoutConfig", "a mapping"),
    "an unknown key": (make(pool=3), "pool", "unknown key"),
    "no engine": ({"layers": [spec()], "num_blocks": 9}, "engine", "no such key"),
    "no layers": (make(layers=[]), "layers", "one layer"),
    "layers in a mapping": (make(layers={}), "layers", "a list"),
    "a layer that is a name": (make(layers=["a"]), "layers[0]", "a mapping"),
    "a layer without a name": (make(layers=[{"spec": FULL}]), "layers[0].name", "None"),
    "a layer without a spec": (make(layers=[{"name": "a"}]), "layers[0]", "neither"),
    "spec and shares": (make(layers=[spec() | {"shares": "b"}]), "layers[0]", "both"),
    "an unknown key of a layer": (make(layers=[spec() | {"heads": 3}]), "layers[0].heads", "spelling"),
    "a layer repeated without a number": (make(layers=[spec() | {"repeat": 2}]), "layers[0].name", "'a'"),
    "two layers of one name": (make(layers=[spec(), spec()]), "layers[1].name", "'a'"),
    "no repeats": (make(layers=[spec() | {"repeat": 0}]), "layers[0].repeat", "0"),
    "an unknown kind": (make(layers=[spec(kind="mamba")]), "a.spec.kind", "'mamba'"),
    "a wrong size": (make(layers=[spec(head_size=0)]), "a.spec.head_size", "0"),
    "an unknown field": (make(layers=[spec(heads=2)]), "a.spec.heads", "unknown key"),
    "an unknown dtype": (make(layers=[spec(dtype="bf17")]), "a.spec.dtype", "'bf17'"),
    "a target that is no name": (make(layers=[spec(), {"name": "b", "shares": ["a"]}]), "b.shares", "['a']"),
    "a later target": (make(layers=[{"name": "b", "shares": "a"}, spec()]), "b.shares", "'a'"),
    "a missing target": (make(layers=[spec(), {"name": "b", "shares": "c"}]), "b.shares", "'c'"),
    "both sizes of the pool": (make(available_gib=1), "num_blocks", "both"),
    "no size of the pool": (make(num_blocks=None), "num_blocks", "neither"),
    "a pool that is text": (make(num_blocks=None, available_gib="4"), "available_gib", "'4'"),
    "too few blocks": (make(num_blocks=3), "num_blocks", "at least"),
    "kernel blocks that do not divide": (make(kernel_block_size=48), "kernel_block_sizes", "divisor"),
    "an unknown layout": (
        make(engine={"limits": LIMITS, "cache": {"layout": "LBH"}}),
        "engine.cache.layout",
        "'LBH'",
    ),
    "a limit of 0": (make(engine={"limits": LIMITS | {"max_model_len": 0}}), "engine.limits.max_model_len", "0"),
}


@pytest.mark.parametrize("record", BAD.values(), ids=BAD)
def test_a_bad_file_is_refused(tmp_path, record, capsys):
    path = write(tmp_path, record[0])
    with pytest.raises(ArgumentError) as raised:
        plan_layout(read_layout_config(path))
    for part in record[1:]:
        assert part in str(raised.value)
    assert main(["layout", path]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("numba-ckpt: error: ")


def test_a_file_that_is_not_there(capsys):
    assert main(["layout", "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err


def test_a_picture_of_no_format(capsys):
    assert main(["layout", str(EXAMPLE), "--plot", "map.txt"]) == 2
    assert "map.txt" in capsys.readouterr().err
