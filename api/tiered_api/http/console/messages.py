"""Keeps records from pages if the console shows none (`tiered.console.messages`).

A browser says of each read that a page makes where the page comes from, if the broker is reached by HTTPS or on its own
machine. Rights are another thing: a caller who may READ a topic reads it by a command or a script.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered_api.http.exchange.errors import NOT_AUTHORIZED, HttpError

SETTING = "tiered.console.messages"
READS = ("read_records", "v2_read_consumer")
"""The operations whose replies have records."""


def check_messages(operation: str, headers: Mapping[str, str]) -> None:
    """Raises `HttpError` 403 for a read of records that a page makes."""
    if operation in READS and ("Origin" in headers or headers.get("Sec-Fetch-Site", "none") != "none"):
        raise HttpError(NOT_AUTHORIZED, f"the console shows no records ({SETTING}): use a command or a script")
