"""kafka-python as a driver for tests: see `lines`."""

from __future__ import annotations

import sys
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from tests.compat.drivers.lines import fetch_token, headers_of, read_login, record, say, serve, unpack

SECONDS = 90
LARGEST = 2_000_000
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "round-robin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def places(partitions: list[list[Any]]) -> list[TopicPartition]:
    """Returns `[topic, partition]` as the client's types."""
    return [TopicPartition(*each[:2]) for each in partitions]


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Gets a new token for each login."""

    def __init__(self, login: dict[str, str]) -> None:
        self.login = login

    def token(self) -> str:
        return fetch_token(self.login)


def login_settings() -> dict[str, Any]:
    """Returns the settings of the login."""
    login = read_login()
    if login is None:
        return {}
    settings = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": login["mechanism"],
        "ssl_cafile": login["authority"],
    }
    if login["token_url"]:
        return {**settings, "sasl_oauth_token_provider": TokenProvider(login)}
    return {**settings, "sasl_plain_username": login["user"], "sasl_plain_password": login["password"]}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Reports the assignment after each rebalance."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        say(revoked=sorted(list(each) for each in revoked))

    def on_partitions_assigned(self, _: Any) -> None:
        say(assigned=sorted(list(each) for each in self.consumer.assignment()))


class KafkaPythonDriver:
    """One client: producers by their settings, a consumer, an admin."""

    def __init__(self, address: str) -> None:
        self.reach = {"bootstrap_servers": address, **login_settings()}
        self.producers: dict[str, KafkaProducer] = {}
        self.transactional: dict[str, KafkaProducer] = {}
        self.consumer: KafkaConsumer | None = None
        self.kept: Any = None
        self._admin: KafkaAdminClient | None = None

    @property
    def admin(self) -> KafkaAdminClient:
        self._admin = self._admin or KafkaAdminClient(**self.reach)
        return self._admin

    def do_send(
        self,
        topic: str,
        records: list[dict[str, Any]],
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
        linger_ms: int = 5,
        producer: str = "",
    ) -> list[Any]:
        name = f"{acks}/{codec}/{idempotent}/{linger_ms}"
        if not producer and name not in self.producers:
            self.producers[name] = KafkaProducer(
                **self.reach,
                acks=acks if acks == "all" else int(acks),
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=linger_ms,
                max_request_size=LARGEST,
                delivery_timeout_ms=60_000,
            )
        sender = self.transactional.get(producer) or self.producers[name]
        futures = [
            sender.send(
                topic,
                value=unpack(each.get("v")),
                key=unpack(each.get("k")),
                partition=each.get("p", 0),
                timestamp_ms=each.get("ts"),
                headers=headers_of(each),
            )
            for each in records
        ]
        placed = [each.get(SECONDS) for each in futures]
        return [[each.partition, each.offset] for each in placed]

    def do_open(
        self,
        group: str,
        assignor: str = "range",
        instance: str = "",
        session_ms: int = 6000,
        reset: str = "earliest",
        isolation: str = "read_uncommitted",
    ) -> None:
        self.consumer = KafkaConsumer(
            **self.reach,
            group_id=group,
            group_instance_id=instance or None,
            partition_assignment_strategy=[ASSIGNORS[assignor]],
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=session_ms // 4,
            auto_offset_reset=reset,
            enable_auto_commit=False,
            max_partition_fetch_bytes=LARGEST,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1000,
            allow_auto_create_topics=False,
            isolation_level=isolation,
        )

    def _open(self) -> KafkaConsumer:
        assert self.consumer is not None, "no consumer is open"
        return self.consumer

    def do_subscribe(self, topics: list[str]) -> None:
        self._open().subscribe(topics, listener=Listener(self.consumer))

    def do_assign(self, partitions: list[list[Any]]) -> None:
        self._open().assign(places(partitions))
        for topic, partition, *offset in partitions:
            if offset:
                self.do_seek(topic, partition, offset[0])

    def do_seek(self, topic: str, partition: int, offset: int) -> None:
        self._open().seek(TopicPartition(topic, partition), offset)

    def do_pause(self, partitions: list[list[Any]]) -> None:
        self._open().pause(*places(partitions))

    def do_resume(self, partitions: list[list[Any]]) -> None:
        self._open().resume(*places(partitions))

    def do_commit(self, offsets: list[list[Any]] | None = None) -> None:
        wanted = {TopicPartition(each[0], each[1]): OffsetAndMetadata(each[2], each[3], -1) for each in offsets or ()}
        self._open().commit(wanted or None)

    def do_committed(self, partitions: list[list[Any]]) -> list[list[Any]]:
        answers = []
        for each in places(partitions):
            found = self._open().committed(each, metadata=True)
            answers.append([*each, found.offset if found else -1, found.metadata if found else ""])
        return answers

    def do_times(self, partitions: list[list[Any]]) -> list[list[Any]]:
        asked = {TopicPartition(topic, partition): time for topic, partition, time in partitions}
        found = self._open().offsets_for_times(asked)
        return [[*each, found[each].offset if found[each] else -1] for each in asked]

    def do_ends(self, partitions: list[list[Any]]) -> list[list[Any]]:
        asked = places(partitions)
        first, last = self._open().beginning_offsets(asked), self._open().end_offsets(asked)
        return [[*each, first[each], last[each]] for each in asked]

    def do_leave(self) -> None:
        self._open().close(autocommit=False)
        self.consumer = None

    def do_txn_init(self, producer: str, name: str = "", timeout_ms: int = 60_000) -> None:
        self.transactional[producer] = KafkaProducer(
            **self.reach,
            transactional_id=name or producer,
            transaction_timeout_ms=timeout_ms,
            delivery_timeout_ms=60_000,
        )
        self.transactional[producer].init_transactions()

    def do_txn_begin(self, producer: str) -> None:
        self.transactional[producer].begin_transaction()

    def do_txn_keep_member(self) -> None:
        self.kept = self._open().group_metadata()

    def do_txn_offsets(self, producer: str, offsets: list[list[Any]], kept: bool = False) -> None:
        wanted = {TopicPartition(each[0], each[1]): OffsetAndMetadata(each[2], "", -1) for each in offsets}
        member = self.kept if kept else self._open().group_metadata()
        self.transactional[producer].send_offsets_to_transaction(wanted, member)

    def do_txn_commit(self, producer: str) -> None:
        self.transactional[producer].commit_transaction()

    def do_txn_abort(self, producer: str) -> None:
        self.transactional[producer].abort_transaction()

    def poll(self) -> bool:
        if self.consumer is None:
            return False
        if not self.consumer.subscription() and not self.consumer.assignment():
            return False
        # 3.0.12 forgets an assignment that comes between two polls: in a group it is given time for a whole join.
        poll_ms = 500 if self.consumer.subscription() else 50
        try:
            batches = self.consumer.poll(timeout_ms=poll_ms)
        except KafkaError as error:
            # 3.0.12 raises what its own refresh of metadata met: while a broker is away, an application polls again.
            if not error.retriable:
                raise
            say(trouble=f"{type(error).__name__}: {error}")
            return True
        got = [
            record(each.topic, each.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
            for batch in batches.values()
            for each in batch
        ]
        if got:
            say(records=got)
        return True

    def do_create(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": configs or {}}
        self.admin.create_topics({topic: options})

    def do_delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])

    def do_add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions({topic: total})

    def do_topics(self) -> dict[str, int]:
        return {each["name"]: len(each["partitions"]) for each in self.admin.describe_topics()}

    def do_brokers(self) -> list[str]:
        return [str(each["broker_id"]) for each in self.admin.describe_cluster()["brokers"]]

    def do_configs(self, kind: str, name: str) -> dict[str, list[Any]]:
        found = self.admin.describe_configs([ConfigResource(kind.upper(), name)], config_filter="all")
        (by_name,) = found.values()
        return {key: [each["value"], each["config_source"]] for key, each in by_name[name].items()}

    def do_alter(self, kind: str, name: str, configs: dict[str, str | None]) -> None:
        asked = {key: ("DELETE" if value is None else "SET", value) for key, value in configs.items()}
        done = self.admin.alter_configs([ConfigResource(kind.upper(), name, asked)])
        for by_name in done.values():
            assert by_name[name] in (None, "OK"), f"config: {by_name[name]}"

    def do_delete_records(self, partitions: list[list[Any]]) -> list[int]:
        asked = {TopicPartition(topic, partition): offset for topic, partition, offset in partitions}
        done = self.admin.delete_records(asked)
        return [done[each]["low_watermark"] for each in asked]

    def do_local_start(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        return int(self.admin.list_partition_offsets({place: OffsetSpec.EARLIEST_LOCAL})[place].offset)

    def do_groups(self) -> dict[str, str]:
        return {each["group_id"]: each["group_state"].lower() for each in self.admin.list_groups()}

    def do_group(self, group: str) -> dict[str, Any]:
        found = self.admin.describe_groups([group])[group]
        members = [{"instance": each["group_instance_id"] or "", "parts": _assigned(each)} for each in found["members"]]
        return {"state": found["group_state"].lower(), "assignor": found["protocol_data"], "members": members}

    def do_delete_group(self, group: str) -> None:
        (answer,) = self.admin.delete_groups([group]).values()
        assert answer == "OK", answer

    def do_group_offsets(self, group: str) -> list[list[Any]]:
        found = self.admin.list_group_offsets([group])[group]
        return sorted([*place, each.offset] for place, each in found.items())

    def do_set_offsets(self, group: str, offsets: list[list[Any]]) -> None:
        wanted = {TopicPartition(each[0], each[1]): OffsetAndMetadata(each[2], "", -1) for each in offsets}
        self.admin.alter_group_offsets(group, wanted)


def _assigned(member: dict[str, Any]) -> list[list[Any]]:
    assignment = member["member_assignment"] or {}
    return sorted(
        [each["topic"], partition]
        for each in assignment.get("assigned_partitions", ())
        for partition in each["partitions"]
    )


if __name__ == "__main__":
    driver = KafkaPythonDriver(sys.argv[1])
    serve(driver, driver.poll)
