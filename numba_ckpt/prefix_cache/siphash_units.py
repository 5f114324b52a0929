"""SipHash-2-4-128 over all units of a prompt: the units' contents side by side in SIMD lanes, then a short chain.

::

    tokens   │ unit 0 │ unit 1 │ unit 2 │ ...
                 ▼        ▼        ▼
    contents    c_0      c_1      c_2          c_i = SipHash(content key, tokens of unit i as int32)
                 ▼        ▼        ▼           e_i = SipHash(extra key, extra keys of unit i), where there are any
    chain    s ──┼────────┼────────┼──►        s   = SipHash(salt key, salt)
                 ▼        ▼        ▼
    digests     H_0      H_1      H_2          H_i = SipHash(chain key, s ‖ [e_0] c_0 ‖ ... ‖ [e_i] c_i)

A unit's rounds depend on each other, which leaves most of a core idle; contents do not depend on the chain, so that a
vector register holds a word of several units. What remains in sequence is four rounds a unit, whatever its size.

Every digest is SipHash itself, of a message that begins with everything before it: nothing about the construction needs
a new proof. Two prefixes share a digest only if contents, or digests under the secret chain key, collide: some 2^64
units are needed for one such pair. Contents, salt and extra keys have keys of their own, so that none can be passed off
as another.
"""

import numpy as np

from numba_ckpt._jit import host_loop, int64, uint64
from numba_ckpt.prefix_cache.siphash import sip_absorb, sip_finish, sip_last_word, sip_start

__all__ = ["CHAIN_WORDS", "hash_units_host", "hash_units_with_extras_host", "start_chain_host"]

CHAIN_WORDS = 5
"""A chain: the four state words, and how many message words they have absorbed."""

_LANES = 32
# 1 KiB of a unit at a time: memory is read in long runs, and a tile of all lanes stays in the nearest cache.
_TILE_WORDS = 128
_UNROLLED = 8
# Full vectors only: a loop over a few lanes more costs less than its scalar remainder.
_VECTOR_LANES = 4


@host_loop
def _pair(tokens, at, words, word, lane):  # type: ignore[no-untyped-def]
    """Write tokens `at` and `at` + 1 as one little-endian word; return their bits for the range check."""
    low, high = int64(tokens[at]), int64(tokens[at + uint64(1)])
    words[word, lane] = uint64(low) | (uint64(high) << uint64(32))
    return low | high


@host_loop
def _gather(tokens, start, stride, num_words, words, num_lanes):  # type: ignore[no-untyped-def]
    """Transpose a tile of tokens: word w of lane l is the pair of tokens at start + l * stride + 2 * w."""
    bits = int64(0)
    for lane in range(num_lanes):
        # Unsigned, for numba would look for a negative index at every access.
        at = uint64(start + lane * stride)
        for word in range(num_words):
            bits |= _pair(tokens, at + uint64(2 * word), words, word, lane)
    return bits


