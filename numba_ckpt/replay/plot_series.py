"""How a replay went, over its clock: share of prompt tokens spared, and who has the pool."""

from typing import Any

import numpy as np

from numba_ckpt.replay.options import ReplayOptions
from numba_ckpt.replay.series import Series

__all__ = ["draw_hits", "draw_pool"]

_HIT, _HELD, _IDLE, _STATES = "#4c9f70", "#3b6fb6", "#c3d4ea", "#d95f02"


def draw_hits(axes: Any, series: Series) -> None:
    """Draw the share of prompt tokens spared so far."""
    samples = series.samples
    seconds, tokens, hits = (
        np.array([getattr(sample, name) for sample in samples], float)
        for name in ("seconds", "input_tokens", "hit_tokens")
    )
    share = 100 * hits / np.maximum(tokens, 1)
    axes.plot(seconds, share, color=_HIT, linewidth=1.6)
    axes.fill_between(seconds, share, color=_HIT, alpha=0.25, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.set_title("Hit share so far", loc="left", fontsize=12)
    _finish(axes, seconds, "% of prompt tokens")


def draw_pool(axes: Any, series: Series, options: ReplayOptions) -> None:
    """Draw the blocks that requests hold, those that are only cached, and the states among both."""
    samples = series.samples
    seconds, held, idle, states = (
        np.array([getattr(sample, name) for sample in samples], float)
        for name in ("seconds", "held_blocks", "idle_blocks", "states")
    )
    axes.stackplot(seconds, held, idle, labels=("held by requests", "cached"), colors=(_HELD, _IDLE))
    axes.plot(seconds, states, color=_STATES, linewidth=1.6, label="states among them")
    if (held + idle).max(initial=0) > 0.5 * options.num_blocks:
        axes.axhline(options.num_blocks - 1, color="#888888", linewidth=0.8, linestyle="--", label="the pool")
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    axes.set_title("Pool", loc="left", fontsize=12)
    _finish(axes, seconds, "blocks")


def _finish(axes: Any, seconds: np.ndarray, what: str) -> None:
    axes.set_xlabel("seconds on the replay's clock")
    axes.set_ylabel(what)
    axes.set_xlim(0, max(seconds.max(initial=0), 1e-3))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 100 else f"{value:,.0f}")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
