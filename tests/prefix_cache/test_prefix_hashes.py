import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_ckpt.errors import ArgumentError, ArgumentTypeError
from numba_ckpt.prefix_cache.prefix_hashes import ExtraKey, PrefixHasher
from tests.prefix_cache.siphash_reference import reference_digests

KEY = bytes(range(16))
ALGORITHMS = ["siphash128", "sha256", "blake2b"]
EVERY_ALGORITHM = pytest.mark.parametrize("algorithm", ALGORITHMS)
TOKEN_IDS = st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1))


def _hex(digests: np.ndarray) -> list[str]:
    assert digests.dtype == np.uint64
    return [row.astype("<u8").tobytes().hex() for row in digests]


@st.composite
def prompts(draw, max_tokens=60):
    tokens = np.array(draw(st.lists(TOKEN_IDS, max_size=max_tokens)), np.int64)
    pairs = st.builds(ExtraKey, st.integers(0, tokens.size), st.sampled_from([b"", b"lora", b"image", b"x" * 40]))
    return tokens, draw(st.binary(max_size=9)), draw(st.lists(pairs, max_size=4))


@given(prompts(), st.integers(1, 35), st.binary(min_size=16, max_size=16))
def test_digests_are_siphash_of_all_that_precedes(prompt, unit, key):
    tokens, salt, extra_keys = prompt
    ours = PrefixHasher(unit, key).hash_prompt(tokens, salt, extra_keys)
    assert _hex(ours) == [digest.hex() for digest in reference_digests(key, unit, tokens.tolist(), salt, extra_keys)]


