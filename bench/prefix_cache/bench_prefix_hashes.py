"""Prefix hashes: SHA-256 over parent digest and token bytes, unit after unit, against one compiled pass."""

import hashlib

import numpy as np
import pytest

from bench.registry import SIDES, Sides, comparison, of_module
from numba_ckpt.prefix_cache.prefix_hashes import PrefixHasher

NUM_TOKENS = 12_288
KEY = bytes(range(16))


def sha256_chain(tokens, unit):
    """Digests of the whole units, as a list of bytes."""
    digests, parent = [], bytes(32)
    for start in range(0, tokens.size - unit + 1, unit):
        parent = hashlib.sha256(parent + tokens[start : start + unit].tobytes()).digest()
        digests.append(parent)
    return digests


def hash_sides(unit, dtype, num_tokens=NUM_TOKENS):
    tokens = np.random.default_rng(20260101).integers(0, 150_000, num_tokens).astype(dtype)
    hasher = PrefixHasher(unit, KEY)

    def ours():
        return hasher.hash_prompt(tokens)

    def check():
        """Both tell the same prefixes apart, wherever a token is changed."""
        before, chain_before = ours(), sha256_chain(tokens, unit)
        assert len(before) == len(chain_before) == len(np.unique(before, axis=0)) == num_tokens // unit
        for at in (0, num_tokens // 2 + 1, num_tokens - 1):
            changed = tokens.copy()
            changed[at] += 1
            same = (hasher.hash_prompt(changed) == before).all(axis=1).tolist()
            assert same == [a == b for a, b in zip(sha256_chain(changed, unit), chain_before, strict=True)]
            assert same == [number < at // unit for number in range(num_tokens // unit)]

    return Sides(lambda: sha256_chain(tokens, unit), ours, check)


for unit, goal in ((16, 10.0), (64, 5.0), (512, 2.5)):
    for dtype in ("int32", "int64"):
        comparison(
            f"`PrefixHasher.hash_prompt`, {dtype}, units of {unit}",
            f"a prompt of {NUM_TOKENS:,} tokens, against `hashlib.sha256` over parent digest and token bytes",
            goal,
        )(lambda unit=unit, dtype=dtype: hash_sides(unit, dtype))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bench", of_module(__name__), ids=str)
def test_prefix_hashes(benchmark, bench, side):
    bench.run_under_pytest(benchmark, side)
