"""`python -m tests.counts.start DIRECTORY`: counts the work of a start of `tiered serve` until its ready line.

It imports nothing of ours before it counts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tracemalloc
from types import FrameType
from typing import Any


class ReadyLine:
    """Stands for the standard output of a broker: its first line ends the count and the process."""

    def __init__(self) -> None:
        self.calls = 0
        self._modules = len(sys.modules)

    def on_event(self, frame: FrameType, event: str, detail: Any) -> None:
        if event == "call" and not frame.f_code.co_filename.startswith("<frozen importlib"):
            self.calls += 1

    def write(self, text: str) -> int:
        sys.setprofile(None)
        gc.collect()
        found = {
            "modules": len(sys.modules) - self._modules,
            "calls": self.calls,
            "bytes": tracemalloc.get_traced_memory()[0],
        }
        os.write(1, json.dumps(found).encode())
        os._exit(0)

    def flush(self) -> None:
        pass


def main(directory: str) -> None:
    ready: Any = ReadyLine()
    sys.stdout = ready
    tracemalloc.start()
    sys.setprofile(ready.on_event)
    from tiered_api.cli.main import main as run

    sys.exit(run(["serve", "--data-dir", directory, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]))


if __name__ == "__main__":
    main(sys.argv[1])
