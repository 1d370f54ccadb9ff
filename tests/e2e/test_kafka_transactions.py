"""Tests of transactions over real sockets: each client's versions, and bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kafka_site import KafkaBroker, run, wait_until
from tests.e2e.transaction_calls import CLIENTS, TransactionalClient, Versions, read_decided
from tiered.errors import Code

ONE_STATE_PARTITION = {"transaction_state_log_num_partitions": 2}
BY_CLIENT = pytest.mark.parametrize("versions", CLIENTS.values(), ids=CLIENTS.keys())


def run_transactions(directory: Path, scenario: object, **settings: object) -> None:
    """Runs a scenario on a broker with few partitions of `__transaction_state`."""
    run(directory, scenario, **(ONE_STATE_PARTITION | settings))  # type: ignore[arg-type]


@BY_CLIENT
def test_transactions_over_several_partitions_commit_and_abort(tmp_path: Path, versions: Versions) -> None:
    async def scenario(site: KafkaBroker) -> None:
        first = await site.create("a", 2)
        replicas = [first, site.node.leader_replica("a", 1), await site.create("b")]
        client = await site.client()
        producer = TransactionalClient(client, versions=versions)
        assert await producer.init() is Code.NONE
        for turn, commit in enumerate((True, False, True, False)):
            for replica in replicas:
                assert await producer.write(replica, b"%d-0" % turn, b"%d-1" % turn) is Code.NONE
                assert await producer.send(replica, b"%d-2" % turn) is Code.NONE
            assert await producer.end(commit) is Code.NONE
            if versions.end < 5:
                assert await producer.end(commit) is Code.NONE, "the same request, sent again"
        for replica in replicas:
            await wait_until(lambda replica=replica: replica.log.end_offset == 16)  # type: ignore[misc]
            values, stable = await read_decided(client, replica)
            assert values == [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"] and stable == 16

    run_transactions(tmp_path, scenario)
