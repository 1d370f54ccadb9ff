"""Test of the targets of bit rot: only logs of the topic that the run judges."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from tests.sim.cluster.disk_logs import LOG_DIR
from tests.sim.cluster.rot import BitRot
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import batch
from tiered.hot.checkpoints import METADATA_FILE, encode_metadata
from tiered.ids import TopicId

OLD, NEW = TopicId("A" * 22), TopicId("B" * 22)


def test_log_of_an_earlier_topic_of_the_name_is_no_target() -> None:
    """Once, a broker that acted late still had the log of the earlier topic, and its damage counted for the new one."""
    disk, segment = SimDisk(random.Random(1)), f"{LOG_DIR}/t-0/{0:020d}.log"
    disk.make_dirs(f"{LOG_DIR}/t-0")
    for path, data in ((segment, batch(0)), (f"{LOG_DIR}/t-0/{METADATA_FILE}", encode_metadata(OLD))):
        disk.open(path, create=True).append([data])
    rot, host = (
        BitRot(1, cast(Any, None), cast(Any, None)),
        cast(Any, SimpleNamespace(machine=SimpleNamespace(disk=disk))),
    )
    assert rot._active_segment(host, "t-0", OLD) == segment
    assert rot._active_segment(host, "t-0", NEW) == ""
