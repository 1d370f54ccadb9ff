"""Test of commands that run while the broker dies and comes back: no record is lost or written twice."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

from tests.e2e.cli_cluster import CliCluster, error_lines
from tests.e2e.serving import ServeProcess


def test_produce_and_consume_continue_when_the_broker_is_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServeProcess(data) as first:
        address = first.kafka
        cluster = CliCluster("ours", address)
        topic = cluster.create_topic(3)
        with closing(cluster):
            writer = cluster.start("topic", "produce", topic, "-o", r"%v\n")
            reader = cluster.start("topic", "consume", topic, "-f", r"%v\n", "-n", "2000")
            assert writer.stdin is not None and writer.stdout is not None and reader.stdout is not None
            values = [b"%d\n" % number for number in range(2000)]
            writer.stdin.write(b"".join(values[:1000]))
            writer.stdin.flush()
            acknowledged = writer.stdout.readline()
            assert reader.stdout.readline()
            first.stop(signal.SIGKILL)
            with ServeProcess(data, "--kafka", address):
                # Records in flight at the death of the broker are sent again, under the same sequence numbers.
                out, err = cluster.end(writer, b"".join(values[1000:]))
                assert (writer.returncode, error_lines(err)) == (0, [])
                assert sorted((acknowledged + out).splitlines(keepends=True)) == sorted(values)
                _, err = cluster.end(reader)
                assert (reader.returncode, error_lines(err)) == (0, [])
                assert sorted(cluster.consume(topic)) == sorted(value.decode().strip() for value in values)
