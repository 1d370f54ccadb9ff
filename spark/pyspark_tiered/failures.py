"""Failures that are none of ours: those of Spark become one sentence, as one of our own errors."""

from __future__ import annotations

from tiered.errors import Corrupt, Unavailable
from tiered.errors import first_line as first_line  # for the modules that handle failures here

CAUSES = ("tiered.errors.", "pyarrow.", "OSError", "MemoryError", "ModuleNotFoundError")
"""Starts of the last line of a task's traceback, if that line names the cause."""
CORRUPT = "tiered.errors.Corrupt: "


def translate_failure(what: str, failure: BaseException) -> Corrupt | Unavailable:
    """Returns the error for a failed Spark call: `Corrupt` if a task met damage, else `Unavailable` (final)."""
    lines = [line.strip() for line in str(failure).splitlines()]
    cause = next((line for line in lines if line.startswith(CAUSES)), first_line(failure))
    if cause.startswith(CORRUPT):
        return Corrupt(f"{what}: {cause.removeprefix(CORRUPT)}")
    return Unavailable(f"{what}: {cause}", final=True)


def foreign_failures() -> tuple[type[Exception], ...]:
    """Returns the errors of one table that are none of ours: those of its disk, and of Arrow."""
    import pyarrow as pa

    return OSError, pa.ArrowException
