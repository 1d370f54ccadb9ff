"""The outcome of one item of a request, for the column `status`: OK, or the error in words."""

from __future__ import annotations

from collections.abc import Sequence

from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_rows
from tiered_api.kafka.client.error_sentences import explain_error

OK = "OK"
DRY_RUN = f"{OK} (dry run)"
"""The status of an item that a command with `--dry-run` would change or delete."""


def format_status(number: int, message: str | None, *, dry_run: bool = False) -> str:
    """Returns OK, or the error in words with its code."""
    if number:
        return explain_error(number, message)
    return DRY_RUN if dry_run else OK


def print_outcomes(rows: Sequence[Row], form: str) -> Exit:
    """Prints a row for each item. Returns FAILED if the status of one begins with an error."""
    print_rows(rows, form)
    return Exit.OK if all(str(row["status"]).startswith(OK) for row in rows) else Exit.FAILED
