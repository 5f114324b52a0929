"""A replay as a picture: one request (what a hit spared, its chunks, where its states lie), then all of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numba_ckpt._check import refuse
from numba_ckpt.replay._extras import require
from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.plot_series import draw_hits, draw_pool
from numba_ckpt.replay.result import RequestTimeline
from numba_ckpt.replay.series import Series
from numba_ckpt.rules import ceil_div, checkpoint_col, running_state_col

__all__ = ["check_picture_name", "choose_timeline", "write_picture"]

_HIT, _CHECKPOINT, _RUNNING, _EMPTY = "#4c9f70", "#d95f02", "#3b6fb6", "#f1f1ee"
_CHUNKS = ("#9db9dd", "#c3d4ea")
_MOST_CHUNKS = 4
_MOST_LABELLED_COLS = 40


def check_picture_name(path: str) -> None:
    """Refuse a file name whose suffix is no format that can be drawn.

    Raises
    ------
    ArgumentError
        There is no suffix, or an unknown one.
    """
    formats = require("matplotlib.backend_bases", "--plot").FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in formats:
        refuse("plot", "a file name that ends in .png, .svg or .pdf", path, "name it, say, timeline.png")


def choose_timeline(timelines: Sequence[RequestTimeline], number: int | None = None) -> RequestTimeline:
    """Return the timeline of request `number`, or of one that shows most: a hit, a checkpoint and several chunks.

    Raises
    ------
    ArgumentError
        There is no such request.
    """
    if number is None:
        return max(timelines, key=_interest)
    found = [timeline for timeline in timelines if timeline.number == number]
    if not found:
        refuse("plot_request", f"one of the {len(timelines)} requests replayed", number, "pick another number")
    return found[0]


def _interest(timeline: RequestTimeline) -> tuple[bool, bool, bool, float]:
    """Rank a request by what its picture would show, and then by how evenly hit and chunks share it."""
    return (
        timeline.num_hit_tokens > 0,
        timeline.chunks[-1].checkpoint > 0,
        1 < len(timeline.chunks) <= _MOST_CHUNKS,
        min(timeline.num_hit_tokens, timeline.num_tokens - timeline.num_hit_tokens) / timeline.num_tokens,
    )


def write_picture(path: str, timeline: RequestTimeline, series: Series, options: ReplayOptions) -> None:
    """Draw a request's timeline, and under it how the replay went, into a PNG (or whatever the suffix says).

    Parameters
    ----------
    path : str
        File to write.
    timeline : RequestTimeline
        The request.
    series : Series
        Hits and pool over time.
    options : ReplayOptions
        What was replayed.
    """
    require("matplotlib", "--plot").use("Agg")
    pyplot = require("matplotlib.pyplot", "--plot")
    figure = pyplot.figure(figsize=(12, 7.6), layout="constrained")
    try:
        grid = figure.add_gridspec(2, 2)
        _draw_timeline(figure.add_subplot(grid[0, :]), timeline, options.geometry.state_block_size)
        draw_hits(figure.add_subplot(grid[1, 0]), series)
        draw_pool(figure.add_subplot(grid[1, 1]), series, options)
        figure.savefig(path, dpi=150)
    finally:
        pyplot.close(figure)


def _draw_timeline(axes: Any, timeline: RequestTimeline, state_block_size: int) -> None:
    _draw_passes(axes, timeline)
    _draw_blocks(axes, timeline, state_block_size)
    _draw_checkpoints(axes, timeline)
    _label(axes, timeline, state_block_size)


def _draw_passes(axes: Any, timeline: RequestTimeline) -> None:
    if timeline.num_hit_tokens:
        axes.broken_barh([(0, timeline.num_hit_tokens)], (1.1, 0.8), facecolor=_HIT)
        _write(axes, 0, timeline.num_hit_tokens, timeline, f"hit\n{timeline.num_hit_tokens:,} tokens", "white")
    for index, chunk in enumerate(timeline.chunks):
        axes.broken_barh([(chunk.start, chunk.end - chunk.start)], (1.1, 0.8), facecolor=_CHUNKS[index % 2])
        text = f"step {chunk.step}\n{chunk.end - chunk.start:,}"
        _write(axes, chunk.start, chunk.end, timeline, text, "black")


def _write(axes: Any, start: int, end: int, timeline: RequestTimeline, text: str, color: str) -> None:
    """Write into a bar, if the bar is wide enough."""
    if end - start > 0.055 * timeline.num_tokens:
        axes.text((start + end) / 2, 1.5, text, ha="center", va="center", fontsize=9, color=color)


def _draw_blocks(axes: Any, timeline: RequestTimeline, state_block_size: int) -> None:
    num_cols = ceil_div(timeline.num_tokens, state_block_size)
    colors = dict(_stored_cols(timeline, state_block_size))
    for col in range(num_cols):
        start = col * state_block_size
        width = min(state_block_size, timeline.num_tokens - start)
        style = {"facecolor": colors.get(col, _EMPTY), "edgecolor": "white", "linewidth": 0.8}
        axes.broken_barh([(start, width)], (0.1, 0.6), **style)
        if num_cols <= _MOST_LABELLED_COLS and width > state_block_size / 2:
            color = "white" if col in colors else "#888888"
            axes.text(start + width / 2, 0.4, str(col), ha="center", va="center", fontsize=7, color=color)


def _stored_cols(timeline: RequestTimeline, state_block_size: int) -> Iterator[tuple[int, str]]:
    """Yield the block-table columns that have held a state of this request, and what kind of state."""
    if timeline.num_hit_tokens:
        yield running_state_col(timeline.num_hit_tokens, state_block_size), _HIT
    for chunk in timeline.chunks:
        yield running_state_col(chunk.end, state_block_size), _RUNNING
        if chunk.checkpoint:
            yield checkpoint_col(chunk.end, state_block_size), _CHECKPOINT


def _draw_checkpoints(axes: Any, timeline: RequestTimeline) -> None:
    for chunk in timeline.chunks:
        if chunk.checkpoint:
            axes.plot([chunk.checkpoint] * 2, [0.1, 2.0], color=_CHECKPOINT, linewidth=1.6)
    last = timeline.chunks[-1].checkpoint
    if last:
        text = f"checkpoint at {last:,}"
        side = "right" if 2 * last > timeline.num_tokens else "left"
        axes.annotate(text, (last, 2.0), (0, 4), textcoords="offset points", ha=side, fontsize=9, color=_CHECKPOINT)


def _label(axes: Any, timeline: RequestTimeline, state_block_size: int) -> None:
    patch = require("matplotlib.patches", "--plot").Patch
    names = {"state resumed from": _HIT, "running state": _RUNNING, "checkpoint": _CHECKPOINT, "no state": _EMPTY}
    handles = [patch(facecolor=color, edgecolor="#cccccc", label=name) for name, color in names.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(handles), frameon=False)
    axes.set_title(f"Request {timeline.number}: {timeline.num_tokens:,} prompt tokens", loc="left", fontsize=12)
    axes.set_xlabel("token position")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_yticks([1.5, 0.4], ["passes", f"state blocks\n({state_block_size:,} tokens each)"])
    axes.set_xlim(0, timeline.num_tokens)
    axes.set_ylim(0, 2.3)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
