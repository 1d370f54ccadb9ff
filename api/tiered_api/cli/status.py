"""The outcome of one item of a request, for the column `status`: OK, or the error in words."""

from __future__ import annotations

from tiered_api.kafka.client.error_sentences import explain_error

OK = "OK"


def format_status(number: int, message: str | None) -> str:
    """Returns OK, or the error in words with its code."""
    return explain_error(number, message) if number else OK
