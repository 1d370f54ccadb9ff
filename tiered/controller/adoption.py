"""Replicas that a broker takes over from another process of its machine, together with the files of their logs (I36).

A machine with another number of processes moves logs from one data directory to another by renames, while none of its
processes runs. The receiver names the moved replicas in its registration, and takes the giver's place in each of them.
The clean mark of the giver proves the logs whole: it names the incarnation that was the last to run there (R1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tiered.config.settings import Settings
from tiered.controller.requests import AdoptedReplicas
from tiered.errors import Code, Refused
from tiered.ids import PROCESS_STEP, PartitionId, machine_of
from tiered.metadata.features import PROCESSES, PROCESSES_REFUSED
from tiered.metadata.image import Image


def find_adopted(
    image: Image, node: int, process: int, adopted: Sequence[AdoptedReplicas]
) -> Mapping[PartitionId, AdoptedReplicas]:
    """Returns the replicas that `node`, a process of its machine, takes over. Leaves out those that the giver no longer
    has: the topic was deleted, the replica was moved away, or an earlier registration has taken it over.

    Raises `Refused`: DUPLICATE_BROKER_REGISTRATION while the giver counts as live, else INVALID_REGISTRATION.
    """
    found: dict[PartitionId, AdoptedReplicas] = {}
    for given in adopted:
        for topic_id, p in given.partitions:
            topic = image.topics_by_id.get(topic_id)
            if topic is None or not 0 <= p < len(topic.partitions):
                continue
            replicas = topic.partitions[p].replicas
            if given.from_node not in replicas:
                continue
            if node in replicas:
                raise _refuse(f"{topic.name}-{p} has a replica on broker {node} and on broker {given.from_node}")
            _check_giver(image, node, process, given)
            found[PartitionId(topic_id, p)] = given
    return found


def is_proved(image: Image, given: AdoptedReplicas) -> bool:
    """True if the cluster trusts the directory that the logs come from: its clean mark proves them whole."""
    return bool(given.directory) and image.brokers[given.from_node].directory == given.directory


def find_left_out(image: Image, node: int, settings: Settings) -> list[int]:
    """Returns the brokers that are processes of the machine of `node`, and that its settings do not start any more."""
    machine = machine_of(node, settings.process)
    return [
        each.node_id
        for each in image.brokers.values()
        if each.machine == machine and each.process >= settings.processes and not each.live
    ]


def describe_left_out(image: Image, node: int, settings: Settings) -> Iterator[str]:
    """Yields which brokers are processes that the machine of `node` does not start any more, although they have
    replicas: their logs were lost, so that no other process took them over. The first process alone names them, once
    all processes are live: until then one of these may take logs over.
    """
    left_out = find_left_out(image, node, settings) if settings.process == 0 else []
    started = (image.brokers.get(node + PROCESS_STEP * number) for number in range(settings.processes))
    if not left_out or not all(each is not None and each.live for each in started):
        return
    for each in left_out:
        if count := image.replica_counts.get(each, 0):
            process = image.brokers[each].process
            yield (
                f"broker {each} is process {process} of this machine, which starts {settings.processes} of them, and"
                f" its logs are gone: {count} of the cluster's replicas wait for it (start the machine with"
                f" tiered.processes={process + 1} until they are in sync, or move them away by tiered cluster"
                f" decommission {each})"
            )


def _check_giver(image: Image, node: int, process: int, given: AdoptedReplicas) -> None:
    if image.metadata_version < PROCESSES:
        raise Refused(Code.UNSUPPORTED_VERSION, PROCESSES_REFUSED)
    if why := describe_refusal(image, node, process, given):
        raise _refuse(why)
    if image.brokers[given.from_node].live:
        why = f"broker {given.from_node} counts as live: broker {node} takes over its replicas once it is fenced"
        raise Refused(Code.DUPLICATE_BROKER_REGISTRATION, why)


def describe_refusal(image: Image, node: int, process: int, given: AdoptedReplicas) -> str:
    """Returns why a broker will never take over replicas of this giver; "" if it may do so once the giver is not
    live."""
    giver = image.brokers.get(given.from_node)
    if giver is None or giver.node_id == node or giver.machine != machine_of(node, process):
        return f"broker {given.from_node} is no other process of the machine of broker {node}"
    if giver.incarnation != given.incarnation or giver.directory not in ("", given.directory):
        return f"another process ran as broker {giver.node_id}, after the one whose logs were moved"
    return ""


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REGISTRATION, why)
