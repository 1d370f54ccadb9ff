"""Tests of Kafka Connect: a distributed worker keeps connectors, offsets and statuses in compacted topics. After cleans
on the disk or in the bucket, a worker that starts again has them all."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import DriverClient
from tests.compat.clients import ALL, DRIVERS, KINDS
from tests.compat.compacted import (
    answers,
    login_lines,
    places,
    read_topic,
    read_url,
    running,
    soon_cleaned,
    wait_for,
    write_until_cleaned,
)
from tests.compat.conftest import Clients
from tests.peer.kafka import HERE as PEER
from tests.peer.kafka import jars
from tests.ports import free_port

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ALL, reason="make compat runs it: Kafka Connect, which starts twice"),
]
WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
FILE = "org.apache.kafka.connect.file.FileStream"


class Connect:
    """The settings of a worker, and its REST interface."""

    def __init__(self, broker: CompatBroker, name: str, configs: dict[str, str], directory: Path) -> None:
        self.topics = {part: f"{name}-{part}" for part in ("config", "offset", "status")}
        self.url = f"http://127.0.0.1:{free_port()}"
        lines = [
            f"bootstrap.servers={broker.address}",
            f"group.id={name}-workers",
            "key.converter=org.apache.kafka.connect.storage.StringConverter",
            "value.converter=org.apache.kafka.connect.storage.StringConverter",
            f"listeners={self.url}",
            "plugin.discovery=service_load",
            "offset.flush.interval.ms=200",
            "session.timeout.ms=6000",
            "offset.storage.partitions=1",
            "status.storage.partitions=1",
        ]
        login = login_lines(broker, directory)
        lines += [f"{prefix}{line}" for prefix in ("", "producer.", "consumer.", "admin.") for line in login]
        for part, topic in self.topics.items():
            lines += [f"{part}.storage.topic={topic}", f"{part}.storage.replication.factor=1"]
            own = {key: value for key, value in configs.items() if key != "cleanup.policy"}  # Connect sets that itself
            lines += [f"{part}.storage.{key}={value}" for key, value in own.items()]
        file = directory / "worker.properties"
        file.write_text("\n".join(lines))
        log = f"-Dlog4j2.configurationFile={PEER / 'log4j2.properties'}"
        classes = f"{jars(DRIVERS / 'connect' / 'pom.xml')}/*"
        self.command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", log, "-cp", classes, WORKER, str(file)]

    def put(self, connector: str, **settings: str) -> None:
        """Creates or changes a connector."""
        body = {"tasks.max": "1"} | {name.replace("_", "."): value for name, value in settings.items()}
        read_url(f"{self.url}/connectors/{connector}/config", json.dumps(body).encode(), method="PUT")

    def get(self, path: str) -> object:
        return json.loads(read_url(f"{self.url}/{path}"))


@pytest.mark.parametrize("place", places())
def test_worker_that_starts_again_has_its_connectors_and_offsets(
    place: str, broker: CompatBroker, admin: DriverClient, clients: Clients, name: str, tmp_path: Path
) -> None:
    admin.ask("create", topic=f"{name}-lines")
    connect = Connect(broker, name, soon_cleaned(broker, place), tmp_path)
    source, target = tmp_path / "source", tmp_path / "target"
    written: list[str] = []

    def write() -> None:
        written.append(f"line {len(written)}")
        with source.open("a") as file:
            file.write(written[-1] + "\n")

    def read() -> list[str]:
        return target.read_text().splitlines() if target.exists() else []

    def one_round(number: int) -> None:
        """Writes to all three topics: settings, the status of a task that starts again, and the offset of a line."""
        connect.put(
            "sink", connector_class=f"{FILE}SinkConnector", topics=f"{name}-lines", file=str(target), round=f"{number}"
        )
        write()
        wait_for(lambda: read() == written, lambda: f"{read()} of {written}, {connect.get('connectors?expand=status')}")

    client = clients(KINDS[0])
    with running(connect.command, partial(answers, f"{connect.url}/connectors")):
        write()
        connect.put("source", connector_class=f"{FILE}SourceConnector", topic=f"{name}-lines", file=str(source))
        rounds = write_until_cleaned(client, [*connect.topics.values()], one_round)
        connectors = connect.get("connectors?expand=info")
    write()
    before = read_topic(client, connect.topics["offset"])
    with running(connect.command, partial(answers, f"{connect.url}/connectors")):
        # The worker replies before it has read its topics.
        wait_for(lambda: connect.get("connectors?expand=info") == connectors, lambda: f"not {connectors}")
        settings = connect.get("connectors/sink/config")
        assert isinstance(settings, dict) and settings["round"] == f"{rounds - 1}"
        wait_for(lambda: len(read()) >= len(written), lambda: f"{read()} of {written}")
        assert read() == written, "each line once: the source went on where it was"
        wait_for(lambda: read_topic(client, connect.topics["offset"]).state != before.state, lambda: "no new offset")
        statuses = connect.get("connectors?expand=status")
    assert isinstance(statuses, dict) and statuses.keys() == {"source", "sink"}
    states = [task["state"] for each in statuses.values() for task in each["status"]["tasks"]]
    assert states == ["RUNNING", "RUNNING"], statuses
    lines = read_topic(client, f"{name}-lines")
    assert [(each.value or b"").decode() for each in lines.records] == written
