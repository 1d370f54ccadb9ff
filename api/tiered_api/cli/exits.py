"""What a command's exit code says."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `tiered`: the same for every command."""

    OK = 0
    """Done, and every comparison held."""
    FAILED = 1
    """The answer is no: a comparison did not hold, data does not prove itself, the broker had to stop."""
    USAGE = 2
    """The command, a setting or an argument is wrong; nothing was begun."""
    MISSING = 3
    """A tool or package that this step needs is not there; what needs none was done."""
    UNAVAILABLE = 4
    """The store, the disk or the broker could not be reached; try again."""
    UNHEALTHY = 10
    """The cluster answers, and a part of it is not well."""
    INTERRUPTED = 130
    """Ctrl-C."""
