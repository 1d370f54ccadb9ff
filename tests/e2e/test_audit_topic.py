"""Tests of the audit log as a topic: it has the lines, loses none silently, and no request waits for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import HttpBroker, run, wait_until
from tests.e2e.kafka_site import values_of
from tests.scenario import run_by
from tiered.access.audit_log import LINES_PER_SECOND
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import ANONYMOUS, Caller
from tiered_api.http import audit_topic
from tiered_api.http.audit_topic import AuditTopic
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.partitions.reads import load_bytes

CALLER = Caller(ANONYMOUS, "10.0.0.1")


async def lines_of(site: HttpBroker) -> list[dict[str, Any]]:
    """Returns the lines in the topic."""
    fetched = await site.broker.leader_replica("audit", 0).reads.read(0, 1 << 20)
    return [json.loads(value) for value in values_of(load_bytes(fetched))]


def refuse(site: HttpBroker, name: str) -> None:
    site.broker.audit.record_refusal(CALLER, Operation.WRITE, ResourceType.TOPIC, name)


def test_topic_gets_the_lines_that_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic does not exist at first, and the queue is too small for all lines."""
    monkeypatch.setattr(audit_topic, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(audit_topic, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(audit_topic, "QUEUE_BYTES_MAX", 600)

    async def scenario(site: HttpBroker) -> None:
        for number in range(4):
            refuse(site, f"t{number}")
        await wait_until(lambda: "there is no topic audit: create it" in caplog.text)
        assert site.broker.metrics.counter("tiered_audit_dropped_total", "").value() == 2
        await site.create("audit")
        await wait_until(lambda: site.broker.leader_replica("audit", 0).high_watermark == 3)
        told, *kept = await lines_of(site)
        assert told == {"event": "audit", "outcome": "dropped", "lines": 2}
        assert [each["resource_name"] for each in kept] == ["t0", "t1"] and kept[0]["principal"] == "User:ANONYMOUS"
        refuse(site, "t4")
        await wait_until(lambda: site.broker.leader_replica("audit", 0).high_watermark == 4)
        assert (await lines_of(site))[3]["resource_name"] == "t4", "each line is there once"

    run(tmp_path, scenario, tiered_audit_topic="audit")


@run_by(run, "tmp_path", tiered_audit_topic="audit")
async def test_stop_writes_the_last_lines(site: HttpBroker) -> None:
    await site.create("audit")
    context = HttpContext(site.broker, HttpLimits())
    audit = AuditTopic(context)
    for number in range(LINES_PER_SECOND + 2):
        refuse(site, str(number))
    await audit.close()
    await context.close()
    *lines, counted = await lines_of(site)
    assert [each["resource_name"] for each in lines] == [str(number) for number in range(LINES_PER_SECOND)]
    assert counted["suppressed"] == 2 and not audit.waiting_lines


def test_lines_go_to_the_leader_and_make_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_topic, "GATHER_SECONDS", 0.01)

    async def scenario(cluster: HttpCluster) -> None:
        await cluster.create("audit", [2, 3])
        refuse(cluster[1], "far")
        await wait_until(lambda: cluster[2].broker.leader_replica("audit", 0).high_watermark == 1)
        assert [each["resource_name"] for each in await lines_of(cluster[2])] == ["far"]
        refuse(cluster[2], "near")
        await wait_until(lambda: cluster[2].broker.leader_replica("audit", 0).high_watermark == 2)
        assert [each["resource_name"] for each in await lines_of(cluster[2])] == ["far", "near"]

    run_cluster(tmp_path, scenario, tiered_audit_topic="audit")
