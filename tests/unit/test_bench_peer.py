"""Tests of the arithmetic and the hand-written requests of the comparison with Kafka. The measured runs themselves are
not tested."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.figures import run_pairs
from bench.peer.brokers import TieredBroker, broker_environment
from bench.peer.machine import CpuWindow, cpu_of
from bench.peer.report import Pair, confidence_interval, make_row, table
from bench.peer.throughput import JSON_LINES, json_lines
from bench.peer.tls import add_tls
from bench.peer.wire import api_versions_request, produce_error_offset, produce_request
from bench.peer.workload import Metric, Workload, cpu, rate
from tiered.records.native import walk
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import decode_request_header, encode_response_header
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)


def test_legs_alternate_so_that_a_drift_hits_both() -> None:
    order: list[str] = []

    def leg(side: str) -> str:
        order.append(side)
        return side

    assert list(run_pairs(3, lambda: leg("A"), lambda: leg("B"))) == [("A", "B")] * 3
    assert "".join(order) == "ABBAAB"


def test_confidence_interval_holds_the_median() -> None:
    assert confidence_interval([0.5] * 5) == (0.5, 0.5)
    low, high = confidence_interval([0.4, 0.5, 0.6, 0.7, 2.0])
    assert 0.4 <= low < 0.6 < high <= 2.0


def test_goal_is_met_only_by_the_whole_interval() -> None:
    assert (rate("records/s", 1.2).is_met(1.3, 1.5), rate("records/s", 1.2).is_met(1.1, 1.5)) == (True, False)
    assert (cpu("s/GB", 0.4).is_met(0.2, 0.3), cpu("s/GB", 0.4).is_met(0.2, 0.5)) == (True, False)
    assert Metric("peak_rss_mb", "MB").is_met(0.0, 1.0) is None


def pair(ours: float, kafka: float, foreign: float = 0.0) -> Pair:
    return Pair({"cpu": ours, "foreign": 0.0}, {"cpu": kafka, "foreign": foreign})


def test_row_has_the_median_of_paired_ratios() -> None:
    workload = Workload("w", "what it is", (cpu("s/GB", 0.5),), lambda _: {})
    pairs = [pair(1.0, 10.0), pair(2.0, 4.0), pair(9.0, 10.0)]
    made = make_row(workload, workload.metrics[0], pairs)
    assert (made.ours, made.kafka, made.ratio, made.met) == (2.0, 10.0, 0.5, False)
    assert "| what it is | cpu (s/GB) | 2 | 10 | 0.50 |" in table({"w": workload.title}, [made])


def test_ratio_is_marked_if_other_processes_used_the_cpu() -> None:
    workload = Workload("w", "what it is", (cpu("s"),), lambda _: {})
    made = make_row(workload, workload.metrics[0], [pair(1.0, 2.0), pair(1.0, 2.0, foreign=0.2)])
    assert (made.pairs, made.noisy_pairs) == (2, 1)
    assert "| ~0.50 |" in table({"w": workload.title}, [made])


def test_goal_of_our_own_figure_ignores_kafka() -> None:
    metric = Metric("cpu", "x", 1.5, is_own=True)
    workload = Workload("w", "what it is", (metric,), lambda _: {})
    made = make_row(workload, metric, [pair(1.2, 0.1), pair(1.4, 0.1)])
    assert (round(made.ratio), made.met) == (13, True)
    assert "| <= 1.5 (ours) | met |" in table({"w": workload.title}, [made])
    assert make_row(workload, metric, [pair(1.2, 9.0), pair(1.6, 9.0)]).met is False


def test_broker_with_tls_keeps_its_plain_listener(tmp_path: Path) -> None:
    broker = TieredBroker(tmp_path)
    properties = add_tls(broker, tmp_path)
    plain, encrypted = broker.settings["listeners"].split(",")
    assert plain == f"PLAINTEXT://{broker.address}"
    assert encrypted == f"SSL://{properties['bootstrap.servers']}"
    assert Path(broker.settings["ssl.keystore.location"]).read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert Path(str(properties["ssl.ca.location"])).read_text().startswith("-----BEGIN CERTIFICATE-----")


def test_costs_too_small_to_measure_have_a_ratio() -> None:
    workload = Workload("w", "what it is", (cpu("s"),), lambda _: {})
    assert make_row(workload, workload.metrics[0], [pair(0.0, 0.0)]).ratio == 1.0


@pytest.mark.parametrize("topic", ["t", "a-topic-with-a-longer-name"])
def test_produce_requests_are_what_the_codec_reads(topic: str) -> None:
    frame = memoryview(produce_request(topic, 3, b"v" * 100))
    header = decode_request_header(frame[4:])
    request = decode(ProduceRequest, 9, frame[4:], header.position)
    (data,) = request.topic_data
    (partition,) = data.partition_data
    assert (request.acks, data.name, partition.index) == (1, topic, 3)
    assert partition.records is not None
    assert walk(bytes(partition.records)).batches[0].last_offset == 0


@pytest.mark.parametrize("topic", ["t", "a-topic-with-a-longer-name"])
def test_loader_finds_the_error_code(topic: str) -> None:
    response = ProduceResponse([TopicProduceResponse(topic, partition_responses=[PartitionProduceResponse(3, 0x0607)])])
    answer = encode_response_header(0, 9, 1) + encode(response, 9)
    at = produce_error_offset(topic)
    assert (len(answer).to_bytes(4, "big") + answer)[at : at + 2] == b"\x06\x07"


def test_oldest_request_has_its_key_and_version() -> None:
    header = decode_request_header(memoryview(api_versions_request())[4:])
    assert (header.key, header.version) == (18, 0)


def test_json_lines_are_the_same_in_every_run(tmp_path: Path) -> None:
    lines = json_lines(tmp_path).read_text().splitlines()
    again = tmp_path / "again"
    again.mkdir()
    assert json_lines(again).read_text().splitlines() == lines
    assert len(lines) == JSON_LINES
    assert all(900 < len(line) <= 1100 and json.loads(line)["items"] for line in lines)


def test_cpu_time_of_this_process_is_read_and_of_no_process_is_none() -> None:
    before = cpu_of(os.getpid())
    while cpu_of(os.getpid()) - before < 0.05:
        pass
    assert cpu_of(0) == 0.0


def test_interval_without_other_processes_has_no_negative_share() -> None:
    window = CpuWindow([os.getpid()])
    before = cpu_of(os.getpid())
    while cpu_of(os.getpid()) - before < 0.05:
        pass
    spent = window.close()
    assert spent.broker_cpu >= 0.05
    assert 0.0 <= spent.foreign_share <= 1.0


def test_measured_broker_uses_compiled_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("TIERED_LOG_LEVEL", "debug")
    assert "PYTHONDONTWRITEBYTECODE" not in broker_environment()
    assert broker_environment()["TIERED_LOG_LEVEL"] == "debug"


@pytest.mark.parametrize("keeps", [False, True])
def test_files_of_a_leg_are_removed_unless_kept(tmp_path: Path, keeps: bool) -> None:
    broker = TieredBroker(tmp_path, keep_files=keeps)
    (broker.directory / "data").mkdir()
    broker.close()
    assert broker.directory.exists() is keeps