@host_loop
def _gather_pairs(pairs, start, stride, num_words, words, num_lanes):  # type: ignore[no-untyped-def]
    """Do the same for int32 tokens in units of an even length, which lie in memory as the words that they make."""
    bits = uint64(0)
    for lane in range(num_lanes):
        at = uint64(start + lane * stride)
        for first in range(0, num_words - _UNROLLED + 1, _UNROLLED):
            for word in range(first, first + _UNROLLED):
                words[word, lane] = pairs[at + uint64(word)]
                bits |= pairs[at + uint64(word)]
        for word in range(num_words // _UNROLLED * _UNROLLED, num_words):
            words[word, lane] = pairs[at + uint64(word)]
            bits |= pairs[at + uint64(word)]
    return int64((bits | (bits >> uint64(32))) & uint64(0xFFFFFFFF))


@host_loop
def _gather_last(tokens, start, unit, words, num_lanes):  # type: ignore[no-untyped-def]
    """Write the closing word of each lane, with the last token of an odd unit."""
    bits = int64(0)
    for lane in range(num_lanes):
        last = int64(tokens[start + (lane + 1) * unit - 1]) if unit & 1 else int64(0)
        bits |= last
        words[0, lane] = sip_last_word(last, 4 * unit)
    return bits


@host_loop
def _start_lanes(lanes, key_0, key_1):  # type: ignore[no-untyped-def]
    v0, v1, v2, v3 = sip_start(key_0, key_1)
    lanes[0], lanes[1], lanes[2], lanes[3] = v0, v1, v2, v3


@host_loop
def _absorb_lanes(lanes, words, num_words, num_lanes):  # type: ignore[no-untyped-def]
    for word in range(num_words):
        for lane in range(num_lanes):
            v0, v1, v2, v3 = lanes[0, lane], lanes[1, lane], lanes[2, lane], lanes[3, lane]
            v0, v1, v2, v3 = sip_absorb(v0, v1, v2, v3, words[word, lane])
            lanes[0, lane], lanes[1, lane], lanes[2, lane], lanes[3, lane] = v0, v1, v2, v3


@host_loop
def _finish_lanes(lanes, num_lanes):  # type: ignore[no-untyped-def]
    """Replace the first two state words of each lane by its digest."""
    for lane in range(num_lanes):
        low, high = sip_finish(lanes[0, lane], lanes[1, lane], lanes[2, lane], lanes[3, lane])
        lanes[0, lane], lanes[1, lane] = low, high


@host_loop
def _absorb_pair(chain, low, high):  # type: ignore[no-untyped-def]
    v0, v1, v2, v3 = chain[0], chain[1], chain[2], chain[3]
    v0, v1, v2, v3 = sip_absorb(v0, v1, v2, v3, low)
    v0, v1, v2, v3 = sip_absorb(v0, v1, v2, v3, high)
    chain[0], chain[1], chain[2], chain[3] = v0, v1, v2, v3
    chain[4] += uint64(2)


@host_loop
def start_chain_host(chain, key, salt):  # type: ignore[no-untyped-def]
    """Start a chain (uint64 [5], overwritten) under a key, with the digest of a salt; both uint64 [2]."""
    chain[0], chain[1], chain[2], chain[3] = sip_start(key[0], key[1])
    chain[4] = uint64(0)
    _absorb_pair(chain, salt[0], salt[1])


@host_loop
def _chain_lanes(chain, first_unit, extras, lanes, words, num_lanes):  # type: ignore[no-untyped-def]
    """Absorb the contents in the lanes one after another, and leave the chain after each in their place."""
    extra_units, extra_digests, next_extra = extras
    for lane in range(num_lanes):
        if next_extra < extra_units.size and extra_units[next_extra] == first_unit + lane:
            _absorb_pair(chain, extra_digests[next_extra, 0], extra_digests[next_extra, 1])
            next_extra += 1
        _absorb_pair(chain, lanes[0, lane], lanes[1, lane])
        for word in range(4):
            lanes[word, lane] = chain[word]
        words[0, lane] = sip_last_word(0, uint64(8) * chain[4])
    return next_extra


@host_loop
def _hash_contents(tokens, start, unit, lanes, words, num_lanes, padded):  # type: ignore[no-untyped-def]
    """Leave the content digests of the units from token `start` on in the lanes; return all tokens' bits."""
    bits = int64(0)
    num_pairs = unit // 2
    pairs = tokens[: tokens.size // 2 * 2].view(np.uint64)
    for first in range(0, num_pairs, _TILE_WORDS):
        num_words = min(_TILE_WORDS, num_pairs - first)
        if tokens.itemsize == 4 and unit & 1 == 0:
            bits |= _gather_pairs(pairs, start // 2 + first, num_pairs, num_words, words, num_lanes)
        else:
            bits |= _gather(tokens, start + 2 * first, unit, num_words, words, num_lanes)
        _absorb_lanes(lanes, words, num_words, padded)
    bits |= _gather_last(tokens, start, unit, words, num_lanes)
    _absorb_lanes(lanes, words, 1, padded)
    _finish_lanes(lanes, padded)
    return bits


@host_loop
def hash_units_with_extras_host(tokens, unit, content_key, chain, digests, extra_units, extra_digests):  # type: ignore[no-untyped-def]
    """Hash the whole units of some tokens in one pass; return the OR of all tokens, for a range check.

    Parameters
    ----------
    tokens : ndarray
        int32 or int64 [T], contiguous; the T % unit last ones are only looked at for the range check.
    unit : int
        Tokens of a unit, at least 1.
    content_key : ndarray
        uint64 [2].
    chain : ndarray
        uint64 [5], advanced past the whole units.
    digests : ndarray
        uint64 [T // unit, 2], overwritten.
    extra_units, extra_digests : ndarray
        int64 [E] ascending, uint64 [E, 2]: what the chain absorbs before some of the units.
    """
    lanes, words = np.empty((4, _LANES), np.uint64), np.empty((_TILE_WORDS, _LANES), np.uint64)
    num_units, bits, next_extra = digests.shape[0], int64(0), 0
    for first_unit in range(0, num_units, _LANES):
        num_lanes = min(_LANES, num_units - first_unit)
        padded = -(-num_lanes // _VECTOR_LANES) * _VECTOR_LANES
        _start_lanes(lanes, content_key[0], content_key[1])
        bits |= _hash_contents(tokens, first_unit * unit, unit, lanes, words, num_lanes, padded)
        extras = extra_units, extra_digests, next_extra
        next_extra = _chain_lanes(chain, first_unit, extras, lanes, words, num_lanes)
        _absorb_lanes(lanes, words, 1, padded)
        _finish_lanes(lanes, padded)
        for lane in range(num_lanes):
            digests[first_unit + lane, 0], digests[first_unit + lane, 1] = lanes[0, lane], lanes[1, lane]
    for at in range(num_units * unit, tokens.size):
        bits |= int64(tokens[at])
    return bits


@host_loop
def hash_units_host(tokens, unit, content_key, chain, digests):  # type: ignore[no-untyped-def]
    """Do the same where no unit mixes in anything but its tokens."""
    no_units, no_digests = np.empty(0, np.int64), np.empty((0, 2), np.uint64)
    return hash_units_with_extras_host(tokens, unit, content_key, chain, digests, no_units, no_digests)
