"""Every mistake of a caller gets a message (name, expected, got, what to do) and changes nothing."""

import re

import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError, ArgumentTypeError, NumbaCkptError
from numba_ckpt.planning import CheckpointGeometry, CheckpointPlan, compute_prefill_checkpoints, plan_into

POISON = -77
SIZES = {
    "hash_block_size": 16,
    "state_block_size": 2048,
    "cache_hit_alignment_tokens": 16,
    "checkpoint_alignment": 64,
    "drop_eagle_block": False,
    "num_hash_lookahead_tokens": 0,
}
GEOMETRY = CheckpointGeometry(**SIZES)
MESSAGE = re.compile(r"^(?P<name>\w+): expected (?P<expected>.+?), got (?P<got>.+); (?P<do>\w.+)$", re.DOTALL)


def check_message(error, name, *words):
    """The message names `name`, has all four parts and holds `words`."""
    assert isinstance(error, NumbaCkptError)
    match = MESSAGE.match(str(error))
    assert match, f"not in the house's wording: {error}"
    assert match["name"] == name
    for word in words:
        assert word in str(error), f"{word!r} is missing in: {error}"


BAD_SIZES = [
    *(
        (name, value, error)
        for name in ("hash_block_size", "state_block_size", "cache_hit_alignment_tokens", "checkpoint_alignment")
        for value, error in [
            (0, ArgumentError),
            (-16, ArgumentError),
            (2**31, ArgumentError),
            (16.0, ArgumentTypeError),
            (True, ArgumentTypeError),
            ("16", ArgumentTypeError),
            (np.float64(16), ArgumentTypeError),
        ]
    ),
    ("hash_block_size", None, ArgumentTypeError),
    ("state_block_size", np.bool_(True), ArgumentTypeError),
    ("cache_hit_alignment_tokens", np.array([16, 32]), ArgumentTypeError),
    ("num_hash_lookahead_tokens", -1, ArgumentError),
    ("num_hash_lookahead_tokens", 2**31, ArgumentError),
    ("num_hash_lookahead_tokens", None, ArgumentTypeError),
    ("num_hash_lookahead_tokens", False, ArgumentTypeError),
    ("drop_eagle_block", 1, ArgumentTypeError),
    ("drop_eagle_block", None, ArgumentTypeError),
    ("drop_eagle_block", "no", ArgumentTypeError),
]


@pytest.mark.parametrize(("name", "value", "error"), BAD_SIZES, ids=[f"{n}={v!r}" for n, v, _ in BAD_SIZES])
def test_geometry_refuses(name, value, error):
    with pytest.raises(error) as raised:
        CheckpointGeometry(**SIZES | {name: value})
    check_message(raised.value, name)


BAD_LENGTHS = {
    "negative sequence": ([100, -1], [100, 0], "seq_lens", "row 1"),
    "negative query": ([100, 5], [100, -5], "query_lens", "row 1"),
    "query beyond its sequence": ([100, 5], [100, 6], "query_lens", "row 1"),
    "negative wide sequence": ([2**40, -(2**40)], [1, 1], "seq_lens", "row 1"),
    "query beyond a wide sequence": ([2**40, 2**40], [1, 2**40 + 1], "query_lens", "row 1"),
    "fewer queries": ([100, 5], [100], "query_lens", "(2,)"),
    "more queries": ([100], [100, 5], "query_lens", "(1,)"),
    "no queries": ([100], [], "query_lens", "(0,)"),
    "float sequences": ([100.0, 5.0], [100, 5], "seq_lens", "integer"),
    "float queries": ([100, 5], [100, 5.0], "query_lens", "integer"),
    "bool sequences": ([True, True], [0, 0], "seq_lens", "bool"),
    "bool among queries": ([100, 5], [100, False], "query_lens", "bool"),
    "text": (["100"], [100], "seq_lens", "integer"),
    "None": (None, [100], "seq_lens", "NoneType"),
    "an int": (100, [100], "seq_lens", "int"),
    "None among sequences": ([100, None], [100, 5], "seq_lens", "integer"),
    "nested sequences": ([[100], [5]], [100, 5], "seq_lens", "dimension"),
    "ragged sequences": ([[100], [5, 6]], [100, 5], "seq_lens", "inhomogeneous"),
    "an iterator": (iter([100, 5]), [100, 5], "seq_lens", "list_iterator"),
    "ints beyond 64 bits": ([2**70, 5], [100, 5], "seq_lens", "integer"),
    "float array": (np.array([100.0]), np.array([100]), "seq_lens", "float64"),
    "half float queries": (np.array([100]), np.array([100], np.float16), "query_lens", "float16"),
    "bool array": (np.array([True]), np.array([0]), "seq_lens", "bool"),
    "complex array": (np.array([1j]), np.array([0]), "seq_lens", "complex128"),
    "object array": (np.array([100], object), np.array([100]), "seq_lens", "object"),
    "0-d sequences": (np.array(100), np.array(100), "seq_lens", "shape ()"),
    "0-d queries": (np.array([100]), np.array(100), "query_lens", "shape ()"),
    "2-d sequences": (np.full((1, 2), 9), np.array([9, 9]), "seq_lens", "shape (1, 2)"),
    "2-d queries": (np.array([9, 9]), np.full((2, 1), 9), "query_lens", "shape (2, 1)"),
    "uint64 beyond int64": (np.array([2**63], np.uint64), np.array([0], np.uint64), "seq_lens", "2^63"),
    "uint64 queries beyond int64": (np.array([1], np.uint64), np.array([2**64 - 1], np.uint64), "query_lens", "2^63"),
    "timedeltas": (np.array([100], "m8[s]"), np.array([100]), "seq_lens", "timedelta64"),
}


