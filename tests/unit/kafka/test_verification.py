"""Guards of a produce request: none is used under another leadership than the one that took it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.scenario import in_rig
from tests.unit.replication.rig import ReplicationRig
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.peers import TransactionPartitions
from tiered.producers.verification import UnverifiedProducer
from tiered_api.kafka.server.produce.verification import ADDS_FROM, Unverified, verify_partitions

PLACE = (b"t", 0)


@in_rig(ReplicationRig, config=TopicConfig(remote_storage_enable=False))
async def test_leader_that_resigned_during_the_question_names_the_reason(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    why = Refused(Code.NOT_LEADER_OR_FOLLOWER, "another broker leads")

    async def ask(asked: TransactionPartitions) -> Mapping[TopicPartition, Code]:
        replica.resign(why)
        return dict.fromkeys(asked.partitions, Code.NONE)

    unverified = [Unverified(PLACE, replica, UnverifiedProducer(5, 0))]
    assert await verify_partitions(ask, "txn", unverified, ADDS_FROM) == {PLACE: why}