@pytest.mark.parametrize("unit", [1, 2, 15, 16, 17, 33, 512])
@pytest.mark.parametrize("num_units", [1, 7, 8, 9, 31, 32, 33, 70])
def test_every_filling_of_the_lanes(unit, num_units):
    tokens = np.random.default_rng(unit).integers(0, 2**31, unit * num_units + unit // 2)
    expected = reference_digests(KEY, unit, tokens.tolist(), b"", [(unit * num_units - 1, b"image")])
    ours = PrefixHasher(unit, KEY).hash_prompt(tokens, extra_keys=[(unit * num_units - 1, b"image")])
    assert _hex(ours) == [digest.hex() for digest in expected]


@EVERY_ALGORITHM
@given(prompts(), st.integers(1, 20), st.lists(st.integers(0, 60), max_size=6))
def test_any_split_gives_the_digests_of_one_call(algorithm, prompt, unit, cuts):
    tokens, salt, extra_keys = prompt
    hasher = PrefixHasher(unit, KEY, algorithm)
    cuts = sorted({0, tokens.size, *(cut for cut in cuts if cut < tokens.size)})
    state, parts, given_keys = hasher.start(salt), [], set()
    for start, stop in zip([0, *cuts], [*cuts, tokens.size], strict=True):
        now = {at for at, key in enumerate(extra_keys) if key.position <= stop} - given_keys
        parts.append(hasher.extend(state, tokens[start:stop], [extra_keys[at] for at in now]))
        given_keys |= now
        assert state.num_tokens == stop
    assert _hex(np.concatenate(parts)) == _hex(hasher.hash_prompt(tokens, salt, extra_keys))


@EVERY_ALGORITHM
def test_two_parts_at_every_place(algorithm):
    hasher, tokens = PrefixHasher(16, KEY, algorithm), np.arange(1200, dtype=np.int32)
    expected = _hex(hasher.hash_prompt(tokens))
    for cut in range(0, 1201, 7):
        state = hasher.start()
        parts = hasher.extend(state, tokens[:cut]), hasher.extend(state, tokens[cut:].astype(np.int64))
        assert _hex(np.concatenate(parts)) == expected


@EVERY_ALGORITHM
@given(prompts(), st.integers(1, 20), st.data())
def test_a_changed_token_changes_all_later_digests_and_no_earlier_one(algorithm, prompt, unit, data):
    tokens, salt, extra_keys = prompt
    hasher = PrefixHasher(unit, KEY, algorithm)
    before = _hex(hasher.hash_prompt(tokens, salt, extra_keys))
    if tokens.size:
        at = data.draw(st.integers(0, tokens.size - 1))
        tokens[at] ^= 1 << data.draw(st.integers(0, 30))
        after = _hex(hasher.hash_prompt(tokens, salt, extra_keys))
        assert after[: at // unit] == before[: at // unit]
        assert not set(after[at // unit :]) & set(before)


@EVERY_ALGORITHM
@pytest.mark.parametrize("position", [0, 3, 4, 11, 12, 15])
def test_an_extra_key_changes_its_unit_and_all_later_ones(algorithm, position):
    hasher, tokens = PrefixHasher(4, KEY, algorithm), np.arange(16)
    plain = _hex(hasher.hash_prompt(tokens))
    keyed = _hex(hasher.hash_prompt(tokens, extra_keys=[ExtraKey(position, b"image")]))
    assert keyed[: position // 4] == plain[: position // 4]
    assert not set(keyed[position // 4 :]) & set(plain)


@EVERY_ALGORITHM
def test_whatever_is_mixed_in_tells_digests_apart(algorithm):
    tokens, hasher = np.arange(16), PrefixHasher(4, KEY, algorithm)
    variants = [
        hasher.hash_prompt(tokens),
        hasher.hash_prompt(tokens, b"a"),
        hasher.hash_prompt(tokens, b"a\0"),
        hasher.hash_prompt(tokens, extra_keys=[(0, b"a")]),
        hasher.hash_prompt(tokens, extra_keys=[(0, b"")]),
        hasher.hash_prompt(tokens, extra_keys=[(1, b"a")]),
        hasher.hash_prompt(tokens, extra_keys=[(0, b"a"), (1, b"b")]),
        hasher.hash_prompt(tokens, extra_keys=[(0, b"b"), (1, b"a")]),
        hasher.hash_prompt(tokens, extra_keys=[(0, b"ab")]),
        hasher.hash_prompt(tokens, extra_keys=[(0, b"a"), (0, b"b")]),
        PrefixHasher(4, bytes(16), algorithm).hash_prompt(tokens),
        PrefixHasher(4, None, algorithm).hash_prompt(tokens),
        PrefixHasher(8, KEY, algorithm).hash_prompt(tokens),
        *(PrefixHasher(4, KEY, other).hash_prompt(tokens) for other in ALGORITHMS if other != algorithm),
    ]
    digests = [digest for variant in variants for digest in _hex(variant)]
    assert len(set(digests)) == len(digests) == 4 * len(variants) - 2


def test_the_order_of_extra_keys_does_not_matter():
    hasher, keys = PrefixHasher(4, KEY), [ExtraKey(5, b"b"), ExtraKey(5, b"a"), ExtraKey(2, b"c")]
    digests = [hasher.hash_prompt(np.arange(8), extra_keys=order) for order in (keys, keys[::-1], iter(keys))]
    assert _hex(digests[0]) == _hex(digests[1]) == _hex(digests[2])


@EVERY_ALGORITHM
def test_the_integer_dtype_does_not_matter(algorithm):
    hasher, ids = PrefixHasher(3, KEY, algorithm), np.arange(100)
    expected = _hex(hasher.hash_prompt(ids))
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "u8", ">i4", ">i8", ">u2"):
        assert _hex(hasher.hash_prompt(ids.astype(dtype))) == expected
    for width in (np.int32, np.int64):
        spread = np.zeros(200, width)
        spread[::2] = ids
        locked = ids.astype(width)
        locked.flags.writeable = False
        shifted = np.frombuffer(b"\0" + ids.astype(width).tobytes(), width, offset=1)
        for tokens in (spread[::2], locked, shifted, locked[::-1][::-1]):
            assert _hex(hasher.hash_prompt(tokens)) == expected


def test_a_coarse_block_ends_where_a_fine_unit_does():
    tokens = np.arange(64)
    fine = PrefixHasher(4, KEY).hash_prompt(tokens)
    tokens[31] += 1
    changed = PrefixHasher(4, KEY).hash_prompt(tokens)
    assert (fine == changed).all(axis=1)[3::4].tolist() == [True, False, False, False]


def test_forks_go_their_own_ways():
    hasher, tokens = PrefixHasher(4, KEY), np.arange(10)
    state = hasher.start(b"tenant")
    hasher.extend(state, tokens[:6], [(6, b"image")])
    other = state.fork()
    other_digests = hasher.extend(other, tokens[7:])
    assert (state.num_tokens, other.num_tokens) == (6, 9)
    assert _hex(hasher.extend(state, tokens[6:])) != _hex(other_digests)
    assert _hex(hasher.extend(state.fork(), tokens[:2])) == _hex(
        hasher.hash_prompt(np.append(tokens, [0, 1]), b"tenant", [(6, b"image")])[2:]
    )


def test_the_default_key_is_of_the_process_and_secret():
    code = (
        "import numpy as np; from numba_ckpt.prefix_cache.prefix_hashes import PrefixHasher as P;"
        "print(*(P(4, algorithm='blake2b').hash_prompt(np.arange(4)).tobytes().hex() for _ in range(2)))"
    )
    first, second = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    own = PrefixHasher(4, algorithm="blake2b").hash_prompt(np.arange(4)).tobytes().hex()
    assert first == second != own
    assert repr(PrefixHasher(4, KEY)) == "PrefixHasher(unit=4, algorithm='siphash128')"


def test_an_empty_prompt_has_no_digests():
    assert PrefixHasher(4).hash_prompt(np.empty(0, np.int32)).shape == (0, 2)
    assert PrefixHasher(4).hash_prompt(np.arange(3), extra_keys=[(3, b"next")]).shape == (0, 2)


BAD_HASHERS = [
    ((0,), ArgumentError, "unit: expected an integer in"),
    ((-16,), ArgumentError, "unit: expected an integer in"),
    ((16.0,), ArgumentTypeError, "unit: expected an integer"),
    ((True,), ArgumentTypeError, "unit: expected an integer"),
    ((16, bytes(15)), ArgumentError, "key: expected 16 bytes, got 15 bytes"),
    ((16, b""), ArgumentError, "key: expected 16 bytes, got 0 bytes"),
    ((16, "k" * 16), ArgumentTypeError, "key: expected 16 bytes, got str"),
    ((16, None, "md5"), ArgumentError, "algorithm: expected one of 'siphash128', 'sha256', 'blake2b', got 'md5'"),
    ((16, None, None), ArgumentError, "algorithm: expected one of"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_HASHERS)
def test_bad_hashers_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        PrefixHasher(*arguments)


GOOD = np.arange(6)
BAD_CALLS = [
    (([1, 2],), ArgumentTypeError, "tokens: expected a 1-d NumPy array of integers, got list; wrap it with"),
    ((7,), ArgumentTypeError, "tokens: expected a 1-d NumPy array of integers, got int"),
    ((GOOD.astype(float),), ArgumentTypeError, "tokens: expected an integer dtype, got float64"),
    ((GOOD > 2,), ArgumentTypeError, "tokens: expected an integer dtype, got bool"),
    ((GOOD.reshape(2, 3),), ArgumentError, "tokens: expected 1 dimension"),
    ((np.array(3),), ArgumentError, "tokens: expected 1 dimension"),
    ((np.array([0, 1, -1, 2]),), ArgumentError, r"tokens: expected token ids in \[0, 2147483647\], got -1 at index 2"),
    ((np.array([0, -1], np.int32),), ArgumentError, "got -1 at index 1; mask padding"),
    ((np.array([0, -1, 0], np.int8),), ArgumentError, "got -1 at index 1"),
    ((np.array([0, 0, 0, 0, 2**31]),), ArgumentError, "got 2147483648 at index 4"),
    ((np.array([2**31], np.uint32),), ArgumentError, "got 2147483648 at index 0"),
    ((np.array([2**63 + 5], np.uint64),), ArgumentError, "got 9223372036854775813 at index 0"),
    ((GOOD, "tenant"), ArgumentTypeError, "salt: expected bytes, got 'tenant'"),
    ((GOOD, None), ArgumentTypeError, "salt: expected bytes, got None"),
    ((GOOD, b"", b"image"), ArgumentTypeError, "extra_keys: expected pairs of a position and bytes"),
    ((GOOD, b"", 3), ArgumentTypeError, "extra_keys: expected pairs of a position and bytes, got 3"),
    ((GOOD, b"", [(0, "image")]), ArgumentTypeError, "extra_keys content: expected bytes, got 'image'"),
    ((GOOD, b"", [(0.0, b"image")]), ArgumentTypeError, "extra_keys position: expected an integer"),
    ((GOOD, b"", [(-1, b"image")]), ArgumentError, "extra_keys position: expected an integer in"),
    ((GOOD, b"", [(7, b"image")]), ArgumentError, r"extra_keys: expected positions in \[0, 6\], got 7"),
]


@EVERY_ALGORITHM
@pytest.mark.parametrize(("arguments", "error", "message"), BAD_CALLS)
def test_bad_prompts_are_refused(arguments, error, message, algorithm):
    with pytest.raises(error, match=message):
        PrefixHasher(4, KEY, algorithm).hash_prompt(*arguments)


@EVERY_ALGORITHM
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.array([6, 7, 8, 9, -10]),), "tokens: .* got -10 at index 4"),
        ((np.array([6, 7]), [(3, b"image")]), r"extra_keys: expected positions in \[4, 8\], got 3"),
        ((np.array([6, 7]), [(9, b"image")]), r"extra_keys: expected positions in \[4, 8\], got 9"),
    ],
)
def test_a_refused_extension_changes_nothing(algorithm, arguments, message):
    hasher, tokens = PrefixHasher(4, KEY, algorithm), np.arange(9)
    state = hasher.start()
    hasher.extend(state, tokens[:6])
    with pytest.raises(ArgumentError, match=message):
        hasher.extend(state, *arguments)
    assert state.num_tokens == 6
    assert _hex(hasher.extend(state, tokens[6:])) == _hex(hasher.hash_prompt(tokens))[1:]


def test_a_state_belongs_to_its_hasher():
    with pytest.raises(ArgumentTypeError, match="state: expected a state that this hasher started, got another hasher"):
        PrefixHasher(4, KEY).extend(PrefixHasher(4, KEY).start(), GOOD)
    with pytest.raises(ArgumentTypeError, match="got NoneType; call start of this hasher"):
        PrefixHasher(4, KEY).extend(None, GOOD)


@settings(max_examples=20)
@given(st.integers(1, 600), st.integers(0, 2000))
def test_there_is_one_digest_for_each_whole_unit(unit, num_tokens):
    assert PrefixHasher(unit).hash_prompt(np.zeros(num_tokens, np.int32)).shape == (num_tokens // unit, 2)
