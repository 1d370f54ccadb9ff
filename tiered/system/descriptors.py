"""File descriptors of the process: how many are open, and one log line when no connection can be accepted."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Iterator
from typing import Any

from tiered.log_limiter import LogLimiter

log = logging.getLogger(__name__)

FOLDER = "/proc/self/fd"
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
WARNED_SHARE = 0.8
"""Share of the limit from which open descriptors are a problem."""
REMEDY = "raise the limit: LimitNOFILE of the unit, and prlimit --pid {pid} --nofile=N at once"


def describe_descriptors() -> Iterator[str]:
    """Yields a sentence if the process nears its limit (RLIMIT_NOFILE); none on a system without /proc."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        opened = len(os.listdir(FOLDER)) - 1
    except OSError as error:
        if error.errno not in OUT_OF_DESCRIPTORS:
            return
        opened = limit
    if limit != resource.RLIM_INFINITY and opened >= WARNED_SHARE * limit:
        remedy = REMEDY.format(pid=os.getpid())
        yield f"{opened} of {limit} file descriptors are open: writes and new connections fail at the limit; {remedy}"


def log_accept_failure(limiter: LogLimiter, error: OSError) -> None:
    """Logs that a listener could not accept a connection, in one line for many of them."""
    suppressed = limiter.admit("accept")
    if suppressed is not None:
        log.warning(
            "cannot accept connections and tries again later error=%s suppressed=%d", error.strerror, suppressed
        )


def limit_accept_failures(loop: asyncio.AbstractEventLoop, limiter: LogLimiter) -> None:
    """Makes the listeners of asyncio log such failures as ours do: they write a traceback each second."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if str(context.get("message")).startswith("socket.accept()") and isinstance(error, OSError):
            log_accept_failure(limiter, error)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