def holds_ints(lengths):
    return isinstance(lengths, list) and {type(length) for length in lengths} <= {int}


BAD_ARRAYS = {
    name: (seq_lens, query_lens, *rest)
    for name, (seq_lens, query_lens, *rest) in BAD_LENGTHS.items()
    if isinstance(seq_lens, np.ndarray)
} | {
    name: (np.array(seq_lens), np.array(query_lens, np.int64), *rest)
    for name, (seq_lens, query_lens, *rest) in BAD_LENGTHS.items()
    if holds_ints(seq_lens) and holds_ints(query_lens) and max(seq_lens) < 2**63
}
BAD_OUTPUTS = {
    "list": (lambda: [POISON] * 2, "list"),
    "wrong dtype": (lambda: np.full(2, POISON, np.int16), "int16"),
    "float dtype": (lambda: np.full(2, POISON, np.float64), "float64"),
    "unsigned": (lambda: np.full(2, 7, np.uint32), "uint32"),
    "too short": (lambda: np.full(1, POISON), "(1,)"),
    "too long": (lambda: np.full(3, POISON), "(3,)"),
    "0-d": (lambda: np.array(POISON), "()"),
    "2-d": (lambda: np.full((2, 1), POISON), "(2, 1)"),
}


def parametrize(table):
    return pytest.mark.parametrize("case", table.values(), ids=[name.replace(" ", "-") for name in table])


def poisoned(size=2):
    return np.full(size, POISON, np.int32), np.full(size, POISON, np.int64)


def check_untouched(*outputs):
    for output in outputs:
        assert (np.asarray(output) == POISON).all()


@parametrize(BAD_LENGTHS)
def test_the_public_call_refuses_lengths(case):
    seq_lens, query_lens, name, word = case
    for size in (1, 2):
        out = CheckpointPlan(*poisoned(size), any=False)
        with pytest.raises(ArgumentError) as raised:
            compute_prefill_checkpoints(seq_lens, query_lens, GEOMETRY, out=out)
        check_untouched(out.offsets, out.block_cols)
    with pytest.raises(ArgumentError) as raised:
        compute_prefill_checkpoints(seq_lens, query_lens, GEOMETRY)
    check_message(raised.value, name, word)


@parametrize(BAD_ARRAYS)
@pytest.mark.parametrize("dtype", [None, np.int32])
def test_plan_into_refuses_lengths(case, dtype):
    seq_lens, query_lens, name, word = case
    if dtype and all(
        lengths.dtype == np.int64 and np.abs(lengths).max(initial=0) < 2**31 for lengths in (seq_lens, query_lens)
    ):
        seq_lens, query_lens = seq_lens.astype(dtype), query_lens.astype(dtype)
    outputs = poisoned(seq_lens.size)
    with pytest.raises(ArgumentError) as raised:
        plan_into(seq_lens, query_lens, GEOMETRY, *outputs)
    check_message(raised.value, name, word)
    check_untouched(*outputs)


@parametrize(BAD_OUTPUTS)
@pytest.mark.parametrize("name", ["offsets", "block_cols"])
def test_plan_into_refuses_an_output(case, name):
    make, word = case
    outputs = dict(zip(("offsets", "block_cols"), poisoned(), strict=True))
    bad = make()
    if isinstance(bad, np.ndarray) and bad.dtype == np.int64:
        bad = bad.astype(outputs[name].dtype)
    outputs[name] = bad
    before = np.array(bad)
    with pytest.raises(ArgumentError) as raised:
        plan_into(np.array([100, 5000]), np.array([100, 4992]), GEOMETRY, **outputs)
    check_message(raised.value, name, word)
    assert np.array_equal(np.array(bad), before)
    check_untouched(outputs["offsets" if name == "block_cols" else "block_cols"])


