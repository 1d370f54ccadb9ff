"""ElectLeaders (API key 43): partitions go back to the replica that should lead them, or (v1+) to any that is left.

Leaders are elected by themselves here: a partition that exists is led by the best that is there, so the answer is
that no election was needed, as Kafka says then. Null asks for all partitions; those that need none are left out then.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered_api.kafka.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from tiered_api.kafka.site import Call, Site

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED = "no election was needed"


async def handle(site: Site, call: Call[ElectLeadersRequest]) -> ElectLeadersResponse:
    """One result per partition that was asked for."""
    request = call.request
    if request.topic_partitions is None:
        return ElectLeadersResponse(
            replica_election_results=[ReplicaElectionResult(name) for name in site.node.image.topics]
        )
    known = request.election_type in (PREFERRED, UNCLEAN)
    results = [
        ReplicaElectionResult(topic.topic, [_result(site, topic.topic, number, known) for number in topic.partitions])
        for topic in request.topic_partitions
    ]
    return ElectLeadersResponse(0, (Code.NONE if known else Code.INVALID_REQUEST).number, results)


def _result(site: Site, name: str, number: int, known: bool) -> PartitionResult:
    if not known:
        return PartitionResult(number, Code.INVALID_REQUEST.number, "unknown type of election")
    topic = site.node.image.topics.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        why = f"there is no partition {number} of topic {name[:249]!r}"
        return PartitionResult(number, Code.UNKNOWN_TOPIC_OR_PARTITION.number, why)
    return PartitionResult(number, Code.ELECTION_NOT_NEEDED.number, NOT_NEEDED)
