"""Kafka's own decoder reads the records of a shard, and the shard reads Kafka's."""

from __future__ import annotations

import re
import time
from pathlib import Path

import confluent_kafka
import pytest

from tests.peer.kafka import Peer, tool
from tests.unit.transactions.rig import P0, P1, WALL_MS, ShardRig
from tiered.records.batch import decode_header, decode_records, encode_batch
from tiered.shard import CoordinatorRecord
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.metadata import TransactionMetadata, TransactionState
from tiered.transactions.records import read_key, read_value, transaction_key, transaction_record
from tiered.transactions.shard import TransactionShard

pytestmark = [pytest.mark.java, pytest.mark.slow]

LOG = "__transaction_state-0/00000000000000000000.log"
OPTIONS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETED = {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
PREVIOUS_STATES = {
    EMPTY: {EMPTY, *COMPLETED},
    ONGOING: {EMPTY, ONGOING, *COMPLETED},
    PREPARE_COMMIT: {ONGOING},
    PREPARE_ABORT: {EMPTY, ONGOING, *COMPLETED},
    TransactionState.COMPLETE_COMMIT: {PREPARE_COMMIT},
    TransactionState.COMPLETE_ABORT: {PREPARE_ABORT},
}
"""The states from which each state may be reached. An abort without any partition is a transaction of version 2."""


def test_kafkas_decoder_reads_all_states_of_a_shard(tmp_path: Path) -> None:
    rig = ShardRig()
    producer = rig.init()
    rig.add(producer, P0, P1)
    producer = rig.end(producer, True)
    rig.write_all_markers()
    rig.add(producer, P1)
    rig.pass_time(60_000)
    rig.write_all_markers()
    rig.pass_time(rig.settings.id_expiration_ms + rig.settings.expiration_check_ms)
    log = tmp_path / LOG
    log.parent.mkdir()
    log.write_bytes(bytes(encode_batch([(WALL_MS, each.key, each.value, ()) for each in rig.log])))
    text = tool("dump-log", "--files", str(log), "--transaction-log-decoder")
    assert not re.search("exception|error|corrupt", text, re.IGNORECASE), text
    assert re.findall(r'"transactionStatus":(\d)', text) == ["0", "1", "2", "4", "1", "3", "5"]
    assert text.count("payload: <DELETE>") == 1


@pytest.mark.also("kafka")
def test_records_of_kafka_are_read_and_written_byte_for_byte() -> None:
    with Peer(OPTIONS) as peer:
        for outcomes in (("commit", "abort", "commit"), ("open",), ("commit", "timeout")):
            _run_transactions(peer.address, outcomes)
        log = peer.logs / LOG
        deadline = time.monotonic() + 30
        while (records := _written(log)) and _last(records).state is not TransactionState.COMPLETE_ABORT:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert len(records) > 20
    found: dict[str, TransactionMetadata] = {}
    for record in records:
        name = read_key(record.key)
        assert name is not None and record.value is not None and record.key == transaction_key(name)
        value = read_value(record.value)
        assert transaction_record(name, value).value == record.value, value
        before = found.get(name)
        if before is not None:
            assert before.state in PREVIOUS_STATES[value.state], (before, value)
        found[name] = value
    shard = TransactionShard(TransactionSettings())
    shard.apply(records)
    assert shard.state.transactions == found and shard.state.skipped_records == 0


def _run_transactions(address: str, outcomes: tuple[str, ...]) -> None:
    """Runs one producer of the id "t". An open transaction is fenced by the next producer."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": "t", "transaction.timeout.ms": 1_000}
    )
    producer.init_transactions(30)
    for outcome in outcomes:
        producer.begin_transaction()
        for topic in "uv":
            producer.produce(topic, b"x")
        producer.flush(30)
        if outcome == "commit":
            producer.commit_transaction(30)
        elif outcome == "abort":
            producer.abort_transaction(30)


def _written(log: Path) -> list[CoordinatorRecord]:
    raw, records = log.read_bytes(), []
    position = 0
    while position < len(raw):
        header = decode_header(raw, position)
        records += [
            CoordinatorRecord(bytes(each.key or b""), each.value)
            for each in decode_records(raw[position : position + header.size])
        ]
        position += header.size
    return records


def _last(records: list[CoordinatorRecord]) -> TransactionMetadata:
    value = records[-1].value
    assert value is not None
    return read_value(value)
