"""The cost of each request to the controller, in changes that count against `controller_mutation_rate`.

Topics cost a change for each partition, as in Kafka (KIP-599). Kafka charges nothing else. Here all other changes of
metadata cost one for each entity that the request names: each is a decision, a commit, and an image on every broker.
A request that only validates costs the same, as in Kafka: the controller decides it too. The requests that brokers send
for themselves count for nobody.
"""

from __future__ import annotations

from tiered.controller import requests
from tiered.controller.requests import Request
from tiered.metadata.image import Image


def count_changes(request: Request, image: Image, default_partitions: int) -> int:
    """Returns the changes for which the caller of a request pays, by the partitions that `image` has.

    `default_partitions` are those of a topic that is created without a number.
    """
    match request:
        case requests.CreateTopic():
            if request.assignments is not None:
                return len(request.assignments)
            return default_partitions if request.partitions == -1 else max(request.partitions, 1)
        case requests.CreateTopics():
            return sum(count_changes(each, image, default_partitions) for each in request.topics)
        case requests.DeleteTopic():
            return _count_partitions(image, request.name)
        case requests.CreatePartitions():
            known = _count_partitions(image, request.name)
            return max(0, request.count - known) if known else 0
        case requests.ElectLeaders():
            return image.partition_count if request.partitions is None else len(request.partitions)
        case requests.Reassign():
            return len(request.moves)
        case requests.AcknowledgeLosses():
            return len(request.losses)
        case requests.UpdateFeatures():
            return len(request.updates)
        case requests.CreateAcls():
            return len(request.acls)
        case requests.DeleteAcls():
            return len(request.filters)
        case requests.AlterScramCredentials():
            return len(request.deletions) + len(request.upsertions)
        case requests.AlterClientQuotas():
            return len(request.alterations)
        case (
            requests.AlterTopicConfigs()
            | requests.AlterBrokerConfigs()
            | requests.AlterGroupConfigs()
            | requests.UnregisterBroker()
            | requests.RotateBrokerSecret()
            | requests.CreateDelegationToken()
            | requests.RenewDelegationToken()
            | requests.ExpireDelegationToken()
        ):
            return 1
        case _:
            return 0


def _count_partitions(image: Image, name: str) -> int:
    topic = image.topics.get(name)
    return 0 if topic is None else len(topic.partitions)
