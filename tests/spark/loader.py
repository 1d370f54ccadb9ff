"""A loader as a process of its own: `loader.py STORE WAREHOUSE STEP` kills itself the first time it reaches STEP."""

from __future__ import annotations

import os
import signal
import sys

from pyspark_tiered.load import Progress, load
from pyspark_tiered.session import session
from tests.spark.driver import FAST_START


def main(store: str, warehouse: str, step: str) -> None:
    """Loads in small rounds."""

    def report(progress: Progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    spark = session(master="local[1]", conf=FAST_START)
    load(store, "flights", warehouse, progress=report, spark=spark, split_bytes=8000)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
