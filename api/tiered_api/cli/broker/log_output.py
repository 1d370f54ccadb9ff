"""The log of a process on stderr: one line for each event. Logged values cannot break or forge lines."""

from __future__ import annotations

import logging
import sys
from logging.handlers import WatchedFileHandler
from typing import Any

from tiered.access.audit_log import LOGGER
from tiered.errors import Code, Refused
from tiered.log_limiter import LogLimiter
from tiered.system.clock import SystemClock
from tiered_api.cli.text.visible import visible

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
PACKAGES = ("tiered", "tiered_api")
INDENT = "  "
"""Prefix of each line of a traceback: only lines of events begin at the margin."""


class OneLineFormatter(logging.Formatter):
    """A formatter that escapes unprintable characters. The lines of a traceback stay lines, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(INDENT + visible(line) for line in super().formatException(ei).split("\n"))


def log_to_stderr(level: str, others: int = logging.WARNING) -> None:
    """Starts the log: our events from `level` on, those of libraries from `others` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler], level=others)
    set_log_level(level)


class AuditFile(WatchedFileHandler):
    """The file of the audit log. Another program may move it away: the next line begins a new one."""

    def __init__(self, file: str) -> None:
        super().__init__(file, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(message)s"))
        self._limiter = LogLimiter(SystemClock())

    def handleError(self, record: logging.LogRecord) -> None:
        suppressed = self._limiter.admit()
        if suppressed is not None:
            log.error("the audit log cannot be written file=%s suppressed=%d why=%s",
                      self.baseFilename, suppressed, sys.exc_info()[1])  # fmt: skip


def open_audit_log(file: str) -> None:
    """Writes the audit log to a file, or to stderr without one. Raises `Refused` for a file that cannot be opened."""
    audit = logging.getLogger(LOGGER)
    audit.setLevel(logging.INFO)
    if not file:
        return
    try:
        audit.addHandler(AuditFile(file))
    except OSError as error:
        raise Refused(Code.INVALID_CONFIG, f"tiered.audit.file={file}: it cannot be opened: {error.strerror}") from None
    audit.propagate = False


def set_log_level(level: str) -> None:
    """Logs our events of this level and above from now on."""
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
