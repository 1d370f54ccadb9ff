"""The outcome of one item of a request, for the column `status`: OK, or the error's code and message."""

from __future__ import annotations

from tiered_api.kafka.client.client import to_refused

OK = "OK"


def format_status(number: int, message: str | None) -> str:
    """Returns OK, or code and message of an error."""
    if not number:
        return OK
    no = to_refused(number, "", message)
    return f"{no.code.name}: {message}" if message else no.code.name
