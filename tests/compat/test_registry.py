"""Tests of a schema registry, Apicurio: its journal in a compacted topic gives it every schema back when it starts
again, after a clean on the disk or in the bucket."""

from __future__ import annotations

import json
import subprocess
import tarfile
import urllib.error
from functools import partial
from pathlib import Path

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import DriverClient
from tests.compat.clients import ALL, FETCH_SECONDS, KINDS, cache_folder, make_once
from tests.compat.compacted import answers, places, read_topic, read_url, running, soon_cleaned, wait_for
from tests.compat.conftest import Clients
from tests.e2e.serving import COMMAND
from tests.ports import free_port

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ALL, reason="make compat runs it: a schema registry in Java, which starts twice"),
]
VERSION = "3.0.9"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
SUBJECTS, VERSIONS = ("orders", "prices"), 4


def unpack_registry(folder: Path) -> None:
    """Fetches the registry with Maven, and unpacks it."""
    command = ["mvn", "-q", "-B", "-C", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}"]
    subprocess.run(command, check=True, timeout=FETCH_SECONDS, capture_output=True)
    (archive,) = folder.iterdir()
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()


@pytest.fixture(scope="module")
def program() -> Path:
    """Returns the folder of the registry."""
    try:
        return make_once(cache_folder("registry", VERSION.encode()), unpack_registry)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"Maven cannot fetch Apicurio Registry: {error}")


class Registry:
    """The settings of the registry, and its interface that is Confluent's."""

    def __init__(self, program: Path, broker: CompatBroker, name: str) -> None:
        self.journal = f"{name}-journal"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        settings = {
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": broker.address,
            "apicurio.kafkasql.topic": self.journal,
            "apicurio.kafkasql.snapshots.topic": f"{name}-snapshots",
            "apicurio.events.kafka.topic": f"{name}-events",
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(port),
        }
        options = [f"-D{key}={value}" for key, value in settings.items()]
        jar = program / f"apicurio-registry-app-{VERSION}-runner.jar"
        self.command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx384m", *options, "-jar", str(jar)]
        self.is_ready = partial(answers, f"{self.url}/subjects")

    def register(self, subject: str, fields: int) -> int:
        """Adds a version of a schema; returns its id."""
        columns = [{"name": f"f{number}", "type": "int", "default": 0} for number in range(fields)]
        schema = json.dumps({"type": "record", "name": subject, "fields": columns})
        body = json.dumps({"schema": schema}).encode()
        reply = read_url(f"{self.url}/subjects/{subject}/versions", body, method="POST")
        return int(json.loads(reply)["id"])

    def get(self, path: str) -> object:
        return json.loads(read_url(f"{self.url}/{path}"))

    def read_all(self) -> dict[str, object]:
        """Returns all that clients of a registry look up."""
        subjects = self.get("subjects")
        assert isinstance(subjects, list)
        found: dict[str, object] = {"subjects": sorted(subjects), "config": self.get("config")}
        for subject in subjects:
            versions = self.get(f"subjects/{subject}/versions")
            assert isinstance(versions, list)
            for version in versions:
                found[f"{subject}/{version}"] = self.get(f"subjects/{subject}/versions/{version}")
        return found


def clean_now(broker: CompatBroker, topic: str, end: int) -> None:
    """Has ours clean a topic, and waits until it is clean up to an offset."""
    command = [*COMMAND, "topic", "compact", topic, "--brokers", broker.plain_address, "--format", "json"]

    def clean_end(*options: str) -> int:
        done = subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=FETCH_SECONDS)
        (row,) = map(json.loads, done.stdout.splitlines())
        return int(row["clean_to"] or 0)

    clean_end()
    wait_for(lambda: clean_end("--dry-run") >= end, lambda: f"{topic} is clean up to {clean_end('--dry-run')}")


@pytest.mark.parametrize("place", places())
def test_registry_that_starts_again_has_all_schemas(
    place: str, program: Path, broker: CompatBroker, admin: DriverClient, clients: Clients, name: str
) -> None:
    registry, client = Registry(program, broker, name), clients(KINDS[0])
    admin.ask("create", topic=registry.journal, configs=soon_cleaned(broker, place))
    with running(registry.command, registry.is_ready):
        ids = [registry.register(subject, 1 + n) for n in range(VERSIONS) for subject in SUBJECTS]
        assert len({*ids}) == len(ids)
        read_url(f"{registry.url}/config", b'{"compatibility": "FULL"}', method="PUT")
        read_url(f"{registry.url}/subjects/{SUBJECTS[1]}", method="DELETE")
        before = registry.read_all()
    journal = read_topic(client, registry.journal)
    if broker.name == "ours":
        clean_now(broker, registry.journal, journal.end)
    with running(registry.command, registry.is_ready):
        assert registry.read_all() == before
        with pytest.raises(urllib.error.HTTPError):
            registry.get(f"subjects/{SUBJECTS[1]}/versions")
        assert registry.register(SUBJECTS[0], 1) == ids[0], "a known schema keeps its id"
        assert registry.register(SUBJECTS[0], VERSIONS + 1) > max(ids)
    assert [each.key for each in read_topic(client, registry.journal).records][: len(journal.records)] == [
        each.key for each in journal.records
    ]
