"""Log lines of librdkafka about errors of Produce and about new producer epochs, kept beside the logs of the
brokers."""

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
"""Lines about sent batches, which are kept when a new epoch begins, and how many of them."""


class ClientLog(logging.Handler):
    """The relevant log lines of one client, in a file. `epoch_bumps` has the reasons for which it began a new epoch by
    itself: then it sends batches without a reply again under new sequences, which no broker can tell from new
    records."""

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
    """Returns a logger for a producer that writes nowhere else."""
    made = logging.Logger(name, logging.DEBUG)
    made.addHandler(handler)
    return made
