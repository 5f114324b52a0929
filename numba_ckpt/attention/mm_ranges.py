"""Which tokens of images and videos see each other both ways: ranges of positions, for the whole batch in one array.

A feature's mask is read once, when the feature is made; a step only puts the ranges of its batch together::

    positions     10  11  12  13  14  15  16  17           a feature at offset 11, length 6
    is_embed           0   1   1   0   1   1               ranges [12, 13] and [15, 16]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np

from numba_ckpt._check import INT32_MAX, check_array, check_bool, check_int, check_kind, check_shape, describe, refuse
from numba_ckpt._jit import host_loop
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["MMFeature", "MMPrefixRanges", "compute_mm_prefix_ranges"]

BIDIRECTIONAL_MODALITIES = frozenset({"image", "video"})
NO_RANGES = np.empty((0, 2), np.int32)
RANGE_BYTES = 8


@dataclass(frozen=True, eq=False, slots=True)
class MMFeature:
    """An image, a video, a sound: tokens of a prompt that a multimodal encoder fills.

    Parameters
    ----------
    modality : str
        Only ``"image"`` and ``"video"`` are attended to both ways.
    offset : int
        Position of its first token.
    length : int
        Its tokens, at least 1.
    is_embed : ndarray, optional
        bool [length], which of them stand for embeddings; the others are text between them. All by default. Copied
        when the record is made.

    Attributes
    ----------
    longest : int
        Tokens of the longest of its `ranges`; 0 without any, as in other modalities.
    packed : bytes
        The bytes of `ranges`, which put together are those of a batch.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Wrong types, a negative offset, an end beyond int32, or a mask of another length.

    Examples
    --------
    >>> import numpy as np
    >>> MMFeature("image", offset=11, length=6, is_embed=np.array([0, 1, 1, 0, 1, 1], bool)).ranges.tolist()
    [[12, 13], [15, 16]]
    """

    modality: str
    offset: int
    length: int
    is_embed: np.ndarray | None = field(default=None, repr=False)
    longest: int = field(init=False, repr=False)
    packed: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.modality, str):
            got, do = repr(self.modality), "name it, such as 'image'"
            refuse("modality", "a string", got, do, ArgumentTypeError)
        offset = check_int("offset", self.offset, 0)
        length = check_int("length", self.length, 1, INT32_MAX - offset)
        if self.is_embed is not None:
            _check_mask(self.is_embed, length)
            object.__setattr__(self, "is_embed", self.is_embed.copy())
        ranges, longest = _ranges_of(self.modality, offset, length, self.is_embed)
        for name, value in {"offset": offset, "length": length, "longest": longest}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "packed", ranges.tobytes())

    @property
    def ranges(self) -> np.ndarray:
        """Return first and last position of each run of embeddings, int32 [R, 2]."""
        return _unpacked(self.packed)


def _unpacked(packed: bytes) -> np.ndarray:
    return np.frombuffer(packed, np.int32).reshape(-1, 2)


def _check_mask(is_embed: Any, length: int) -> None:
    if not isinstance(is_embed, np.ndarray):
        do = "pass a NumPy array on the host"
        refuse("is_embed", "a bool array", describe(is_embed), do, ArgumentTypeError)
    check_array("is_embed", is_embed, 1, "b")
    check_shape("is_embed", is_embed, (length,), "it has one flag for each token")


def _ranges_of(modality: str, offset: int, length: int, is_embed: np.ndarray | None) -> tuple[np.ndarray, int]:
    if modality not in BIDIRECTIONAL_MODALITIES:
        return NO_RANGES, 0
    if is_embed is None:
        return np.array([[offset, offset + length - 1]], np.int32), length
    # The scan writes one edge beyond the last that it keeps.
    space = np.empty((length // 2 + 1, 2), np.int32)
    num_ranges, longest = _find_runs(is_embed, offset, space)
    return space[:num_ranges], longest


class MMPrefixRanges(Mapping[int, list[tuple[int, int]]]):
    """The ranges of a batch, as arrays; as a mapping, from each row to its list of (first, last) positions.

    Attributes
    ----------
    ranges : ndarray
        int32 [R, 2], first and last position of each range, row after row.
    row_starts : ndarray
        int64 [N + 1], where each row's ranges begin.
    """

    __slots__ = ("ranges", "row_starts")

    def __init__(self, ranges: np.ndarray, row_starts: np.ndarray) -> None:
        self.ranges = ranges
        self.row_starts = row_starts

    def of(self, row: int) -> np.ndarray:
        """Return a row's ranges, a view int32 [R, 2].

        Raises
        ------
        ArgumentError, ArgumentTypeError
            No such row.
        """
        row = check_int("row", row, 0, len(self) - 1)
        return self.ranges[self.row_starts[row] : self.row_starts[row + 1]]

    def __getitem__(self, row: Any) -> list[tuple[int, int]]:
        if not isinstance(row, (int, np.integer)) or not 0 <= row < len(self):
            raise KeyError(row)
        return [(first, last) for first, last in self.of(int(row)).tolist()]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self.row_starts.size - 1

    def __repr__(self) -> str:
        return f"MMPrefixRanges({dict(self)})"


@host_loop
def _find_runs(mask, offset, ranges):  # type: ignore[no-untyped-def]
    """Write the inclusive ranges of set flags; return how many, and the tokens of the longest."""
    # Every change of the flag is a start or an end, one after the other: written without a branch, kept by counting.
    edges = ranges.reshape(-1)
    num_edges, before = 0, False
    for index in range(mask.size):
        edges[num_edges] = offset + index - before
        num_edges += mask[index] != before
        before = mask[index]
    if before:
        edges[num_edges] = offset + mask.size - 1
        num_edges += 1
    longest = 0
    for run in range(num_edges // 2):
        longest = max(longest, ranges[run, 1] - ranges[run, 0] + 1)
    return num_edges // 2, longest


def compute_mm_prefix_ranges(
    req_ids: Sequence[str],
    mm_features: Mapping[str, Sequence[MMFeature]],
    sliding_window: int | None = None,
    kernel_clamps: bool = False,
) -> MMPrefixRanges:
    """Put together which tokens of a batch's images and videos see each other both ways.

    Parameters
    ----------
    req_ids : sequence of str
        The batch's requests, in order.
    mm_features : mapping of str to sequence of MMFeature
        By request; requests without features may be left out.
    sliding_window : int, optional
        Tokens that a layer's window spans. Ranges longer than that are left out: their first tokens would see beyond
        the window.
    kernel_clamps : bool
        Keep them all the same, for kernels that apply the window to ranges too. Without, a long image is causal only.

    Returns
    -------
    MMPrefixRanges
        Inclusive ranges of positions, for each row.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A window below 1, or something that is no feature.

    Examples
    --------
    >>> mm_features = {"a": [MMFeature("image", 4, 1120)], "b": [MMFeature("video", 8, 3), MMFeature("audio", 20, 4)]}
    >>> dict(compute_mm_prefix_ranges(["b", "a", "c"], mm_features))
    {0: [(8, 10)], 1: [(4, 1123)], 2: []}
    >>> dict(compute_mm_prefix_ranges(["b", "a"], mm_features, sliding_window=1024))
    {0: [(8, 10)], 1: []}
    """
    window = INT32_MAX if sliding_window is None else check_int("sliding_window", sliding_window, 1)
    check_bool("kernel_clamps", kernel_clamps)
    check_kind("mm_features", mm_features, Mapping)
    rows: list[Any] = [mm_features.get(req_id, ()) for req_id in req_ids]
    try:
        features = [feature for row in rows for feature in row]
    except TypeError:
        wrong = ", ".join(sorted({type(row).__name__ for row in rows if not hasattr(row, "__iter__")}))
        refuse("mm_features", "a list of features by request", wrong, "put them in lists", ArgumentTypeError)
    try:
        packed = list(map(attrgetter("packed"), features))
    except AttributeError:
        got = {type(feature).__name__ for feature in features} - {"MMFeature"}
        refuse("mm_features", "records of MMFeature", ", ".join(sorted(got)), "make these records", ArgumentTypeError)
    if not kernel_clamps and max(map(attrgetter("longest"), features), default=0) > window:
        packed = [_within(feature, window) for feature in features]
    # Few calls over flat lists: in a batch with many small images, each call per image would show.
    feature_starts = np.fromiter(accumulate(map(len, packed), initial=0), np.int64, len(features) + 1)
    row_starts = feature_starts[list(accumulate(map(len, rows), initial=0))] // RANGE_BYTES
    return MMPrefixRanges(_unpacked(b"".join(packed)), row_starts)


def _within(feature: MMFeature, window: int) -> bytes:
    if feature.longest <= window:
        return feature.packed
    ranges = feature.ranges
    kept: np.ndarray = ranges[ranges[:, 1] - ranges[:, 0] < window]
    return kept.tobytes()
