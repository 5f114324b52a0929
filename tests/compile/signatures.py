"""The argument types that every kernel of the registry is launched with.

One letter and a size name an element (``i8`` is int64, ``?`` a bool), ``[n]`` an array's dimensions. Index arrays are
all int32 or all int64; elements that are only moved are unsigned words of their size, signed ones of 8 bytes.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

INDICES = ("i4", "i8")
WORDS = ("u1", "u2", "u4", "i8")
# What a cache holds and what comes in: alike, or float32 that is rounded to 16 bits.
MOVES = [(word, word) for word in WORDS] + [("u2", "u4")]
NOTHING = ("u1", "u1")


class Signature(NamedTuple):
    """A kernel's argument types, as launched; `label` tells them from the op's others."""

    op: str
    label: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.op}-{self.label}"


TABLES = "i8[2] i4[1] i4[2]"
ARGUMENTS = {
    "apply_staged_writes": TABLES + " i8[2] {index}[1]",
    "gather_block_tables": TABLES + " {index}[1] {index}[1] i4[1] i8",
    "gather_state_indices": "{index}[2] {index}[1] {index}[1] i4[1]",
    "logits_start_loc": "{index}[1] {index}[1] {index}[1]",
    "running_state_indices": "{index}[2] {index}[1] {index}[1] {index}[1] i8 i8 i8 i8 i4[1] i4[2] ?[1]",
    "slot_mapping": TABLES + " {index}[1] {index}[1] {index}[1] i8[2] i8",
    "stage_logits_indices": "{index}[1] i4[1]",
    "token_to_req_indices": "{index}[1] i8 i4[1]",
}
MOVED_ARGUMENTS = {
    "copy_blocks": "{word}[1] i8[2] i8 {index}[1] {index}[1]",
    "zero_blocks": "{word}[1] i8[2] i8 {index}[1]",
}
EXPORT = (
    "{index}[1] {index}[1] {index}[1] {conv[0]}[3] {conv[1]}[2] {index}[1] {index}[1] {conv[0]}[3] {index}[1] "
    "{flag}[1] i8 i8 {states[0]}[2] {states[1]}[2] {index}[1] i8"
)


def _exports() -> Iterator[Signature]:
    pairs = [(("u2", "u2"), move) for move in MOVES] + [(move, ("u4", "u4")) for move in MOVES]
    pairs += [(NOTHING, ("u4", "u4")), (("u2", "u2"), NOTHING)]
    flags = {"i4": "?", "i8": "i8"}  # without flags an empty int64 array stands for them
    for (conv, states), index in zip(dict.fromkeys(pairs), cycle(INDICES), strict=False):
        label = "-".join((*map("<".join, (conv, states)), index))
        arguments = EXPORT.format(index=index, flag=flags[index], conv=conv, states=states)
        yield Signature("checkpoint_export", label, tuple(arguments.split()))


def _moves() -> Iterator[Signature]:
    for op, arguments in MOVED_ARGUMENTS.items():
        for word, index in zip(WORDS, cycle(INDICES), strict=False):
            yield Signature(op, f"{word}-{index}", tuple(arguments.format(word=word, index=index).split()))


def _others() -> Iterator[Signature]:
    for op, arguments in ARGUMENTS.items():
        for index in INDICES:
            yield Signature(op, index, tuple(arguments.format(index=index).split()))


SIGNATURES = sorted([*_exports(), *_moves(), *_others()])
"""Every signature, sorted by op."""
BULK = {"checkpoint_export", "copy_blocks", "gather_block_tables", "zero_blocks"}
"""Ops that move so many bytes that the width of an access decides how long they take."""
