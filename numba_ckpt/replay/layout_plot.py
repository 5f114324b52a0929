"""The memory map of a model's caches: tensors from top to bottom, and whose page a block can be."""

from typing import Any

from numba_ckpt.cache import KVCacheConfig, KVCacheTensor
from numba_ckpt.replay._extras import require
from numba_ckpt.replay.layout_config import LayoutPlan

__all__ = ["write_memory_map"]

_COLORS = ("#3b6fb6", "#d95f02", "#4c9f70", "#8a5fb0", "#b6933b", "#6b6b6b")
_PADDING = "#e4e4df"
_MOST_TENSORS = 40


def write_memory_map(path: str, plan: LayoutPlan) -> None:
    """Draw one page of every tensor, as each group of layers uses it, into a PNG (or whatever the suffix says).

    Parameters
    ----------
    path : str
        File to write.
    plan : LayoutPlan
        What to draw; of more than 40 tensors, the first 40.
    """
    require("matplotlib", "--plot").use("Agg")
    pyplot = require("matplotlib.pyplot", "--plot")
    config = plan.memory.kv_cache_config
    tensors = config.tensors[:_MOST_TENSORS]
    figure = pyplot.figure(figsize=(11, 1.9 + 0.42 * sum(len(tensor.layer_names) for tensor in tensors)))
    figure.set_layout_engine("constrained")
    try:
        axes = figure.add_subplot()
        _draw_tensors(axes, config, tensors)
        _label(axes, plan, tensors)
        figure.savefig(path, dpi=150)
    finally:
        pyplot.close(figure)


def _colors(config: KVCacheConfig) -> dict[str, str]:
    """Return a colour for each kind of spec."""
    kinds = dict.fromkeys(type(config.spec_of(name)).__name__ for name in _cached_layers(config))
    return dict(zip(kinds, _COLORS * 2, strict=False))


def _cached_layers(config: KVCacheConfig) -> list[str]:
    return [name for tensor in config.tensors for name in tensor.layer_names]


def _draw_tensors(axes: Any, config: KVCacheConfig, tensors: tuple[KVCacheTensor, ...]) -> None:
    """One lane for each layer; lanes of one tensor stand together, for they are the same bytes."""
    lane, ticks, colors = 0.0, [], _colors(config)
    for index, tensor in enumerate(tensors):
        first = lane
        for name in tensor.layer_names:
            spec, group = config.spec_of(name), config.groups.index(config.group_of(name))
            page, data = spec.page_size_bytes, spec.data_size_bytes
            axes.broken_barh([(0, data)], (lane, 0.86), facecolor=colors[type(spec).__name__])
            axes.broken_barh([(data, page - data)], (lane, 0.86), facecolor=_PADDING, hatch="///", edgecolor="white")
            axes.text(page * 0.01, lane + 0.43, f"group {group}: {name}", va="center", fontsize=8, color="white")
            lane += 1
        ticks.append(((first + lane) / 2 - 0.07, f"tensor {index}"))
        lane += 0.5
    axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    axes.set_ylim(lane, -0.4)
    axes.set_xlim(left=0)


def _label(axes: Any, plan: LayoutPlan, tensors: tuple[KVCacheTensor, ...]) -> None:
    config = plan.memory.kv_cache_config
    patch = require("matplotlib.patches", "--plot").Patch
    handles = [patch(facecolor=color, label=kind.removesuffix("Spec")) for kind, color in _colors(config).items()]
    handles.append(patch(facecolor=_PADDING, hatch="///", edgecolor="white", label="padding"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(handles), frameon=False)
    shown = "" if len(tensors) == len(config.tensors) else f", {len(tensors)} of {len(config.tensors)} tensors shown"
    axes.set_title(
        f"One block of {config.num_blocks:,}: the same bytes, whichever group it belongs to{shown}", loc="left"
    )
    axes.set_xlabel("bytes of a page")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
