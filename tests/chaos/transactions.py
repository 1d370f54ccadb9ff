"""Clients that write in transactions, and a chain of copiers that consume, write and commit offsets in transactions."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.audit import PartitionKey, TransactionOutcome
from tests.chaos.client_log import ClientLog, logger
from tests.chaos.writers import PADDING, RETRIES

EACH = 2
"""Records of a transaction in each partition."""
ABORT_EVERY = 5
PAUSE_SECONDS = 0.1
"""Pause of a writer within each transaction, which stays open for so long."""
TRY_SECONDS = 10.0
"""Deadline of one call; a call that may be repeated is repeated until the client has ended."""
SILENCE_MS = 5000
"""Time after which a client asks for another coordinator: librdkafka would wait a minute for a silent one."""
OFFSETS_SECONDS = 4.0
"""Deadline of the offsets of a transaction. librdkafka 2.16 may miss it by hours, if the coordinator that it knows has
left the metadata for a moment (its issues 5456 and 5511)."""
GROUP = "copiers"
COPIED_AT_ONCE = 100
"""Most records of one transaction of a copier: with small segments, a batch has to fit into one."""
FAILED = (Exception,)
"""Errors that end a thread: the report has them."""


class CallHangsError(Exception):
    """A call of a client has not returned long after its deadline."""


class TransactionalProducer:
    """A transactional producer of confluent-kafka. It repeats what may be repeated, and begins anew after each other
    error."""

    def __init__(self, name: str, address: str, ending: threading.Event, log: logging.Logger) -> None:
        self.name = name
        self.restarts: list[str] = []
        """Errors, each of which ended one producer."""
        self._address = address
        self._ending = ending
        self._log = log
        self._doing = ""
        self.producer = self._start()

    def _start(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._address, "transactional.id": self.name, "linger.ms": 0, "log_level": 4,
                "socket.timeout.ms": SILENCE_MS, **RETRIES,
            },
            logger=self._log,
        )  # fmt: skip
        self.repeat(producer.init_transactions)
        return producer

    def repeat(self, call: Callable[[float], None]) -> None:
        """Calls until there is a result. Raises KafkaException for an error that cannot be repeated."""
        while True:
            try:
                call(TRY_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def begin(self) -> None:
        self._doing = "begin"
        self.producer.begin_transaction()

    def send_offsets(self, offsets: list[TopicPartition], member: object) -> None:
        """Adds offsets to the transaction. Raises CallHangsError if the client does not return."""
        self._doing = "send offsets"
        outcome: list[KafkaException | None] = []

        def call() -> None:
            try:
                self.repeat(lambda seconds: send(offsets, member, OFFSETS_SECONDS))
            except KafkaException as error:
                outcome.append(error)
            else:
                outcome.append(None)

        send = self.producer.send_offsets_to_transaction
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(2 * OFFSETS_SECONDS)
        if not outcome:
            raise CallHangsError
        if outcome[0] is not None:
            raise outcome[0]

    def commit(self) -> None:
        self._doing = "commit"
        self.repeat(self.producer.commit_transaction)

    def abort(self) -> None:
        """Aborts once all records have a reply. librdkafka 2.16 purges a batch whose reply was lost, and gives its
        sequence to the next one without a new epoch: then any broker takes that one for a repeated batch."""
        self._doing = "abort"
        while self.producer.flush(TRY_SECONDS) and not self._ending.is_set():
            pass
        self.repeat(self.producer.abort_transaction)

    def recover(self, error: KafkaException | CallHangsError) -> bool:
        """Starts another producer, which ends the transaction first. Returns True if it was not to be committed."""
        self.restarts.append(f"{self._doing}: {error!r}")
        was_committing = self._doing == "commit"
        while not self._ending.is_set():
            with suppress(KafkaException):
                self.producer = self._start()
                break
        return not was_committing


class TransactionalWriter:
    """Writes transactions over all partitions of a topic; every fifth is aborted. A record is `name.partition.number`,
    and its second word the number of the transaction. Only records of committed transactions count as acknowledged."""

    def __init__(self, name: str, address: str, topic: str, partitions: int, directory: Path) -> None:
        self.name = name
        self.topic = topic
        self.acked: dict[PartitionKey, list[tuple[int, int]]] = defaultdict(list)
        self.times: dict[PartitionKey, list[float]] = {}
        self.failures: list[str] = []
        self.epoch_bumps: list[str] = []
        self.outcomes: dict[int, TransactionOutcome] = {}
        self._log = ClientLog(directory / f"client-{name}.log")
        self._next_numbers = [0] * partitions
        self._ending = threading.Event()
        self._sent: list[tuple[int, int, int]] = []
        self._thread = threading.Thread(target=self._run, args=(address,), name=name, daemon=True)
        self._thread.start()

    def _run(self, address: str) -> None:
        producer = TransactionalProducer(self.name, address, self._ending, logger(self.name, self._log))
        self.epoch_bumps = producer.restarts
        number = 0
        while not self._ending.is_set():
            number += 1
            self._sent.clear()
            try:
                self._run_transaction(producer, number)
            except KafkaException as error:
                was_aborted = producer.recover(error)
                self.outcomes[number] = TransactionOutcome.ABORTED if was_aborted else TransactionOutcome.UNKNOWN

    def _run_transaction(self, producer: TransactionalProducer, number: int) -> None:
        producer.begin()
        for _ in range(EACH):
            for partition, next_number in enumerate(self._next_numbers):
                self._next_numbers[partition] += 1
                value = f"{self.name}.{partition}.{next_number} {number}".encode() + PADDING
                producer.producer.produce(self.topic, value, partition=partition, on_delivery=self._on_delivery)
        producer.producer.poll(PAUSE_SECONDS)
        self._ending.wait(PAUSE_SECONDS)
        if number % ABORT_EVERY == 0:
            producer.abort()
            self.outcomes[number] = TransactionOutcome.ABORTED
            return
        producer.commit()
        self.outcomes[number] = TransactionOutcome.COMMITTED
        for partition, record, offset in self._sent:
            self.acked[(self.topic, partition)].append((record, offset))

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        if error is None and value is not None and partition is not None and offset is not None:
            self._sent.append((partition, int(value.split()[0].rpartition(b".")[2]), offset))

    def next_numbers(self) -> dict[PartitionKey, int]:
        return {(self.topic, partition): number for partition, number in enumerate(self._next_numbers)}

    def finish(self, seconds: float) -> None:
        self._ending.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.failures.append(f"{self.name}: a transaction has not ended after {seconds} s")
        self._log.close()


class Copier:
    """Copies records of a topic to another in transactions that also commit the offsets of its group."""

    def __init__(
        self, number: int, address: str, topics: tuple[str, str], ending: threading.Event, log: logging.Logger
    ) -> None:
        self.copied: dict[int, int] = defaultdict(int)
        """By partition, the number of copied records."""
        self.restarts: list[str] = []
        self.failures: list[str] = []
        self.doing = "start"
        """The call that it is in, for the report of a copier that hangs."""
        self._assigned: list[TopicPartition] = []
        """Its partitions. `Consumer.assignment` of confluent-kafka waits for a thread of librdkafka with Python's lock,
        and that thread may wait for the lock to log something: then nothing of this process runs any more."""
        self._name = f"copier-{number}"
        self._source, self._target = topics
        self._address = address
        self._ending = ending
        self._log = log
        self.thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._copy_all()
        except FAILED as error:
            self.failures.append(f"{self._name} ended in {self.doing}: {error!r}")

    def _copy_all(self) -> None:
        producer = TransactionalProducer(self._name, self._address, self._ending, self._log)
        self.restarts = producer.restarts
        consumer = Consumer(
            {
                "bootstrap.servers": self._address, "group.id": GROUP, "enable.auto.commit": False, "log_level": 4,
                "auto.offset.reset": "earliest", "isolation.level": "read_committed", "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 100, "socket.timeout.ms": SILENCE_MS,
            },
            logger=self._log,
        )  # fmt: skip
        consumer.subscribe([self._source], on_assign=self._on_assign, on_revoke=self._on_revoke)
        while not self._ending.is_set():
            self.doing = "consume"
            messages = [each for each in consumer.consume(COPIED_AT_ONCE, 0.1) if not each.error()]
            if messages:
                try:
                    self._copy(producer, consumer, messages)
                except (KafkaException, CallHangsError) as error:
                    self.doing = f"recovery of {self.doing}"
                    producer.recover(error)
                    self._rewind(consumer)
        consumer.close()

    def _copy(self, producer: TransactionalProducer, consumer: Consumer, messages: list[Message]) -> None:
        self.doing = "begin"
        producer.begin()
        counts: dict[int, int] = defaultdict(int)
        ends: dict[int, int] = {}
        for each in messages:
            value, partition, offset = each.value(), each.partition(), each.offset()
            assert value is not None and partition is not None and offset is not None
            producer.producer.produce(self._target, value, partition=partition)
            counts[partition] += 1
            ends[partition] = offset + 1
        offsets = [TopicPartition(self._source, partition, end) for partition, end in ends.items()]
        member = consumer.consumer_group_metadata()
        self.doing = "send offsets"
        producer.send_offsets(offsets, member)
        self.doing = "commit"
        producer.commit()
        for partition, count in counts.items():
            self.copied[partition] += count

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = partitions

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = []

    def _rewind(self, consumer: Consumer) -> None:
        """Reads on at the committed offsets of its partitions."""
        while not self._ending.is_set():
            self.doing = "rewind"
            try:
                for each in consumer.committed(self._assigned, TRY_SECONDS):
                    consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))
            except KafkaException:
                self._ending.wait(PAUSE_SECONDS)
            else:
                return


class CopierChain:
    """Three copiers as one client of a run: each record of the source has to come to the target exactly once."""

    def __init__(self, address: str, topics: tuple[str, str], partitions: int, directory: Path) -> None:
        self.name = "copiers"
        self.times: dict[PartitionKey, list[float]] = {}
        self._failures: list[str] = []
        self._address = address
        self._source, self._target = topics
        self._partitions = partitions
        self._ending = threading.Event()
        self._log = ClientLog(directory / "client-copiers.log")
        log = logger(self.name, self._log)
        self._copiers = [Copier(number, address, topics, self._ending, log) for number in range(3)]

    @property
    def acked(self) -> dict[PartitionKey, list[tuple[int, int]]]:
        """Returns the number of the last copied record of each partition."""
        copied = self.next_numbers()
        return {place: [(count - 1, -1)] for place, count in copied.items() if count}

    @property
    def failures(self) -> list[str]:
        return self._failures + [each for copier in self._copiers for each in copier.failures]

    @property
    def epoch_bumps(self) -> list[str]:
        return [each for copier in self._copiers for each in copier.restarts]

    def next_numbers(self) -> dict[PartitionKey, int]:
        return {
            (self._target, partition): sum(each.copied[partition] for each in self._copiers)
            for partition in range(self._partitions)
        }

    def wait_copied(self, ends: dict[int, int], seconds: float) -> None:
        """Waits until the group's offsets are at the end of the source; `ends` has it by partition."""
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": GROUP, "log_level": 0})
        asked = [TopicPartition(self._source, partition) for partition in ends]
        deadline = time.monotonic() + seconds
        found: dict[int, int] = {}
        while time.monotonic() < deadline and any(found.get(each, -1) < end for each, end in ends.items()):
            with suppress(KafkaException):
                found = {each.partition: each.offset for each in consumer.committed(asked, TRY_SECONDS)}
            time.sleep(PAUSE_SECONDS)
        consumer.close()
        if any(found.get(each, -1) < end for each, end in ends.items()):
            doing = [each.doing for each in self._copiers]
            why = f"copiers: committed {found} after {seconds} s, the source ends at {ends}; they are in {doing}"
            self._failures.append(why)

    def finish(self, seconds: float) -> None:
        self._ending.set()
        for each in self._copiers:
            each.thread.join(seconds)
            if each.thread.is_alive():
                self._failures.append(f"{each.thread.name}: a transaction has not ended after {seconds} s")
        self._log.close()