@pytest.mark.parametrize("name", ["offsets", "block_cols"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_plan_into_refuses_a_read_only_output(name, dtype):
    outputs = dict(zip(("offsets", "block_cols"), poisoned(), strict=True))
    outputs[name].flags.writeable = False
    with pytest.raises(ArgumentError) as raised:
        plan_into(np.array([100, 5000], dtype), np.array([100, 4992], dtype), GEOMETRY, **outputs)
    check_message(raised.value, name, "read-only")
    check_untouched(*outputs.values())


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shift", [0, 1])
def test_plan_into_refuses_outputs_that_overlap_the_lengths(dtype, shift):
    name = "offsets" if dtype == np.int32 else "block_cols"
    buffer = np.array([100, 5000, 7], dtype)
    lengths = {"seq_lens": np.array([100, 5000], dtype), "query_lens": np.array([100, 4992], dtype)}
    for shared in lengths:
        outputs = dict(zip(("offsets", "block_cols"), poisoned(), strict=True)) | {name: buffer[shift : shift + 2]}
        before = buffer.copy()
        with pytest.raises(ArgumentError) as raised:
            plan_into(**lengths | {shared: buffer[:2]}, geometry=GEOMETRY, **outputs)
        check_message(raised.value, name, shared, "overlap")
        assert np.array_equal(buffer, before)


def test_plan_into_refuses_outputs_that_overlap_each_other():
    block_cols = np.full(2, POISON)
    with pytest.raises(ArgumentError) as raised:
        plan_into(np.array([100, 5000]), np.array([100, 4992]), GEOMETRY, block_cols.view(np.int32)[:2], block_cols)
    check_message(raised.value, "block_cols", "offsets", "overlap")
    check_untouched(block_cols)


@pytest.mark.parametrize("geometry", [None, SIZES, 16, (16, 2048, 16, 64), CheckpointGeometry], ids=repr)
def test_anything_but_a_geometry_is_refused(geometry):
    outputs = poisoned()
    for call in (
        lambda: plan_into(np.array([100, 5000]), np.array([100, 4992]), geometry, *outputs),
        lambda: compute_prefill_checkpoints([100, 5000], [100, 4992], geometry),
    ):
        with pytest.raises(ArgumentTypeError) as raised:
            call()
        check_message(raised.value, "geometry", "CheckpointGeometry")
    check_untouched(*outputs)


@pytest.mark.parametrize("lengths", [[2**31 + 1], [2**40], [2**62]], ids=str)
def test_an_offset_that_does_not_fit_int32_is_refused(lengths):
    outputs = poisoned(2)
    geometry = CheckpointGeometry(1, 1, 1, checkpoint_alignment=1)
    with pytest.raises(ArgumentError) as raised:
        plan_into(np.array([100, *lengths]), np.array([100, *lengths]), geometry, *outputs)
    check_message(raised.value, "query_lens", "int32")
    check_untouched(*outputs)


@pytest.mark.parametrize(
    "out",
    [(np.empty(1, np.int32), np.empty(1, np.int64)), [], np.empty(2, np.int32), "out"],
    ids=["pair", "[]", "array", "str"],
)
def test_out_must_be_a_plan(out):
    with pytest.raises(ArgumentTypeError) as raised:
        compute_prefill_checkpoints([100], [100], GEOMETRY, out=out)
    check_message(raised.value, "out", "CheckpointPlan")


class DeviceArray:
    """What a GPU array looks like from outside."""

    dtype, shape, ndim, size = np.dtype(np.int64), (2,), 1, 2

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": "<i8", "data": (0, False), "version": 3}


@pytest.mark.parametrize("name", ["seq_lens", "query_lens", "offsets", "block_cols"])
def test_device_arrays_are_refused(name):
    lengths = {"seq_lens": np.array([100, 5000]), "query_lens": np.array([100, 4992])}
    outputs = dict(zip(("offsets", "block_cols"), poisoned(), strict=True))
    with pytest.raises(NumbaCkptError) as raised:
        plan_into(**lengths | outputs | {name: DeviceArray()}, geometry=GEOMETRY)
    check_message(raised.value, name)
    if name in lengths:
        with pytest.raises(NumbaCkptError) as raised:
            compute_prefill_checkpoints(**lengths | {name: DeviceArray()}, geometry=GEOMETRY)
        check_message(raised.value, name)
