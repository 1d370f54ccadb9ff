"""`tiered serve --open`: a browser on this machine that shows a page of the console."""

from __future__ import annotations

import os
import sys
import webbrowser
from threading import Thread
from urllib.parse import quote

from tiered_api.cli.output import print_error


def open_console(url: str, page: str) -> None:
    """Opens a page of the console at the address of a broker's HTTP. A machine without a browser for windows gets a
    line on the error stream: a browser that needs the terminal would take it from the broker's log."""
    address = f"{url}/console/{quote(page.lstrip('/'), safe='/?&=')}"
    if not _has_windows():
        print_error(f"no browser opens here; the page is {address}")
        return
    # A browser that is not running yet may hold its caller up.
    Thread(target=webbrowser.open, args=[address], name="browser", daemon=True).start()


def _has_windows() -> bool:
    """True if a browser has a window here, or the user has named one."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)
