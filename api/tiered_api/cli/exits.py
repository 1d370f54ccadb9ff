"""The exit codes of commands."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `tiered`, the same for every command."""

    OK = 0
    """Done, and every comparison held."""
    FAILED = 1
    """The command failed: a comparison did not hold, data is corrupt, the broker had to stop."""
    USAGE = 2
    """The command, a setting or an argument is wrong; nothing was started."""
    MISSING = 3
    """A tool or package that this step needs is missing; the steps before it are done."""
    UNAVAILABLE = 4
    """The store, the disk or the broker could not be reached; try again."""
    UNHEALTHY = 10
    """The cluster replies, and a part of it is not healthy."""
    PARTIAL = 11
    """All that the caller may see of the cluster is healthy, and it may not see all."""
    INTERRUPTED = 130
    """Ctrl-C."""
