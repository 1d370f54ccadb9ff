"""The check of transactional records: no record may come into a partition whose transaction does not have it (KIP-890).

Otherwise a late record could begin a transaction that nobody ends. So the leader queries the coordinator before the
first record of a transaction in a partition. From Produce v12 on the query adds the partition; before v12 it looks if
the partition was added. A guard binds the reply to the state of the partition: a marker that is written meanwhile makes
the guard invalid. Keeps I14.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.peers import TransactionPartitions
from tiered.producers.verification import UnverifiedProducer, VerificationGuard
from tiered.records.model import ATTRIBUTES_END, HEADER_BYTES, TRANSACTIONAL
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.server.produce.frames import ProduceTopic

ABORTABLE_FROM, ADDS_FROM = 11, 12
_WITHOUT_COORDINATOR = frozenset(
    (
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.REQUEST_TIMED_OUT,
    )
)

QueryCoordinator = Callable[[TransactionPartitions], Awaitable[Mapping[TopicPartition, Code]]]
"""Queries the coordinator of a transaction about partitions. Returns a code for each."""
ConfirmNow = Callable[[TransactionPartitions], bool]
"""True if the coordinator replies without a wait that all partitions are in the transaction."""
Place = tuple[bytes, int]
"""A partition of a request: the bytes that name the topic, and the partition."""
Guards = dict[Place, VerificationGuard | Refused]
"""The guards for the appends that begin a transaction in a partition, or their refusals."""


class Unverified(NamedTuple):
    """A partition whose records would begin a transaction there."""

    place: Place
    replica: LeaderReplica
    producer: UnverifiedProducer


def find_unverified(
    topics: Sequence[ProduceTopic], find_replica: Callable[[ProduceTopic, int], LeaderReplica]
) -> list[Unverified]:
    """Returns the partitions of a transactional request that have to be verified before the append."""
    found = []
    for topic in topics:
        for index, records in topic.partitions:
            if records is None or len(records) < HEADER_BYTES or not records[ATTRIBUTES_END - 1] & TRANSACTIONAL:
                continue
            try:
                replica = find_replica(topic, index)
                producer = replica.transactions.needs_verification(records)
            except Refused:  # the append refuses the records, and says why
                continue
            if producer is not None:
                found.append(Unverified((topic.echo, index), replica, producer))
    return found


async def verify_partitions(
    query: QueryCoordinator | None, transactional_id: str, unverified: Sequence[Unverified], version: int
) -> Guards:
    """Returns a guard for each partition that is in the transaction, and the refusal for each other one.

    Without `query` all partitions count as verified. The caller ends the guards with `end_guards`.
    """
    if not _is_of_one_producer(unverified):
        why = "a request has transactional records of one producer"
        return {each.place: Refused(Code.INVALID_PRODUCER_ID_MAPPING, why) for each in unverified}
    guards: Guards = {**_begin_guards(unverified, version)}
    if query is None:
        return guards
    try:
        codes = await query(_to_partitions(transactional_id, unverified, version))
    except BaseException:
        end_guards(unverified, guards)
        raise
    for each in unverified:
        code, stop_error = codes.get(each.replica.tp, Code.NETWORK_EXCEPTION), each.replica.reads.stop_error
        if stop_error is not None:
            end_guards((each,), guards)
            guards[each.place] = stop_error
        elif code is not Code.NONE:
            end_guards((each,), guards)
            why = f"the partition is not in the transaction of {transactional_id[:249]!r}: {code.name}"
            guards[each.place] = Refused(_code_for_producer(code, version), why)
    return guards


def verify_partitions_now(
    confirm_now: ConfirmNow | None, transactional_id: str, unverified: Sequence[Unverified], version: int
) -> dict[Place, VerificationGuard] | None:
    """Returns a guard for each partition if the coordinator confirms all of them at once. Returns None if
    `verify_partitions` has to look: it may send a query.

    Nothing else runs between the reply and the append, so no marker can come between.
    """
    if not _is_of_one_producer(unverified):
        return None
    if confirm_now is not None and not confirm_now(_to_partitions(transactional_id, unverified, version)):
        return None
    return _begin_guards(unverified, version)


def _is_of_one_producer(unverified: Sequence[Unverified]) -> bool:
    first = unverified[0].producer[:2]
    return all(each.producer[:2] == first for each in unverified)


def _begin_guards(unverified: Sequence[Unverified], version: int) -> dict[Place, VerificationGuard]:
    moves_epoch = version >= ADDS_FROM
    return {
        each.place: each.replica.transactions.begin_verification(*each.producer, moves_epoch=moves_epoch)
        for each in unverified
    }


def _to_partitions(transactional_id: str, unverified: Sequence[Unverified], version: int) -> TransactionPartitions:
    producer_id, producer_epoch, _ = unverified[0].producer
    partitions = [each.replica.tp for each in unverified]
    return TransactionPartitions(transactional_id, producer_id, producer_epoch, version < ADDS_FROM, partitions)


def end_guards(unverified: Iterable[Unverified], guards: Mapping[Place, VerificationGuard | Refused]) -> None:
    """Gives back the guards of these partitions."""
    for each in unverified:
        guard = guards.get(each.place)
        if guard is not None and not isinstance(guard, Refused):
            each.replica.transactions.end_verification(guard)


def _code_for_producer(code: Code, version: int) -> Code:
    """Returns the code for a producer. Older clients do not retry the codes of coordinators in Produce, so they get one
    that they retry without new metadata."""
    match code:
        case Code.PRODUCER_FENCED:
            return Code.INVALID_PRODUCER_EPOCH
        case Code.TRANSACTION_ABORTABLE if version < ABORTABLE_FROM:
            return Code.INVALID_TXN_STATE
        case Code.CONCURRENT_TRANSACTIONS if version < ADDS_FROM:
            return Code.NOT_ENOUGH_REPLICAS
        case _ if code in _WITHOUT_COORDINATOR:
            return Code.NOT_ENOUGH_REPLICAS
    return code
