"""Tests of transactions over HTTP: transactional ids, the open transactions of a topic, and their abort."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.test_group_metrics import commit_at_coordinator
from tests.e2e.test_http_acls import grant
from tests.e2e.test_http_group_acts import ask_until_led
from tests.e2e.test_http_read_committed import ONE as PRODUCER
from tests.e2e.test_http_read_committed import Producers
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AclChoice, DeleteAcls
from tiered.ids import TopicPartition
from tiered.system.clock import SystemClock
from tiered.system.network import SocketNet
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.transactions import ProducerTransaction

PATH = "/tiered/v1/transactions"
EXPLAIN = "/tiered/v1/topics/t/partitions/0/explain"
OPEN = "/tiered/v1/topics/t/transactions"
ABORT = "/tiered/v1/topics/t/partitions/0/transactions:abort"


@asynccontextmanager
async def begun(three: HttpCluster, name: str) -> AsyncIterator[int]:
    """Begins a transaction with partition 0 of `t`; yields its producer id."""
    host, port = next(iter(three[1].kafka.addresses.values())).address.rsplit(":", 1)
    client = KafkaClient(SocketNet(), SystemClock(), [Address(host, int(port))])
    try:
        transaction = ProducerTransaction(client, name, 60_000)
        producer_id, _ = await transaction.begin()
        await transaction.add_partitions([TopicPartition("t", 0)])
        yield producer_id
    finally:
        await client.close()


@run_by(run, "tmp_path")
async def test_open_transaction_is_listed_first_and_aborted_from_any_broker(three: HttpCluster) -> None:
    await three.create("t", [1, 2])
    for number, broker in three.brokers.items():
        async with begun(three, f"id/{number}") as producer_id:
            found = (await broker.get(PATH)).json
            assert (found["left_out"], found["partial"]) == (0, False)
            row = found["transactions"][0]
            assert (row["transactional_id"], row["state"], row["producer_id"]) == (
                f"id/{number}",
                "Ongoing",
                producer_id,
            )
            assert (row["partitions"], row["timeout_ms"]) == (["t/0"], 60_000) and row["started_ms"] > 0
            assert (await broker.ask("POST", f"{PATH}/id%2F{number}/abort", {})).status == 204
            [row] = [
                row
                for row in (await broker.get(PATH)).json["transactions"]
                if row["transactional_id"] == f"id/{number}"
            ]
            assert row["state"] != "Ongoing"
    missing = await three[1].ask("POST", f"{PATH}/absent/abort", {})
    assert missing.status == 404 and "absent" in missing.json["message"]
    assert "absent" not in str((await three[1].get(PATH)).json)


@run_by(run, "tmp_path")
async def test_hanging_transaction_is_told_and_aborted(three: HttpCluster) -> None:
    await three.create("t", [2, 1])
    await three[1].produce("t", "a")
    await Producers(three[2]).write(PRODUCER, "b")
    for broker in three.brokers.values():
        [row] = (await broker.get(OPEN)).json["transactions"]
        assert (row["partition"], row["start_offset"], row["producer_id"], row["hanging"]) == (0, 1, PRODUCER, True)
        fact = (await broker.get(EXPLAIN)).json["facts"][0]
        assert fact["code"] == "hanging-transaction" and "-t t -p 0 --start-offset 1`" in fact["mend"]
    wrong = await three[3].ask("POST", ABORT, {"start_offset": 0})
    assert wrong.json["error_code"] == 40002 and "begins at offset 0" in wrong.json["message"]
    assert (await ask_until_led(three[3], ABORT, {"start_offset": 1})).status == 204
    assert (await three[3].get(OPEN)).json["transactions"] == []
    got = (await three[1].get("/topics/t/partitions/0/records?offset=0")).json
    assert ([row["value"] for row in got["records"]], got["next_offset"]) == (["a"], 3)


@run_by(run, "tmp_path")
async def test_transaction_of_a_coordinator_is_aborted_only_by_force(three: HttpCluster) -> None:
    await three.create("t", [2, 1])
    async with begun(three, "held") as producer_id:
        await Producers(three[2]).write(producer_id, "b")
        await commit_at_coordinator(three, "g", ("t", 0, 0))
        [row] = (await three[1].get(OPEN)).json["transactions"]
        assert (row["producer_id"], row["hanging"]) == (producer_id, False)
        for broker in three.brokers.values():
            fact = (await broker.get(EXPLAIN)).json["facts"][0]
            values = fact["values"]
            assert (fact["code"], values["transactional_id"], values["timeout_ms"]) == (
                "open-transaction", "held", 60_000,
            )  # fmt: skip
            assert values["producer_id"] == producer_id and values["since_ms"] > 0 and values["last_stable_offset"] == 0
            for path in ("/tiered/v1/topics/t/explain", "/tiered/v1/groups/g/explain"):
                facts = {each["code"]: each for each in (await broker.get(path)).json["facts"]}
                assert facts["open-transaction"]["values"]["transactional_id"] == "held", path
        refused = await ask_until_led(three[1], ABORT, {"start_offset": 0})
        assert refused.status == 409 and "may yet commit it" in refused.json["message"]
        assert (await ask_until_led(three[1], ABORT, {"start_offset": 0, "force": True})).status == 204
        assert (await three[1].get(OPEN)).json["transactions"] == []


@run_by(run, "tmp_path", numbers=(1,), authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:owner")
async def test_transactions_need_the_rights_of_the_protocol(three: HttpCluster) -> None:
    site = three[1]
    await three.create("t", [1])
    await Producers(site).write(PRODUCER, "b")
    assert (await site.get(PATH)).json == {"transactions": [], "left_out": 0, "partial": True}
    assert (await site.get(OPEN)).json["error_code"] == 40301
    for path, body in ((f"{PATH}/id/abort", {}), (ABORT, {"start_offset": 0})):
        assert (await site.ask("POST", path, body)).json["error_code"] == 40301
    await grant(site, ("TOPIC", "t", "READ"), ("TRANSACTIONAL_ID", "*", "DESCRIBE"))
    assert (await site.get(PATH)).json["partial"] is False
    assert len((await site.get(OPEN)).json["transactions"]) == 1
    assert (await site.ask("POST", ABORT, {"start_offset": 0})).json["error_code"] == 40301
    await grant(site, ("CLUSTER", "kafka-cluster", "ALTER"))
    assert (await site.ask("POST", ABORT, {"start_offset": 0})).status == 204
    await grant(site, ("TOPIC", "t", "WRITE"), ("TRANSACTIONAL_ID", "held", "WRITE"))
    async with begun(three, "held") as producer_id:
        await Producers(site).write(producer_id, "c")
        for name in ("held", None):
            fact = (await site.get(EXPLAIN)).json["facts"][0]
            assert (fact["code"], fact["values"]["transactional_id"]) == ("open-transaction", name)
            chosen = AclChoice("TRANSACTIONAL_ID", "ANY", None, None, None, "ANY", "ANY")
            await site.broker.submit(DeleteAcls((chosen,)))
