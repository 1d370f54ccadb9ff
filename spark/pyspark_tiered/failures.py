"""What Spark says when something in it failed, in one sentence and as one of our own errors."""

from __future__ import annotations

from tiered.errors import Corrupt, Unavailable

CAUSES = ("tiered.errors.", "pyarrow.", "OSError", "MemoryError", "ModuleNotFoundError")
"""How the last line of a task's trace back begins where that line says what is wrong."""
CORRUPT = "tiered.errors.Corrupt: "


def translate_failure(what: str, failure: BaseException) -> Corrupt | Unavailable:
    """The error that a failed Spark call stands for: `Corrupt` where a task met damage, else `Unavailable`, final."""
    lines = [line.strip() for line in str(failure).splitlines()]
    cause = next((line for line in lines if line.startswith(CAUSES)), first_line(failure))
    if cause.startswith(CORRUPT):
        return Corrupt(f"{what}: {cause.removeprefix(CORRUPT)}")
    return Unavailable(f"{what}: {cause}", final=True)


def first_line(failure: BaseException) -> str:
    """What Java said, without its stack trace: the first line that says anything."""
    java = getattr(failure, "java_exception", None)
    text = str(java.toString()) if java is not None else str(failure)
    return text.strip().partition("\n")[0] or type(failure).__name__
