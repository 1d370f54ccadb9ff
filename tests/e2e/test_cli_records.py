"""Tests of `tiered topic produce` and `consume`: records in every format, against ours and Kafka."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.e2e.cli_cluster import KINDS, CliCluster, start_cluster
from tests.e2e.serving import COMMAND, SECONDS
from tiered.records.partitioner import partition_of

EVERYTHING = r"%t %p %o %d %k %v %h{%k=%v;}\n"


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with start_cluster(request.param, tmp_path_factory.mktemp("records")) as made:
        yield made


def test_lines_become_records_and_are_reported(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    told = cluster.produce(topic, "one\n\nthree")
    assert [line.rsplit(" ", 1)[0] for line in told] == [
        f"Produced to partition 0 at offset {offset} with timestamp" for offset in range(3)
    ]
    assert cluster.consume(topic) == ["one", "", "three"]


@pytest.mark.parametrize(
    "codec",
    ["none", "zstd", *(pytest.param(each, marks=pytest.mark.also("values")) for each in ("gzip", "snappy", "lz4"))],
)
def test_records_of_every_codec_are_consumed(cluster: CliCluster, codec: str) -> None:
    topic = cluster.create_topic()
    values = [f"{number} " + "x" * number for number in range(300)]
    cluster.produce(topic, "\n".join(values), "-z", codec)
    assert cluster.consume(topic) == values
    assert cluster.consume(topic, "-n", "1", form="%a{compression}\\n") == [codec]


def test_formats_keep_keys_headers_timestamps_and_partitions(cluster: CliCluster) -> None:
    topic = cluster.create_topic(3)
    line = "1700000000123 1 key:value h1=a,h2=b,\n"
    cluster.produce(topic, line, "-f", r"%d %p %k:%v %H{2}%h{%k=%v,}\n", "-H", "all:x")
    assert cluster.consume(topic, form=EVERYTHING) == [f"{topic} 1 0 1700000000123 key value all=x;h1=a;h2=b;"]
    form = r"%T %K %V %H %e %x %y %k{hex} %v{base64} %d{strftime[%F]} %[ %| %] %a{timestamp-type} %i\n"
    assert cluster.consume(topic, form=form)[0] == (
        f"{len(topic)} 3 5 3 0 {cluster.consume(topic, form='%x %y')[0]} 6b6579 dmFsdWU= 2023-11-14 0 1 1 0 1"
    )


def test_key_goes_to_the_partition_that_every_client_chooses(cluster: CliCluster) -> None:
    topic = cluster.create_topic(5)
    keys = [f"key-{number}" for number in range(40)]
    cluster.produce(topic, "".join(f"{key} v\n" for key in keys), "-f", r"%k %v\n")
    placed = dict(line.split() for line in cluster.consume(topic, form=r"%k %p\n"))
    assert placed == {key: str(partition_of(key.encode(), 5)) for key in keys}


def test_binary_records_of_any_size_are_consumed(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    records = [(b"k\n\x00", bytes(range(256))), (b"", b"\xff" * 5)]
    data = b"".join(len(k).to_bytes(2, "big") + k + len(v).to_bytes(4, "little") + v for k, v in records)
    cluster.run("topic", "produce", topic, "-f", "%K{big16}%k%V{little32}%v", stdin=data)
    lines = cluster.consume(topic, form=r"%k{base64} %v{base64}\n")
    assert [tuple(base64.b64decode(part) for part in line.split(" ")) for line in lines] == records


def test_tombstones_and_a_fixed_key_are_produced(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    cluster.produce(topic, "\n", "-Z", "-k", "gone")
    cluster.produce(topic, "\n", "-k", "empty")
    shown = [
        json.loads(line)
        for line in cluster.run("topic", "consume", topic, "-o", ":end", "--no-pretty-print").splitlines()
    ]
    assert [("key" in each and each["key"], each.get("value")) for each in shown] == [("gone", None), ("empty", "")]


def test_json_is_pretty_by_default_and_marks_what_is_no_text(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    cluster.run("topic", "produce", topic, "-H", "a:b", stdin=b"\xff\xfe\n")
    whole = cluster.run("topic", "consume", topic, "-n", "1")
    assert whole.startswith('{\n  "topic": ')
    shown = json.loads(whole)
    timestamp = shown.pop("timestamp")
    assert abs(timestamp / 1000 - time.time()) < 60
    headers = [{"key": "a", "value": "b"}]
    assert shown == {"topic": topic, "value": "base64://4=", "headers": headers, "partition": 0, "offset": 0}
    meta = cluster.run("topic", "consume", topic, "-n", "1", "--meta-only", "--no-pretty-print")
    assert json.loads(meta)["value_size"] == 2 and "value" not in json.loads(meta)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("start", range(10)),
        (":end", range(10)),
        ("-3", range(7, 10)),
        ("+4", range(4, 10)),
        ("6", range(6, 10)),
        ("2:5", range(2, 5)),
        (":3", range(3)),
        ("8:end", range(8, 10)),
        ("5:500", range(5, 10)),
        ("@1700000004000", range(4, 10)),
        ("@1700000004:1700000006", range(4, 6)),
        ("@1700000003000:2s", range(3, 5)),
        ("@:2023-11-14T22:13:22Z", range(2)),
        ("@2030-01-01:end", range(0)),
    ],
)
def test_consume_reads_ranges_of_offsets_and_time(
    cluster: CliCluster, where: str, expected: range, request: pytest.FixtureRequest
) -> None:
    topic = _topic_of_ten(cluster)
    number = ("-n", str(len(expected))) if ":" not in where else ()
    assert cluster.consume(topic, "-o", where, *number, form=r"%o\n") == [str(offset) for offset in expected]


_ten_of: dict[str, str] = {}


def _topic_of_ten(cluster: CliCluster) -> str:
    """Creates a topic with ten records, a second apart."""
    if cluster.address not in _ten_of:
        topic = _ten_of[cluster.address] = cluster.create_topic()
        lines = "".join(f"{1_700_000_000_000 + 1000 * number} v\n" for number in range(10))
        cluster.produce(topic, lines, "-f", r"%d %v\n")
    return _ten_of[cluster.address]


def test_consume_from_the_end_reads_later_records(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    cluster.produce(topic, "before\n")
    reader = cluster.start("topic", "consume", topic, "-o", "end", "-n", "1", "-f", "%v")
    # Nothing shows from outside if it has looked up the end: so records come until it has read one.
    while reader.poll() is None:
        cluster.produce(topic, "after\n")
    out, err = cluster.end(reader)
    assert (reader.returncode, out, err) == (0, b"after", b"")


def test_several_topics_and_partitions_are_each_read_in_order(cluster: CliCluster) -> None:
    topics = [cluster.create_topic(2), cluster.create_topic(2)]
    for topic in topics:
        for partition in ("0", "1"):
            cluster.produce(topic, "a\nb\nc\n", "-p", partition)
    lines = cluster.run("topic", "consume", *topics, "-o", ":end", "-f", r"%t/%p %v\n").splitlines()
    for topic in topics:
        for partition in ("0", "1"):
            assert [line[-1] for line in lines if line.startswith(f"{topic}/{partition} ")] == ["a", "b", "c"]
    assert len(lines) == 12
    assert cluster.consume(topics[0], "-p", "1", form=r"%p%v\n") == ["1a", "1b", "1c"]


def test_produce_with_acks_0_and_1(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    cluster.produce(topic, "one\n", "--acks", "1")
    assert cluster.produce(topic, "none\n", "--acks", "0", "-o", "%o") == ["-1"]
    # Without an answer nobody says when it is there: a reader waits for it.
    assert cluster.consume(topic, "-n", "2") == ["one", "none"]


def test_input_larger_than_a_batch_is_split(cluster: CliCluster) -> None:
    topic = cluster.create_topic(max_message_bytes="3000")
    values = [f"{number:04}" + "y" * 200 for number in range(100)]
    cluster.produce(topic, "\n".join(values), "-z", "none")
    assert cluster.consume(topic) == values


def test_error_of_produce_says_how_many_records_are_written(cluster: CliCluster) -> None:
    topic = cluster.create_topic(max_message_bytes="2000")
    process = cluster.start("topic", "produce", topic, "-z", "none", "-o", "")
    out, err = cluster.end(process, b"small\n" + b"z" * 5000 + b"\nlast\n")
    assert process.returncode == 1 and out == b""
    assert b"not written" in err and b"MESSAGE_TOO_LARGE" in err and b"Traceback" not in err
    written = cluster.consume(topic)
    assert f"{len(written)} of 3 records" in err.decode() or not written


def test_missing_topic_or_partition_is_an_error(cluster: CliCluster) -> None:
    missing = cluster.new_name("missing")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in cluster.run("topic", "produce", missing, stdin=b"x\n", code=2)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in cluster.run("topic", "consume", missing, "-o", ":end", code=2)
    topic = cluster.create_topic()
    assert "partitions 0 to 0, not 4" in cluster.run("topic", "produce", topic, "-p", "4", stdin=b"x\n", code=2)
    assert f"no partition {topic}-4" in cluster.run("topic", "consume", topic, "-p", "4", code=2)
    assert "it ends at 0" in cluster.run("topic", "consume", topic, "-o", "5", code=2)


def test_deleted_offsets_are_skipped_and_reported(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    cluster.produce(topic, "a\nb\nc\n")
    cluster.run("topic", "trim", topic, "-o", "2", "-p", "0")
    process = cluster.start("topic", "consume", topic, "-o", "0", "-n", "1", "-f", "%v")
    assert cluster.end(process) == (b"c", b"tiered: 2 offsets were deleted before they were read\n")


def test_missing_topic_is_created_on_request(cluster: CliCluster) -> None:
    topic = cluster.new_name("auto")
    cluster.produce(topic, "x\n", "--allow-auto-topic-creation")
    assert cluster.consume(topic) == ["x"]


def test_input_that_does_not_fit_the_format_is_refused(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    words = cluster.run("topic", "produce", topic, "-f", r"%k{hex} %v\n", stdin=b"zz v\n", code=2)
    assert "is not hex" in words
    assert "is no field" in cluster.run("topic", "consume", topic, "-f", "%q", code=2)


def test_ctrl_c_and_a_closed_pipe_are_quiet(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    cluster.produce(topic, "first\n" * 1000, "-o", "")
    reader = cluster.start("topic", "consume", topic, "-f", r"%v\n")
    assert reader.stdout is not None and reader.stdout.readline() == b"first\n"
    reader.send_signal(signal.SIGINT)
    _, err = cluster.end(reader)
    assert (reader.returncode, err) == (130, b"")
    reader = cluster.start("topic", "consume", topic, "-f", r"%v\n")
    assert reader.stdout is not None and reader.stdout.readline() == b"first\n"
    reader.stdout.close()
    while reader.poll() is None:
        cluster.produce(topic, "more\n" * 1000, "-o", "")
    assert reader.stderr is not None
    assert (reader.returncode, reader.stderr.read()) == (0, b"")
    writer = cluster.start("topic", "produce", topic)
    assert writer.stdin is not None and writer.stdout is not None
    writer.stdin.write(b"typed\n")
    writer.stdin.flush()
    assert writer.stdout.readline().startswith(b"Produced to partition 0 ")
    writer.send_signal(signal.SIGINT)
    _, err = cluster.end(writer)
    assert (writer.returncode, err) == (130, b"")


def test_produce_with_a_closed_output_reports_the_written_records(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    writer = cluster.start("topic", "produce", topic)
    assert writer.stdin is not None and writer.stdout is not None and writer.stderr is not None
    writer.stdin.write(b"first\n")
    assert writer.stdout.readline().startswith(b"Produced to partition 0 ")
    writer.stdout.close()
    writer.stdin.write(b"second\n")
    words = writer.stderr.read().decode()
    assert writer.wait() == 1
    assert words.startswith(
        "tiered: 2 of 2 records that were read are written\ntiered: the reader of the output is gone"
    )
    assert words.count("\n") == 2 and cluster.consume(topic) == ["first", "second"]


def test_full_output_is_a_one_line_error(cluster: CliCluster) -> None:
    with open("/dev/full", "wb") as full:
        command = [*COMMAND, "topic", "describe", cluster.create_topic(), "--brokers", cluster.address]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (4, b"tiered: cannot write the output: No space left on device\n")
