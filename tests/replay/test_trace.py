import gzip
import json

import numpy as np
import pytest

from numba_ckpt.errors import MissingDependencyError, TraceError
from numba_ckpt.replay.read_trace import read_trace

GOOD = '{"timestamp": 27, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2366]}'


def _line(**changes: object) -> str:
    return json.dumps(json.loads(GOOD) | changes)


def _without(key: str) -> str:
    return json.dumps({name: value for name, value in json.loads(GOOD).items() if name != key})


def _read(tmp_path, *lines: str, limit: int | None = None):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return read_trace(path, limit).requests


def test_fields_are_read(tmp_path):
    [request] = _read(tmp_path, GOOD)
    assert (request.timestamp, request.num_input_tokens, request.num_output_tokens) == (27.0, 1100, 52)
    assert request.block_ids.dtype == np.int64
    assert request.block_ids.tolist() == [46, 47, 2366]


def test_blank_lines_and_other_keys_do_not_matter(tmp_path):
    requests = _read(tmp_path, "", GOOD, "   ", _line(model="m", timestamp=28.5), "")
    assert [request.timestamp for request in requests] == [27.0, 28.5]


@pytest.mark.parametrize("length", [1, 511, 512, 513, 1024])
def test_the_last_id_covers_the_remainder(tmp_path, length):
    num_ids = -(-length // 512)
    [request] = _read(tmp_path, _line(input_length=length, hash_ids=list(range(num_ids))))
    assert request.block_ids.size == num_ids


def test_what_lies_behind_the_limit_is_not_looked_at(tmp_path):
    assert len(_read(tmp_path, GOOD, GOOD, "torn", limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (GOOD[:-20], 'expected one JSON object of a request, got \'{"timestamp": 27, '),
        (GOOD[20:], "expected one JSON object of a request"),
        ("[1, 2]", "expected one JSON object of a request"),
        ("null", "expected one JSON object of a request"),
        (GOOD + GOOD, "expected one JSON object of a request"),
        ("\x00\x00", "expected one JSON object of a request"),
        (_without("hash_ids"), "missing required field `hash_ids`"),
        (_without("input_length"), "missing required field `input_length`"),
        (_line(input_length="1100"), "Expected `int`, got `str` - at `$.input_length`"),
        (_line(input_length=1100.5), "Expected `int`, got `float` - at `$.input_length`"),
        (_line(input_length=True), "Expected `int`, got `bool` - at `$.input_length`"),
        (_line(timestamp=None), "Expected `float`, got `null` - at `$.timestamp`"),
        (_line(hash_ids=[46, "47", 2366]), "Expected `int`, got `str` - at `$.hash_ids[1]`"),
        (_line(hash_ids=46), "Expected `array`, got `int` - at `$.hash_ids`"),
        (_line(input_length=-1), "input_length: expected at least 1, got -1"),
        (_line(input_length=0, hash_ids=[]), "input_length: expected at least 1, got 0"),
        (_line(input_length=2**31), "input_length: expected at most 2147483647, got 2147483648"),
        (_line(input_length=10**23), f"input_length: expected at most 2147483647, got {10**23}"),
        (_line(output_length=2**64), "output_length: expected at most 2147483647"),
        (_line(output_length=-52), "output_length: expected at least 0, got -52"),
        (_line(timestamp=-1), "timestamp: expected at least 0, got -1.0"),
        (_line(timestamp=26), "timestamp: expected at least 27.0, the time of an earlier line, got 26.0"),
        (_line(hash_ids=[46, 47]), "hash_ids: expected 3 entries for input_length 1100 (512 tokens each), got 2"),
        (_line(hash_ids=[]), "hash_ids: expected 3 entries for input_length 1100 (512 tokens each), got 0"),
        (_line(hash_ids=[1, 2, 3, 4]), "hash_ids: expected 3 entries for input_length 1100 (512 tokens each), got 4"),
        (_line(input_length=1537), "hash_ids: expected 4 entries for input_length 1537 (512 tokens each), got 3"),
        (_line(hash_ids=[1, 2, 2**63]), "hash_ids: expected ids of 64 bits, got 9223372036854775808"),
        (_line(hash_ids=[1, -(2**70), 3]), "hash_ids: expected ids of 64 bits, got -1180591620717411303424"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, problem):
    with pytest.raises(TraceError) as caught:
        _read(tmp_path, GOOD, "", line, GOOD)
    assert caught.value.line == 3
    assert str(caught.value).startswith(f"{tmp_path / 'trace.jsonl'}:3: ")
    assert problem in str(caught.value)


def test_marks_and_line_ends_of_other_systems_do_not_matter(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{GOOD}\r\n{GOOD}\r\n".encode())
    assert len(read_trace(path).requests) == 2


def test_a_compressed_trace_is_read(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(f"{GOOD}\n{GOOD}\n".encode()))
    assert len(read_trace(path).requests) == 2


@pytest.mark.parametrize("damage", [lambda packed: packed[:-30], lambda packed: packed[:90] + b"torn" + packed[94:]])
def test_a_torn_compressed_trace_is_named_as_one(tmp_path, damage):
    path = tmp_path / "trace.jsonl.gz"
    lines = "".join(_line(hash_ids=[3 * line, 3 * line + 1, 3 * line + 2]) + "\n" for line in range(2000))
    path.write_bytes(damage(gzip.compress(lines.encode())))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert "expected a whole gzip file" in str(caught.value) or "expected one JSON object" in str(caught.value)


def test_bad_lines_can_be_skipped(tmp_path):
    path = tmp_path / "trace.jsonl"
    early = _line(timestamp=3)
    path.write_text("\n".join(["torn", _line(input_length=-1), GOOD, early, GOOD[:50], _line(timestamp=28), GOOD]))
    trace = read_trace(path, skip_bad=True)
    assert [request.timestamp for request in trace.requests] == [27.0, 28.0]
    assert [problem.line for problem in trace.problems] == [1, 2, 4, 5, 7]
    assert [request.timestamp for request in read_trace(path, 1, skip_bad=True).requests] == [27.0]
    with pytest.raises(TraceError, match=r"trace.jsonl:1: expected one JSON object"):
        read_trace(path)


def test_a_trace_of_bad_lines_alone_is_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("torn\n" * 3)
    with pytest.raises(TraceError, match=r"expected at least one request, got none but 3 bad lines .*:1: expected one"):
        read_trace(path, skip_bad=True)


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_an_empty_trace_is_refused(tmp_path, lines):
    with pytest.raises(TraceError, match="expected at least one request, got none"):
        _read(tmp_path, *lines)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere.jsonl:0: expected a readable trace file, got No such file"):
        read_trace(tmp_path / "nowhere.jsonl")


def test_without_msgspec_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "msgspec", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "numba-ckpt\[cli\]"'):
        _read(tmp_path, GOOD)
