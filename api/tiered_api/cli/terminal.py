"""The terminal of a person: what may be drawn there, and the package that draws (rich, the extra `cli`).

Commands that draw nothing do not import it. Output in pipes and files is text for programs: nothing is drawn there.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

from tiered_api.cli.output import print_error

if TYPE_CHECKING:
    from rich.console import Console

INSTALL = "pip install '.[cli]' in tiered's source folder"
WIDTH_MAX = 160
"""Columns of a picture at most: a wider one is no clearer."""


def is_terminal(stream: TextIO) -> bool:
    """True if a person sees the stream on a terminal that can be drawn on."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def describe_missing(what: str) -> str:
    """Returns one sentence on the missing package and how to install it; empty if it is there."""
    return "" if find_spec("rich") is not None else f"{what}: the Python package rich is missing: {INSTALL}"


def can_draw(stream: TextIO, what: str, option: str) -> bool:
    """True if a picture can be drawn on the stream. Without the package, a line says how to install it, and the option
    that ends the line."""
    if not is_terminal(stream):
        return False
    lack = describe_missing(what)
    if lack:
        print_error(f"{lack}, or use {option}")
    return not lack


def open_console(stream: TextIO) -> Console:
    """Returns the terminal behind a stream, for drawing. It does not colour words by itself."""
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)
