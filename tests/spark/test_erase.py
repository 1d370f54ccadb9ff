"""Tests of `tiered table erase`: erased rows stay away from loads and repairs, and `verify` counts them as erased."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.load.load import load
from pyspark_tiered.proof.erase import EraseProgress, erase
from pyspark_tiered.proof.erasures import ERASED
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.proof.verify import VerifyResult, verify
from tests.spark import loader
from tests.spark.test_load import fill
from tests.spark.test_soundness import Lake
from tiered.errors import Refused

pytestmark = pytest.mark.java


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def erase_from(lake: Lake, where: str, reason: str = "asked for") -> EraseProgress:
    return erase(lake.store, "t", lake.warehouse, where, reason, spark=lake.spark)


def check(lake: Lake) -> VerifyResult:
    return verify(lake.store, "t", lake.warehouse, spark=lake.spark)


@pytest.mark.also
def test_erased_rows_come_back_by_no_load_repair_or_restore(lake: Lake) -> None:
    lake.sql("DELETE FROM {t} WHERE partition = 0 AND offset = 5")
    done = erase_from(
        lake, "offset = 5 OR partition = 0 AND value IN (CAST('value 10' AS binary), CAST('value 11' AS binary))"
    )
    assert (done.rows, done.removed) == (4, 3), "the log has a row that the table lacks"
    assert repair(lake.store, "t", lake.warehouse, spark=lake.spark).rows == 0
    lake.more(0, 50)
    assert lake.load() == 50
    found = check(lake)
    assert (found.ok, found.erased, found.rows) == (True, 4, 446)
    assert [gap[:3] for gap in found.gaps if gap.why == ERASED] == [(0, 5, 6), (0, 10, 12), (1, 5, 6)]
    lake.sql("RESTORE TABLE {t} TO VERSION AS OF 0")
    assert ("erased", 0, 10) in {fault[:3] for fault in check(lake).faults}
    assert repair(lake.store, "t", lake.warehouse, spark=lake.spark).rows == 50
    assert check(lake).ok and lake.count() == (446, 446)
    assert erase_from(lake, "offset = 5").rows == 0, "nothing is erased twice"


class Abandoned(BaseException):
    """Ends a command at once, as a kill does: no handler catches it."""


@pytest.mark.also
@pytest.mark.parametrize("step", ["chosen", "recorded", "removed"])
def test_erasure_that_was_cut_off_is_completed_by_the_next_one(lake: Lake, step: str) -> None:
    def report(progress: EraseProgress) -> None:
        if progress.step == step:
            raise Abandoned

    with pytest.raises(Abandoned):
        erase(lake.store, "t", lake.warehouse, "offset < 3", "asked for", report, spark=lake.spark)
    left, removed = {"chosen": (0, 6), "recorded": (6, 6), "removed": (0, 0)}[step]
    assert [fault.kind for fault in check(lake).faults] == ["erased"] * left
    assert erase_from(lake, "offset < 3").removed == removed
    assert (check(lake).ok, lake.count()) == (True, (394, 394))


def test_erasure_without_a_reason_or_with_a_wrong_condition_is_refused(lake: Lake) -> None:
    with pytest.raises(Refused, match="needs a reason"):
        erase_from(lake, "offset = 1", " ")
    for where in ("nothing = 1", "offset =", "offset; DROP TABLE x"):
        with pytest.raises(Refused, match="--where"):
            erase_from(lake, where)
    assert (check(lake).ok, check(lake).erased) == (True, 0)


@pytest.mark.also
def test_rows_are_erased_after_a_killed_erasure_and_another_one(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "warehouse")
    fill(store)
    load(store, "flights", warehouse, spark=spark)
    killed = subprocess.Popen(
        [sys.executable, loader.__file__, store, warehouse, "recorded", "erase"], stdin=subprocess.DEVNULL
    )
    assert killed.wait(280) == -signal.SIGKILL
    assert not verify(store, "flights", warehouse, spark=spark).ok, "the kill came before the end"
    done = erase(store, "flights", warehouse, loader.ERASED, "asked for", spark=spark)
    assert (done.rows, done.removed) == (0, 200), "the record of the killed one holds"
    found = verify(store, "flights", warehouse, spark=spark)
    assert (found.ok, found.erased, found.rows) == (True, 200, 5800)
