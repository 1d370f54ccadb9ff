"""The file `log/adopted`: logs that another process of this machine gave to this data directory (I36).

The machine writes the file before it renames the first log (`log_mover`). The file stays until the controller has
given the place of the giver to this broker. Without it a start would delete the logs: the metadata names no replica of
them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiered.controller.adoption import describe_refusal
from tiered.controller.requests import AdoptedReplicas
from tiered.errors import Corrupt
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.image import Image
from tiered.object_store.envelope import seal, unseal

ADOPTED_FILE = "adopted"
VERSION = 1


class AdoptedLog(NamedTuple):
    """A log, the broker that it comes from, and the last incarnation and the data directory of that broker."""

    tp: TopicPartition
    topic_id: TopicId
    from_node: int
    directory: str
    incarnation: str


def encode_adopted(logs: Iterable[AdoptedLog]) -> bytes:
    """Returns the content of the file."""
    rows = [(*each.tp, each.topic_id, each.from_node, each.directory, each.incarnation) for each in logs]
    return seal({"version": VERSION, "logs": rows})


def parse_adopted(data: bytes, where: str) -> tuple[AdoptedLog, ...]:
    """Returns the logs in the file. Raises `Corrupt`: a broker that guessed would delete logs."""
    remedy = "it names logs that were moved here, and a start without it would delete them: put the file back"
    try:
        body = unseal(data, where)
        if body["version"] != VERSION:
            raise Corrupt(f"the file has version {body['version']!r}, this program reads {VERSION}", where=where)
        return tuple(
            AdoptedLog(
                TopicPartition(str(topic), int(p)), TopicId(topic_id), int(node), str(directory), str(incarnation)
            )
            for topic, p, topic_id, node, directory, incarnation in body["logs"]
        )
    except (Corrupt, KeyError, TypeError, ValueError) as error:
        why = error if isinstance(error, Corrupt) else "the file has another form"
        raise Corrupt(f"{why} ({remedy})", where=where) from None


def group_by_giver(logs: Iterable[AdoptedLog]) -> tuple[AdoptedReplicas, ...]:
    """Returns the logs as a registration names them."""
    found: dict[tuple[int, str, str], list[tuple[TopicId, int]]] = {}
    for each in logs:
        giver = (each.from_node, each.directory, each.incarnation)
        found.setdefault(giver, []).append((each.topic_id, each.tp.partition))
    return tuple(AdoptedReplicas(*giver, tuple(partitions)) for giver, partitions in found.items())


def choose_adopted(
    image: Image, node: int, process: int, logs: Sequence[AdoptedLog]
) -> tuple[tuple[AdoptedLog, ...], tuple[tuple[AdoptedLog, str], ...]]:
    """Returns the logs whose replicas a broker takes over when it registers, and those that it will never take over
    although the giver still has the replica, each with the reason.

    Leaves out the logs of replicas that the giver does not have, as the controller does: the metadata says if they are
    here already, or nowhere.
    """
    held = [each for each in logs if _is_held(image, node, each)]
    refused: list[tuple[AdoptedLog, str]] = []
    for given in group_by_giver(held):
        if why := describe_refusal(image, node, process, given):
            partitions = set(given.partitions)
            refused += [(each, why) for each in held if (each.topic_id, each.tp.partition) in partitions]
    left_out = {each.tp for each, _ in refused}
    return tuple(each for each in held if each.tp not in left_out), tuple(refused)


def _is_held(image: Image, node: int, each: AdoptedLog) -> bool:
    topic = image.topics_by_id.get(each.topic_id)
    if topic is None or topic.name != each.tp.topic or each.tp.partition >= len(topic.partitions):
        return False
    replicas = topic.partitions[each.tp.partition].replicas
    return each.from_node in replicas and node not in replicas
