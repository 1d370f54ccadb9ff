"""Tells if a log takes writes, and why not. All parts of one log share it."""

from __future__ import annotations

from tiered.errors import Code, Refused, Unavailable


class LogStatus:
    """The status of one open log. `write_failure` says why it takes no more writes; it is "" while it does.

    `has_disk_failed`: the disk failed, so nothing is tried again in its directory. `is_closed`: another log may have
    the directory. A step that still runs then finds files by their names, and ends instead.
    """

    __slots__ = ("has_disk_failed", "is_closed", "write_failure")

    def __init__(self) -> None:
        self.write_failure = ""
        self.has_disk_failed = False
        self.is_closed = False

    def fail(self, why: str, *, final: bool) -> None:
        """Stops all writes to the log. `has_disk_failed` stays True once it is set."""
        self.write_failure, self.has_disk_failed = why, final or self.has_disk_failed

    def check_open(self, directory: str) -> None:
        """Raises `Unavailable` once the log is closed."""
        if self.is_closed:
            raise Unavailable(f"{directory} is closed")

    def check_syncable(self, directory: str) -> None:
        """Raises `Unavailable` after a failure, and once the log is closed."""
        if self.write_failure:
            raise Unavailable(self.write_failure, final=self.has_disk_failed)
        self.check_open(directory)

    def require_writable(self, name: str) -> None:
        """Raises `Refused` after a failure, and once the log is closed: the files may be of another topic of the name
        then."""
        if self.write_failure:
            raise Refused(Code.KAFKA_STORAGE_ERROR, self.write_failure)
        if self.is_closed:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"the log of {name} is closed")
