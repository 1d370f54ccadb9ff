"""A loader as a process of its own: `loader.py STORE WAREHOUSE STEP [repair|erase]` kills itself when it first reaches
STEP of a load, a repair or an erasure."""

from __future__ import annotations

import os
import signal
import sys

from pyspark_tiered.load.load import LoadProgress, load
from pyspark_tiered.proof.erase import EraseProgress, erase
from pyspark_tiered.proof.repair import RepairProgress, repair
from pyspark_tiered.session import session
from tests.spark.driver import FAST_START

ERASED = "offset BETWEEN 100 AND 199"


def main(store: str, warehouse: str, step: str, what: str = "load") -> None:
    """Loads in small rounds, of splits that end inside batches."""

    def report(progress: LoadProgress | RepairProgress | EraseProgress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    spark = session(master="local[1]", conf=FAST_START)
    if what == "repair":
        repair(store, "flights", warehouse, report, spark=spark)
    elif what == "erase":
        erase(store, "flights", warehouse, ERASED, "asked for", report, spark=spark)
    else:
        load(store, "flights", warehouse, progress=report, spark=spark, split_bytes=3000)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
