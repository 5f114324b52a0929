import json

import numpy as np
import pytest

from numba_ckpt.errors import TraceError
from numba_ckpt.replay.read_trace import read_trace

GOOD = '{"s": "one", "a": null, "t": 1.5, "in": 330, "out": 9, "api": 7.3, "h": [[1, 3], [40, 2]]}'


def _line(**changes: object) -> str:
    fields = {name.removesuffix("_"): value for name, value in changes.items()}
    return json.dumps(json.loads(GOOD) | fields)


def _read(tmp_path, *lines: str):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return read_trace(path).requests


def test_fields_are_read(tmp_path):
    [request] = _read(tmp_path, GOOD)
    assert (request.timestamp, request.num_input_tokens, request.num_output_tokens) == (1500.0, 330, 9)
    assert request.tokens_per_id == 64
    assert request.block_ids[:-1].tolist() == [1, 2, 3, 40, 41]


def test_the_last_tokens_belong_to_the_prompt_alone(tmp_path):
    first, second = _read(tmp_path, GOOD, GOOD)
    np.testing.assert_array_equal(first.block_ids[:-1], second.block_ids[:-1])
    assert first.block_ids[-1] != second.block_ids[-1]
    assert _read(tmp_path, _line(in_=320))[0].block_ids.size == 5
    assert _read(tmp_path, _line(in_=63, h=[]))[0].block_ids.size == 1


def test_ids_are_local_to_a_session(tmp_path):
    first, second = _read(tmp_path, GOOD, _line(s="two", t=0))
    assert not np.isin(first.block_ids, second.block_ids).any()


def test_sub_agents_take_their_turns_beside_the_session(tmp_path):
    requests = _read(tmp_path, GOOD, _line(a="helper"), _line(s="two"), GOOD)
    assert [request.session for request in requests] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (GOOD[:-20], "expected one JSON object of a request"),
        (_line(t=1), "t: expected at least 1.5, the time of an earlier line, got 1.0; sort the lines by time"),
        (_line(t=-1), "t: expected at least 0, got -1.0"),
        (_line(in_=0), "in: expected at least 1, got 0"),
        (_line(out=-1), "out: expected at least 0, got -1"),
        (_line(out=2**31), "out: expected at most 2147483647"),
        (_line(in_=384), "h: expected runs of 6 ids for in 384 (64 tokens each), got 5"),
        (_line(h=[]), "h: expected runs of 5 ids for in 330 (64 tokens each), got 0"),
        (_line(h=[[1, 6], [7, -1]]), "h: expected runs [first_id, count] of ids in [0, 2^32), got [7, -1]"),
        (_line(h=[[1, 5], [7, 0]]), "got [7, 0]; renumber them"),
        (_line(h=[[-1, 5]]), "got [-1, 5]; renumber them"),
        (_line(h=[[2**32, 5]]), "got [4294967296, 5]; renumber them"),
        (_line(h=[[1, 2, 3]]), "Expected `array` of length 2"),
        (_line(h=[1, 5]), "Expected `array`, got `int`"),
        (_line(s=7), "Expected `str`, got `int` - at `$.s`"),
        ('{"s": "one", "t": 2, "out": 9, "h": [[1, 3]]}', "missing required field `in`"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, problem):
    with pytest.raises(TraceError) as caught:
        _read(tmp_path, GOOD, "", line, GOOD)
    assert str(caught.value).startswith(f"{tmp_path / 'trace.jsonl'}:3: ")
    assert problem in str(caught.value)
