"""Keeps pages from changes if the console is read-only (`tiered.console.read.only`).

A browser names the page that makes a request: Origin comes with each request that changes something, and a page cannot
leave it out. Scripts and other clients send neither header, and go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered_api.http.exchange.errors import NOT_AUTHORIZED, HttpError

SETTING = "tiered.console.read.only"
READS = ("GET", "HEAD")


def check_read_only(method: str, headers: Mapping[str, str]) -> None:
    """Raises `HttpError` 403 for a request of a page that may change something."""
    if method not in READS and ("Origin" in headers or headers.get("Sec-Fetch-Site", "none") != "none"):
        raise HttpError(NOT_AUTHORIZED, f"the console is read-only ({SETTING}): use a command or a script")
