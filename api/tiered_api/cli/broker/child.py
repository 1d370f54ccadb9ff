"""`python -m tiered_api.cli.broker.child PID COMMAND...`: a command that ends with PID, the process that started it.

This works on Linux, where the kernel signals a process when its parent dies. On other systems the command goes on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from tiered_api.cli.exits import Exit
from tiered_api.cli.main import main

PR_SET_PDEATHSIG = 1


def exit_with_parent(parent: int) -> None:
    """Requests SIGTERM at the parent's death; exits if the parent has died already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        sys.exit(Exit.INTERRUPTED)


if __name__ == "__main__":
    exit_with_parent(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
