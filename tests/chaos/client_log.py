"""What librdkafka says of errors of Produce and of new producer epochs, kept beside the logs of the brokers."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from pathlib import Path

LINES_MAX = 20_000
DEBUG = "eos,msg"
KEPT_LINES = re.compile(r"encountered error|sequence|epoch|drain|fatal|IDEMPSTATE|GETPID", re.IGNORECASE)

SENT, SENT_MAX = "Produce MessageSet", 200
"""What was sent is kept where a new epoch begins, so much of it."""


class ClientLog(logging.Handler):
    """The lines of one client that matter, in a file. `bumps` says why it began each new epoch of its own accord: what
    had no answer yet it sends again under new numbers, which no broker can tell from new records."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.epoch_bumps: list[str] = []
        self._file = path.open("a")
        self._lines_left = LINES_MAX
        self._sent: deque[str] = deque(maxlen=SENT_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not KEPT_LINES.search(text):
            return
        line = f"{time.strftime('%H:%M:%S')}.{time.time_ns() // 1_000_000 % 1000:03} {text}\n"
        if SENT in text:
            self._sent.append(line)
            return
        if "epoch bump" in text and "Beginning partition drain" in text:
            self.epoch_bumps.append(text.partition("]: ")[2])
            line = "".join([*self._sent, line])
            self._sent.clear()
        if self._lines_left > 0:
            self._lines_left -= 1
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        super().close()


def logger(name: str, handler: ClientLog) -> logging.Logger:
    """For a producer; it goes nowhere else."""
    made = logging.Logger(name, logging.DEBUG)
    made.addHandler(handler)
    return made
