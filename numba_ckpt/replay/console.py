"""Consoles and tables of the command line; everything that prints goes through rich or plain print."""

from typing import Any

from numba_ckpt.replay._extras import require

__all__ = ["make_console", "make_table"]

_PIPED_WIDTH = 160


def make_console(stderr: bool = False) -> Any:
    """Return a rich console; one that writes to a file or pipe emits no escape sequences and does not wrap early."""
    console = require("rich.console", "printing tables").Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPED_WIDTH)
    return console


def make_table(title: str, **columns: str) -> Any:
    """Return a rich table with these columns; each value is the column's justification."""
    box = require("rich.box", "printing tables")
    # Narrow terminals need the room that padding would take; the box's own gaps keep the columns apart.
    layout = {"box": box.SIMPLE_HEAD, "title_justify": "left", "collapse_padding": True, "pad_edge": False}
    table = require("rich.table", "printing tables").Table(title=title, **layout)
    for heading, justify in columns.items():
        table.add_column(heading.replace("_", " "), justify=justify)
    return table
