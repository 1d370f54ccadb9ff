"""`tiered serve --ephemeral`: a broker for one run of tests, in a directory that ends with it and with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Sequence

from tiered.config.quick_settings import QUICK
from tiered.errors import Code, Refused

LOOK_SECONDS = 0.25
FREE = "127.0.0.1:0"
OPTION = "--ephemeral"
LOG_LEVEL = "warning"
"""Few lines on stderr: a suite that does not read them would make the broker wait at 64 KB."""


class EphemeralDirectory:
    """The directory of such a broker, and the process that wants it. Raises `Refused` if no directory can be made."""

    def __init__(self) -> None:
        try:
            self.path = tempfile.mkdtemp(prefix="tiered-ephemeral-")
        except OSError as error:
            why = f"--ephemeral needs a directory for temporary files, which TMPDIR names: {error.strerror}"
            raise Refused(Code.INVALID_CONFIG, why) from None
        self._parent = os.getppid()

    async def wait_for_parent(self) -> None:
        """Returns when the parent process is gone. The kernel can signal the end of a thread only, and Java starts
        processes from threads that end early."""
        while os.getppid() == self._parent:
            await asyncio.sleep(LOOK_SECONDS)

    def settings(self) -> dict[str, tuple[str, str]]:
        """Returns the settings that hold unless others are given, each with its source."""
        own = {**QUICK, "log.level": LOG_LEVEL, "tiered.audit.file": os.path.join(self.path, "audit.log")}
        return {name: (text, OPTION) for name, text in own.items()}

    def remove(self) -> None:
        """Removes all that the broker kept."""
        shutil.rmtree(self.path, ignore_errors=True)


def make_ephemeral(args: Namespace) -> EphemeralDirectory | None:
    """Returns the directory that `--ephemeral` asks for, and makes it that of the command line. Raises `Refused` for an
    option beside it that says where things are."""
    if not args.ephemeral:
        return None
    taken = {"--data-dir": args.data_dir, "--http": args.http, "--kafka": args.kafka, "--process": args.process}
    for option, given in taken.items():
        if given is not None:
            raise Refused(Code.INVALID_CONFIG, f"{option} {given}: --ephemeral chooses the directory and free ports")
    made = EphemeralDirectory()
    args.data_dir, args.http, args.kafka = made.path, FREE, FREE
    return made


def format_ephemeral(url: str, kafka: Sequence[str]) -> str:
    """Returns the ready line for programs, one object of JSON."""
    return json.dumps({"bootstrap_servers": ",".join(kafka), "http_url": url, "pid": os.getpid()})
