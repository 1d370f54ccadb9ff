"""Tests of the sources of settings, of their precedence, and of a Kafka broker's own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.config.kafka_aliases import WITHOUT_EFFECT
from tiered.config.properties import parse_properties
from tiered.config.settings import broker_rows
from tiered.errors import Refused
from tiered_api.cli.broker.sources import environment_variable, load_settings

KAFKAS_FILE = """\
# Kafka's own server.properties, without its comments
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.flush.interval.messages=10000
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_kafkas_own_file_loads_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KAFKAS_FILE)
    made, warnings = load_settings(str(file), {}, [], {})
    assert (made.data_dir, made.node_id, made.log_retention_ms) == ("/tmp/kraft-combined-logs", 1, 604_800_000)
    assert len(warnings) == len(WITHOUT_EFFECT.keys() & dict(parse_properties(KAFKAS_FILE)).keys())
    assert f"num.io.threads=8 has no effect: network and requests share one loop ({file})" in warnings


def test_value_without_effect_loads_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.preallocate=TRUE\n")
    made, [warning] = load_settings(str(file), {}, [], {})
    assert made.log_preallocate and warning.startswith("log.preallocate=TRUE has no effect: segment files grow")
    assert load_settings(None, {}, ["log.preallocate=false"], {})[1] == []


def test_file_of_kafka_3_loads_too(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=0\nzookeeper.connect=localhost:2181\nzookeeper.connection.timeout.ms=18000\n")
    made, warnings = load_settings(str(file), {}, [], {})
    assert (made.node_id, len(warnings)) == (0, 2)


def test_variables_of_a_kubernetes_service_are_no_settings() -> None:
    environment = {
        "TIERED_SERVICE_HOST": "10.0.0.1",
        "TIERED_SERVICE_PORT": "8082",
        "TIERED_SERVICE_PORT_HTTP": "8082",
        "TIERED_PORT": "tcp://10.0.0.1:8082",
        "TIERED_PORT_8082_TCP": "tcp://10.0.0.1:8082",
        "TIERED_PORT_8082_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(None, environment, [], {}) == load_settings(None, {}, [], {})
    with pytest.raises(Refused, match="TIERED_PORT: unknown"):
        load_settings(None, {"TIERED_PORT": "8082"}, [], {})


def test_later_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("num.partitions = 1\n[node]\nid = 2\n[log.retention]\nms = 3\nbytes = 4\n")
    made, _ = load_settings(
        str(file),
        {"TIERED_NODE_ID": "20", "TIERED_NUM_PARTITIONS": "10", "PATH": "/bin"},
        ["num.partitions=100", "log.retention.bytes=400"],
        {"node.id": "2000"},
    )
    assert (made.node_id, made.num_partitions, made.log_retention_bytes, made.log_retention_ms) == (2000, 100, 400, 3)


def test_toml_keeps_booleans_and_lists(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('log.remote.storage.enable = false\nlog.cleanup.policy = ["delete"]\n')
    made, _ = load_settings(str(file), {}, [], {})
    assert not made.log_remote_storage_enable and made.log_cleanup_policy == ("delete",)


@pytest.mark.parametrize(
    ("environment", "pairs", "options", "words"),
    [
        (
            {"TIERED_NODE_IDD": "1"},
            [],
            {},
            "TIERED_NODE_IDD: unknown environment setting; did you mean TIERED_NODE_ID?",
        ),
        ({"TIERED_NODE_ID": "x"}, [], {}, "node.id=x: it must be an integer from 0 to 2147483647 (TIERED_NODE_ID)"),
        ({}, ["node.id"], {}, "-c node.id: it must be name=value"),
        ({}, ["nodeid=1"], {}, "nodeid: unknown broker setting; did you mean node.id? (-c)"),
        ({}, [], {"http": "x"}, "http=x: it must be HOST:PORT with a port from 0 to 65535 (--http)"),
    ],
)
def test_refusal_names_the_source(
    environment: dict[str, str], pairs: list[str], options: dict[str, str], words: str
) -> None:
    with pytest.raises(Refused) as refused:
        load_settings(None, environment, pairs, options)
    assert refused.value.why == words


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file"):
        load_settings(str(tmp_path / "none.properties"), {}, [], {})
    bad = tmp_path / "bad.toml"
    bad.write_text("node.id = = 1")
    with pytest.raises(Refused, match=r"bad\.toml"):
        load_settings(str(bad), {}, [], {})
    bytes_ = tmp_path / "bytes.properties"
    bytes_.write_bytes(b"\xff\xfe")
    with pytest.raises(Refused, match="not UTF-8"):
        load_settings(str(bytes_), {}, [], {})


def test_each_setting_has_its_own_variable() -> None:
    assert len({environment_variable(name) for name in broker_rows()}) == len(broker_rows())
    assert environment_variable("tiered.upload.max.lag.ms") == "TIERED_UPLOAD_MAX_LAG_MS"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\nb = 2\nc:3\nd 4\n  e\t=\t5", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")]),
        ("# no\n! no\n\n   \na=# yes", [("a", "# yes")]),
        ("a=1,\\\n   2,\\\n 3", [("a", "1,2,3")]),
        ("path=C:\\\\dir\\\\", [("path", "C:\\dir\\")]),
        ("a\\=b\\ c=d=e", [("a=b c", "d=e")]),
        ("u=\\u00e9\\t|", [("u", "é\t|")]),
        ("empty=\nbare", [("empty", ""), ("bare", "")]),
        ("last=1\\", [("last", "1")]),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, pairs: list[tuple[str, str]]) -> None:
    assert list(parse_properties(text)) == pairs
