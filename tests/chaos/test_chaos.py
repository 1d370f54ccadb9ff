"""Test of brokers that fail while clients write: no acknowledged record is lost or duplicated, and everything is live
again.

`make chaos` is the long version; `python -m tests.chaos --only NAME` runs one fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.cluster import QUICK_SETTINGS
from tests.chaos.faults import ALL_FAULTS, FIRST, OF_MACHINES, SHORT, faults_by_name
from tests.chaos.run import run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a socket that is shut may listen again"),
    pytest.mark.slow,
    pytest.mark.timeout(400),
]
SHORT_OF_MACHINES = ("kill -9 of one process", "kill -9 of the controller's machine", "SIGSTOP of one process")
RATE = 20.0
"""Records a second and partition: a low rate leaves CPU for other tests."""
TOPIC = {"internal.segment.bytes": "32768", "local.retention.bytes": "65536"}
DEADLINE_FACTOR = 3.0
"""Factor of deadlines for busy machines."""


@pytest.mark.parametrize(
    ("store", "names", "processes"),
    [
        pytest.param("s3", (FIRST,), 1, id="first"),
        *(pytest.param(store, names, 1, id=store, marks=pytest.mark.also("stores")) for store, names in SHORT.items()),
        pytest.param("file", SHORT_OF_MACHINES, 2, id="machines", marks=pytest.mark.also("values")),
    ],
)
def test_no_record_is_lost_while_brokers_fail(
    store: str, names: tuple[str, ...], processes: int, tmp_path: Path
) -> None:
    report = run(
        tmp_path,
        store,
        faults_by_name(names),
        QUICK_SETTINGS,
        has_java=False,
        rate=RATE,
        deadline_factor=DEADLINE_FACTOR,
        topic=TOPIC,
        processes=processes,
    )
    print(report)
    assert report.is_ok, report
    assert report.read + report.compacted >= sum(report.acked.values()) > 0
    assert report.batches > 0 and report.cold > 0


def test_names_of_faults_are_unique() -> None:
    faults = (*ALL_FAULTS, *OF_MACHINES)
    assert len({fault.name for fault in faults}) == len(faults)
