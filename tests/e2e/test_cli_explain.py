"""Tests of `tiered explain` and `tiered debug bundle` against three brokers with a login, one of which is away."""

from __future__ import annotations

import asyncio
import json
import tarfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.http_site import wait_until
from tests.e2e.test_http_login import BASIC, credential, set_user
from tests.e2e.test_http_tables import add_table
from tests.passwords import find_passwords
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AlterBrokerConfigs
from tiered.metadata.changes import ALL_BROKERS
from tiered.records.batch import encode_batch
from tiered.security.secret import Secret
from tiered_api.cli.main import main

PASSWORD = "s3cret"
RECORD = (b"the key of a record", b"the value of a record", (("the name of a header", b"the value of a header"),))
LOGIN = f"""security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="root" password="{PASSWORD}";
"""
SETTINGS: dict[str, Any] = {
    "authentication_method": BASIC,
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "super_users": "User:root",
    "ssl_key_password": Secret("eightyeight"),
    "delegation_token_secret_key": Secret("tanstaaftanstaaf"),
}


class Command:
    """The command with the login of `root`, at the HTTP of one broker."""

    def __init__(self, three: HttpCluster, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (directory / "root.properties").write_text(LOGIN)
        self._options = ("--http", three[1].url, "--command-config", str(directory / "root.properties"))
        self._capsys = capsys

    async def run(self, *arguments: str, code: int = 0) -> str:
        """Returns what a command printed that ends with this code, errors included."""
        assert await asyncio.to_thread(main, [*arguments, *self._options]) == code
        printed = self._capsys.readouterr()
        assert not find_passwords(printed.out + printed.err)
        return printed.out + printed.err

    async def explain(self, *arguments: str) -> dict[str, Any]:
        """Returns the facts of an explanation by their codes."""
        found = json.loads(await self.run("explain", *arguments, "--format", "json"))
        return {each["code"]: each for each in found["facts"]}


def read_archive(path: Path) -> dict[str, bytes]:
    """Returns the files of an archive by their names, without its one folder."""
    with tarfile.open(path) as archive:
        files = {each.name: archive.extractfile(each) for each in archive.getmembers()}
        return {name.partition("/")[2]: each.read() for name, each in files.items() if each is not None}


@run_by(run, "tmp_path", **SETTINGS)
async def test_bundle_has_the_state_of_a_cluster_without_records_and_secrets(
    three: HttpCluster, *, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await set_user(three[1], "root", PASSWORD)
    await three.create("orders", [1, 2, 3], retention_ms="-1")  # the time of its record is long ago
    await three.create("lost", [3])
    await three[1].broker.submit(AlterBrokerConfigs(ALL_BROKERS, {"ssl.truststore.password": "pencil"}))
    await three[1].broker.leader_replica("orders", 0).append(bytearray(encode_batch([(0, *RECORD)])))
    await wait_until(lambda: three.is_known_by_all(lambda node: bool(node.image.scram)))
    await three.end(3)
    await wait_until(lambda: not three[1].broker.image.brokers[3].live)
    tiered = Command(three, tmp_path, capsys)

    found = await tiered.explain("partition", "orders", "0")
    assert found["under-replicated"]["mend"].startswith("see if broker 3 runs: start it again")
    assert (await tiered.run("explain", "partition", "lost", "0")).startswith("Partition lost/0 has no leader since ")
    assert "leaderless" in await tiered.explain("segment", "lost", "0", "0")
    assert "on-disk" in await tiered.explain("segment", "orders", "0", "0")
    assert "from-disk" in await tiered.explain("fetch", "orders", "0", "0", "--isolation-level", "read_uncommitted")
    assert "waits" in await tiered.explain("fetch", "orders", "0", "1", "--user", "alice", "--client-id", "a b")
    assert "waits" in await tiered.explain("fetch", "orders", "0"), "without an offset, that of the next record"
    assert "unhealthy" in await tiered.explain("topic", "orders")
    assert "'nobody' not found" in await tiered.run("explain", "group", "nobody", code=2)
    assert "no warehouse is set" in await tiered.run("explain", "table", "orders", code=2)
    place, topics = tmp_path / "tables", three[1].broker.image.topics
    add_table(place, "orders", "orders", topics["orders"].topic_id, {0: 1})
    assert "loaded" in await tiered.explain("table", "orders", "--warehouse", str(place))
    assert "never-loaded" in await tiered.explain("table", "lost", "--warehouse", str(place))
    assert "neither a table nor a topic" in await tiered.run("explain", "table", "x", "--warehouse", str(place), code=2)

    log = tmp_path / "broker.log"
    log.write_text(f"INFO tiered a login password={PASSWORD}\n")
    out, place = tmp_path / "bundle.tar.gz", tmp_path / "broker-1"
    assert any(RECORD[1] in each.read_bytes() for each in place.rglob("*.log"))
    said = await tiered.run("debug", "bundle", "--out", str(out), "--data-dir", str(place), "--log", str(log))
    assert "left out brokers/3: broker 3 is fenced" in said
    files = read_archive(out)
    made = credential(PASSWORD)
    [(header, value)] = RECORD[2]
    hidden = [*RECORD[:2], header.encode(), value, made.stored_key, made.server_key]
    hidden += [b64encode(each) for each in (made.salt, made.stored_key, made.server_key)]
    hidden.append(three[1].broker.incarnation.encode())
    for name, data in files.items():
        assert not find_passwords(data.decode()), name
        assert not [each for each in hidden if each in data], name
    assert b"password=[hidden]" in files["machine/logs/0-broker.log"]
    assert b"tiered_" in files["brokers/1/metrics.txt"] and b"tiered_" in files["brokers/2/metrics.txt"]
    settings = {each["name"]: each for each in json.loads(files["brokers/1/settings.json"])}
    assert settings["super.users"]["source"] == "STATIC_BROKER_CONFIG" and settings["super.users"]["value"]
    assert settings["ssl.key.password"]["value"] is None
    changes = [change for each in json.loads(files["metadata-log.json"])["entries"] for change in each["changes"]]
    assert any("scram" in json.dumps(each).lower() for each in changes)
    why = json.loads(files["partitions/lost-0/explain.json"])
    assert why["facts"][0]["code"] == "leaderless"
    manifest = json.loads(files["manifest.json"])
    assert manifest["files"].keys() == files.keys() - {"manifest.json"} and manifest["asked"] == three[1].url
    for name in ("cluster", "topics", "groups", "transactions", "quotas", "moves", "controllers", "settings/topics"):
        assert f"{name}.json" in files, manifest["left_out"]
    assert "the file exists" in await tiered.run("debug", "bundle", "--out", str(out), code=2)
