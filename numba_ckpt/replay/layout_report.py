"""What ``numba-ckpt layout`` prints: groups, pages, strides and memory of a model's caches."""

from typing import Any

from numba_ckpt.cache import KVCacheGroup, StateSpec
from numba_ckpt.replay._extras import require
from numba_ckpt.replay.console import make_console, make_table
from numba_ckpt.replay.layout_config import LayoutPlan, plan_layout, read_layout_config
from numba_ckpt.replay.layout_plot import write_memory_map
from numba_ckpt.replay.plot import check_picture_name

__all__ = ["layout"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def layout(path: str, plot_path: str | None = None) -> None:
    """Print how the caches of a configuration file are laid out, and draw them if asked to.

    Raises
    ------
    NumbaCkptError, OSError
        What reading, planning and drawing raise; nothing is printed then.
    """
    require("rich", "this command")
    if plot_path is not None:
        require("matplotlib", "this command")
        check_picture_name(plot_path)
    plan = plan_layout(read_layout_config(path))
    console = make_console()
    for table in (_groups(plan), _views(plan), _tensors(plan)):
        console.print(table)
    console.print(_summary(plan))
    if plot_path is not None:
        write_memory_map(plot_path, plan)
        console.print(f"Memory map in {plot_path}", soft_wrap=True)


def human_bytes(size: float) -> str:
    """Return a size in the largest unit that leaves a number of 1 or more.

    Examples
    --------
    >>> human_bytes(1536), human_bytes(12)
    ('1.5 KiB', '12 B')
    """
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {_UNITS[unit]}" if unit else f"{size:g} B"


def _kind(group: KVCacheGroup) -> str:
    return type(group.spec).__name__.removesuffix("Spec")


def _groups(plan: LayoutPlan) -> Any:
    """One row for each group: what shares a block table."""
    config, engine = plan.memory.kv_cache_config, plan.config.engine
    columns = {"group": "right", "kind": "left", "layers": "left", "block": "right", "kernel_block": "right"}
    columns |= {"page": "right", "padding": "right", "columns": "right", "longest_request": "right"}
    table = make_table(f"{len(config.groups)} groups share {config.num_blocks:,} blocks", **columns)
    for index, (group, size) in enumerate(zip(config.groups, plan.kernel_block_sizes, strict=True)):
        names = [f"{name} → {plan.shared[name]}" if name in plan.shared else name for name in group.layer_names]
        spec = group.spec
        block = spec.block_size
        table.add_row(
            str(index),
            _kind(group),
            "\n".join(names),
            f"{block:,}",
            "–" if isinstance(spec, StateSpec) else f"{size or block:,}",
            f"{spec.page_size_bytes:,} B",
            f"{spec.page_size_bytes - spec.data_size_bytes:,} B",
            f"{spec.block_table_width(engine):,}",
            human_bytes(spec.max_memory_bytes(engine)),
        )
    return table


def _views(plan: LayoutPlan) -> Any:
    """One row for each view: how a layer addresses its cache."""
    columns = {"layer": "left", "view": "left", "dtype": "left", "offset": "right", "strides": "left"}
    table = make_table(
        f"Views, layout {plan.config.engine.cache.layout}: shape, and bytes from one to the next", **columns
    )
    for name, memory in plan.memory.layers.items():
        axes = "blocks × state" if memory.is_state else "blocks × heads × tokens × content"
        for view in memory.views:
            shape = " × ".join(f"{size:,}" for size in view.shape)
            strides = " × ".join(f"{stride:,}" for stride in view.strides)
            table.add_row(name, f"{shape}  ({axes})", view.dtype.name, f"{view.offset:,} B", strides)
    return table


def _tensors(plan: LayoutPlan) -> Any:
    """One row for each tensor: which layers lie in the same bytes."""
    table = make_table(
        "Tensors: layers of different groups in the same bytes", tensor="right", size="right", layers="left"
    )
    for index, tensor in enumerate(plan.memory.kv_cache_config.tensors):
        table.add_row(str(index), human_bytes(tensor.size_bytes), ", ".join(tensor.layer_names))
    return table


def _summary(plan: LayoutPlan) -> str:
    config, engine = plan.memory.kv_cache_config, plan.config.engine
    needed = sum(group.spec.max_blocks(engine) for group in config.groups)
    fits = (config.num_blocks - 1) // needed if needed else 0
    return (
        f"{human_bytes(plan.memory.size_bytes)} in one allocation. A request of {engine.limits.max_model_len:,} tokens "
        f"holds at most {needed:,} blocks: {fits:,} such requests fit."
    )
