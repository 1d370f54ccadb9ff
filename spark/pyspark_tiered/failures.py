"""Failures that are none of ours: those of Spark become one sentence, as one of our own errors."""

from __future__ import annotations

from tiered.errors import Corrupt, Unavailable
from tiered.errors import first_line as first_line  # for the modules that handle failures here

CAUSES = ("tiered.errors.", "pyarrow.", "OSError", "MemoryError", "ModuleNotFoundError")
"""Starts of the last line of a task's traceback, if that line names the cause."""
CAUSES_MAX = 20
"""Causes of a failure in Java that are looked at."""
DELTA_REFUSAL = "[DELTA_"
"""Beginning of the messages of Delta: the name of an error condition."""
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


def delta_refusal(failure: BaseException) -> str:
    """Returns the words by which Delta refused something; empty if the failure is of another kind.

    A refusal may be the cause of a task that failed.
    """
    cause = getattr(failure, "_origin", None) or getattr(failure, "java_exception", None)
    for _ in range(CAUSES_MAX):
        if cause is None:
            break
        _, mark, text = str(cause.toString()).partition(DELTA_REFUSAL)
        if mark:
            return (mark + text).partition("\n")[0]
        cause = cause.getCause()
    return ""
