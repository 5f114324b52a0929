"""Draw the pictures of the rules page, as SVG, from the rules themselves: `python docs/pictures/draw.py`.

A picture cannot contradict the code: tests/docs compares the files with what this draws.
"""

from collections.abc import Callable
from html import escape
from itertools import pairwise
from pathlib import Path

from numba_ckpt.planning import CheckpointGeometry, compute_chunk_layout, compute_prefill_checkpoints
from numba_ckpt.prefix_cache import PrefillProgress, SplitPolicy, split_prefill
from numba_ckpt.rules import checkpoint_col, checkpoint_position, conv_tap, running_state_col

FOLDER = Path(__file__).parent
INK, GREY, PAPER = "#263238", "#90a4ae", "#ffffff"
BLUE, GREEN, AMBER, PALE = "#90caf9", "#a5d6a7", "#ffcc80", "#eceff1"
WIDTH = 760


class Canvas:
    """Boxes, labels and arrows on a white sheet; one scale from tokens to pixels."""

    def __init__(self, title: str, height: int, num_tokens: int) -> None:
        self.title, self.height = title, height
        self._per_token = (WIDTH - 60) / num_tokens
        self._parts: list[str] = []

    def x(self, token: float) -> float:
        """Pixel column of a token boundary."""
        return 30 + token * self._per_token

    def box(self, span: tuple[float, float], y: int, label: str = "", fill: str = PALE, height: int = 30) -> None:
        """A box over the tokens [start, end), with its label inside."""
        start, end = map(self.x, span)
        self._parts.append(
            f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{height}" fill="{fill}" stroke="{INK}"/>'
        )
        self.text((span[0] + span[1]) / 2, y + height // 2 + 5, label)

    def text(self, token: float, y: int, label: str, anchor: str = "middle") -> None:
        """A label at a token boundary."""
        place = f'x="{self.x(token):.1f}" y="{y}" fill="{INK}" text-anchor="{anchor}"'
        self._parts.append(f"<text {place}>{escape(label)}</text>")

    def mark(self, token: float, top: int, bottom: int, label: str = "") -> None:
        """A vertical line at a token boundary, with its label under it."""
        x = self.x(token)
        self._parts.append(f'<path d="M{x:.1f} {top}V{bottom}" stroke="{INK}" stroke-dasharray="4 3"/>')
        self.text(token, bottom + 16, label)

    def arrow(self, start: tuple[float, int], end: tuple[float, int]) -> None:
        """A curved arrow between two places, each a token boundary and a height."""
        (x0, y0), (x1, y1) = (self.x(start[0]), start[1]), (self.x(end[0]), end[1])
        middle = (y0 + y1) / 2
        self._parts.append(
            f'<path d="M{x0:.1f} {y0}C{x0:.1f} {middle:.0f} {x1:.1f} {middle:.0f} {x1:.1f} {y1}" '
            f'fill="none" stroke="{INK}" marker-end="url(#tip)"/>'
        )

    def svg(self) -> str:
        """The whole picture."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" '
            f'font-family="sans-serif" font-size="13"><title>{escape(self.title)}</title>'
            '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
            f'<path d="M0 0L9 4L0 8z" fill="{INK}"/></marker></defs>'
            f'<rect width="{WIDTH}" height="{self.height}" fill="{PAPER}"/>'
        )
        return "\n".join([head, *self._parts, "</svg>\n"])


def draw_columns() -> Canvas:
    """Which state of a query ends up in which column of the block table."""
    start, end, block, unit = 512, 2000, 512, 128
    position, col = int(checkpoint_position(end, unit, False, 0)), int(checkpoint_col(end, block))
    initial, running = int(running_state_col(start, block)), int(running_state_col(end, block))
    canvas = Canvas("States of one query and the columns they are kept in", 250, 2048)
    canvas.text(0, 24, f"one sequence; the step computes tokens [{start}, {end})", anchor="start")
    canvas.box((0, start), 36, "computed before", GREY)
    canvas.box((start, end), 36, "this query", BLUE)
    canvas.mark(start, 66, 84, f"{start}")
    canvas.mark(position, 36, 84)
    canvas.text(position, 100, f"checkpoint position {position}", anchor="end")
    canvas.text(end - 40, 100, f"{end}", anchor="start")
    canvas.text(0, 240, f"block table of the row, {block} tokens to a column", anchor="start")
    kept = {initial: "initial state, only read", col: "checkpoint", running: "running state"}
    fills = {initial: GREY, col: GREEN, running: AMBER}
    for column in range(running + 1):
        span = (column * block, (column + 1) * block)
        canvas.box(span, 170, f"{column}: {kept.get(column, 'free')}", fills.get(column, PALE), 40)
    canvas.arrow(((initial + 0.5) * block, 168), (start, 112))
    canvas.arrow((position, 106), ((col + 0.5) * block, 166))
    canvas.arrow((end, 106), ((running + 0.5) * block, 166))
    return canvas


def draw_eagle() -> Canvas:
    """Where the boundary lies with and without the EAGLE block dropped."""
    unit, num_tokens = 8, 37
    canvas = Canvas("The checkpoint position, with and without the EAGLE block", 190, 40)
    canvas.text(0, 24, f"{num_tokens} tokens, unit {unit}", anchor="start")
    for index in range(5):
        canvas.box(
            (index * unit, min((index + 1) * unit, num_tokens)), 36, f"unit {index}", PALE if index < 4 else GREY
        )
    for row, (dropped, note) in enumerate(((False, "kept whole units"), (True, "EAGLE block dropped"))):
        y = 86 + 50 * row
        position = int(checkpoint_position(num_tokens, unit, dropped, 0))
        canvas.box((0, position), y, f"{note}: position {position}", GREEN)
        if dropped:
            canvas.box((position, position + unit), y, "given up", AMBER)
    return canvas


def draw_window() -> Canvas:
    """The taps of a convolution window whose checkpoint comes before the window is full."""
    state_len, offset = 3, 2
    canvas = Canvas("Taps of a convolution window", 220, 11)
    canvas.text(0, 24, "the row's window before the query", anchor="start")
    canvas.text(state_len + 1, 24, "the row's tokens in the query", anchor="start")
    place = {tap: (tap + state_len if tap < 0 else tap + state_len + 1) for tap in range(-state_len, 7)}
    for tap, at in place.items():
        canvas.box((at, at + 0.94), 36, f"tap {tap}" if tap < 0 else f"token {tap}", GREY if tap < 0 else BLUE)
    canvas.mark(place[offset] - 0.03, 30, 92)
    canvas.text(place[offset] + 0.1, 92, f"checkpoint at offset {offset}", anchor="start")
    for slot in range(state_len):
        at = place[int(conv_tap(slot, offset, state_len))] + 0.47
        canvas.box((2 + 2 * slot, 3.6 + 2 * slot), 170, f"slot {slot}", GREEN)
        canvas.arrow((at, 68), (2.8 + 2 * slot, 166))
    return canvas


def draw_chunks() -> Canvas:
    """How a checkpoint cuts the chunks of one row."""
    computed, num_tokens, chunk_size, offset = 20, 36, 16, 21
    canvas = Canvas("Chunks of one row, with and without a checkpoint", 200, computed + num_tokens + 2)
    heading = f"{computed} tokens computed before, {num_tokens} in the query, chunk size {chunk_size}"
    canvas.text(0, 24, heading, anchor="start")
    for y, note, offsets in ((44, "without", None), (104, "with a checkpoint", [offset])):
        layout = compute_chunk_layout([computed], [0, num_tokens], chunk_size, offsets)
        edges = [computed + int(edge) for edge in layout.cu_chunk_seqlens]
        canvas.box((0, computed), y, note, GREY)
        for index, span in enumerate(pairwise(edges)):
            here = index == int(layout.checkpoint_chunk_indices[0])
            canvas.box(span, y, f"chunk {index}", GREEN if here else BLUE)
    for token in (0, 16, 32, 48):
        canvas.mark(token, 38, 160, f"{token}")
    canvas.text(computed + offset, 160, f"checkpoint, offset {offset}")
    return canvas


def _chunk_ends(policy: SplitPolicy, num_tokens: int, junction: int) -> list[int]:
    ends = [0]
    while ends[-1] < num_tokens:
        progress = PrefillProgress(ends[-1], num_tokens, num_tokens, junction)
        ends.append(ends[-1] + split_prefill(progress, num_tokens - ends[-1], policy))
    return ends


def draw_split() -> Canvas:
    """Where the chunks of one prefill end, for three askers."""
    num_tokens, block, junction = 700, 256, 300
    canvas = Canvas("Where the chunks of a prefill end", 264, num_tokens + 20)
    canvas.text(0, 24, f"{num_tokens} tokens, state blocks of {block}, hash blocks of 16", anchor="start")
    for y, note, alignment, at in (
        (58, "stops at the last block and at the tail", None, 0),
        (118, f"and in front of a junction at {junction}", None, junction),
        (178, "with a checkpoint inside the chunk", 16, 0),
    ):
        geometry = CheckpointGeometry(16, block, 16, checkpoint_alignment=alignment)
        canvas.text(0, y - 8, note, anchor="start")
        for start, end in pairwise(_chunk_ends(SplitPolicy(geometry, 1024), num_tokens, at)):
            canvas.box((start, end), y, f"{start}–{end}" if end - start > 50 else "", BLUE)
            offset = int(compute_prefill_checkpoints([end], [end - start], geometry).offsets[0])
            if offset:
                canvas.box((start + offset, end), y, "", GREEN)
    for token, label in ((0, "0"), (block, f"{block}"), (2 * block, f"{2 * block}"), (688, "688")):
        canvas.mark(token, 52, 228, label)
    return canvas


FLOORS = (
    ("cli.py, replay/", "traces in, numbers and pictures out", AMBER),
    ("models/", "small recurrent layers that prove the states right", PALE),
    ("prefix_cache/", "which prompts share a prefix, which block holds the state at its end", PALE),
    ("attention/", "layers to groups, and what each layer reads in a step", PALE),
    ("checkpoint/", "where the checkpoints of a step go, and the exporters that write them", GREEN),
    ("cache/", "what layers cache, where it lies, who owns which block", BLUE),
    ("kernels/", "array operations: host loop, CUDA kernel and launcher", BLUE),
    ("planning/", "lengths of a batch in, a plan out; on the host", BLUE),
    ("rules/", "scalars in, scalars out; each formula once", BLUE),
)


def draw_floors() -> Canvas:
    """The package from top to bottom; a floor imports only from those under it."""
    canvas = Canvas("The floors of the package", 40 * len(FLOORS) + 20, 100)
    for index, (folder, purpose, fill) in enumerate(FLOORS):
        y = 10 + 40 * index
        canvas.box((0, 24), y, folder, fill, 34)
        canvas.box((24, 100), y, purpose, PAPER, 34)
    return canvas


PICTURES: dict[str, Callable[[], Canvas]] = {
    "chunks": draw_chunks,
    "columns": draw_columns,
    "eagle": draw_eagle,
    "floors": draw_floors,
    "split": draw_split,
    "window": draw_window,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg())
