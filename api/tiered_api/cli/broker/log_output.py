"""The log of a process on stderr: one line for each event. Logged values cannot break or forge lines."""

from __future__ import annotations

import logging
import sys
from typing import Any

from tiered_api.cli.text.visible import visible

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


def set_log_level(level: str) -> None:
    """Logs our events of this level and above from now on."""
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
