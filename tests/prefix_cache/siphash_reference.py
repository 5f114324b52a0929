"""SipHash-2-4-128 in plain Python integers, and the digests of a prompt's units as their definition has them."""

import struct

MASK = 2**64 - 1


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & MASK


def _rounds(state: list[int], count: int) -> None:
    a, b, c, d = state
    for _ in range(count):
        a, c = a + b & MASK, c + d & MASK
        b, d, a = _rotate(b, 13) ^ a, _rotate(d, 16) ^ c, _rotate(a, 32)
        c, a = c + b & MASK, a + d & MASK
        b, d, c = _rotate(b, 17) ^ c, _rotate(d, 21) ^ a, _rotate(c, 32)
    state[:] = a, b, c, d


def reference_siphash128(key: bytes, message: bytes) -> bytes:
    keys = struct.unpack("<2Q", key) * 2
    state = [k ^ c for k, c in zip(keys, struct.unpack(">4Q", b"somepseudorandomlygeneratedbytes"), strict=True)]
    state[1] ^= 0xEE
    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    digest = b""
    for lane, mark in ((2, 0xEE), (1, 0xDD)):
        state[lane] ^= mark
        _rounds(state, 4)
        digest += struct.pack("<Q", state[0] ^ state[1] ^ state[2] ^ state[3])
    return digest


def reference_digests(
    key: bytes, unit: int, tokens: list[int], salt: bytes, extra_keys: list[tuple[int, bytes]]
) -> list[bytes]:
    """Digests of the whole units: each is SipHash of the salt's digest and of all contents up to its unit."""
    keys = {
        name: reference_siphash128(key, f"numba_ckpt {name} {unit}".encode())
        for name in ("salt", "extra", "content", "chain")
    }
    message, digests = reference_siphash128(keys["salt"], salt), []
    for start in range(0, len(tokens) - unit + 1, unit):
        extras = sorted(pair for pair in extra_keys if start <= pair[0] < start + unit)
        if extras:
            encoded = b"".join(struct.pack("<QQ", at, len(content)) + content for at, content in extras)
            message += reference_siphash128(keys["extra"], encoded)
        message += reference_siphash128(keys["content"], struct.pack(f"<{unit}i", *tokens[start : start + unit]))
        digests.append(reference_siphash128(keys["chain"], message))
    return digests
