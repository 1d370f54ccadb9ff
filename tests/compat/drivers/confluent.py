"""confluent-kafka (a present librdkafka) as a driver for tests: see `lines`."""

from __future__ import annotations

import functools
import sys
from typing import Any

import confluent_kafka
import confluent_kafka.admin

from tests.compat.drivers.lines import headers_of, read_login, record, say, serve, unpack

kafka: Any = confluent_kafka
TopicPartition = kafka.TopicPartition
of_admin: Any = confluent_kafka.admin
SECONDS = 30
SERVER = "server-"
"""Before the names of assignors of the broker."""
FOREVER = 2_000_000


def places(partitions: list[list[Any]]) -> list[Any]:
    """Returns `[topic, partition, offset?]` as the client's types."""
    return [TopicPartition(*each) for each in partitions]


def names(partitions: list[Any]) -> list[list[Any]]:
    """Returns the client's types as lists."""
    return sorted([each.topic, each.partition] for each in partitions)


def login_settings() -> dict[str, Any]:
    """Returns the settings of the login."""
    login = read_login()
    if login is None:
        return {}
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": login["mechanism"],
        "ssl.ca.location": login["authority"],
        "error_cb": lambda error: say(trouble=f"{error.name()}: {error.str()}"),
    }
    if not login["token_url"]:
        return {**settings, "sasl.username": login["user"], "sasl.password": login["password"]}
    return {
        **settings,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": login["token_url"],
        "sasl.oauthbearer.client.id": login["user"],
        "sasl.oauthbearer.client.secret": login["password"],
    }


class ConfluentDriver:
    """One client: producers by their settings, a consumer, an admin."""

    def __init__(self, address: str) -> None:
        self.servers = {"bootstrap.servers": address, "log_level": 0, **login_settings()}
        self.producers: dict[str, Any] = {}
        self.transactional: dict[str, Any] = {}
        self.consumer: Any = None
        self.kept: Any = None
        self.admin = of_admin.AdminClient(self.servers)

    def _producer(self, acks: str, codec: str, idempotent: bool, linger_ms: int) -> Any:
        name = f"{acks}/{codec}/{idempotent}/{linger_ms}"
        if name not in self.producers:
            settings = {"acks": acks, "compression.type": codec, "enable.idempotence": idempotent}
            more = {"linger.ms": linger_ms, "message.max.bytes": FOREVER, "message.timeout.ms": 60_000}
            self.producers[name] = kafka.Producer({**self.servers, **settings, **more})
        return self.producers[name]

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
        sender = self.transactional.get(producer) or self._producer(acks, codec, idempotent, linger_ms)
        placed: list[Any] = [None] * len(records)

        def on_delivery(number: int, error: Any, message: Any) -> None:
            placed[number] = error or [message.partition(), message.offset()]

        for number, each in enumerate(records):
            sender.produce(
                topic,
                value=unpack(each.get("v")),
                key=unpack(each.get("k")),
                partition=each.get("p", 0),
                timestamp=each.get("ts") or 0,
                headers=headers_of(each),
                on_delivery=functools.partial(on_delivery, number),
            )
            sender.poll(0)
        try:
            assert sender.flush(90) == 0, "not all were acknowledged"
        except SystemError as error:
            # 2.16 calls back while a fatal error is on its way up; the interpreter refuses that, and names the error.
            raise (error.__cause__ or error) from None
        for each in placed:
            if isinstance(each, kafka.KafkaError):
                raise kafka.KafkaException(each)
        return placed

    def do_open(
        self,
        group: str,
        assignor: str = "range",
        instance: str = "",
        session_ms: int = 6000,
        reset: str = "earliest",
        isolation: str = "read_uncommitted",
    ) -> None:
        protocol: dict[str, Any] = {
            "partition.assignment.strategy": assignor.replace("round-robin", "roundrobin"),
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 4,
        }
        if assignor.startswith(SERVER):
            protocol = {"group.protocol": "consumer", "group.remote.assignor": assignor.removeprefix(SERVER)}
        settings = {
            **protocol,
            "group.id": group,
            "auto.offset.reset": reset.replace("none", "error"),
            "enable.auto.commit": False,
            "fetch.message.max.bytes": FOREVER,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 1000,
            "allow.auto.create.topics": False,
            "isolation.level": isolation,
            **({"group.instance.id": instance} if instance else {}),
        }
        self.consumer = kafka.Consumer({**self.servers, **settings})

    def _open(self) -> Any:
        assert self.consumer, "no consumer is open"
        return self.consumer

    def do_subscribe(self, topics: list[str]) -> None:
        consumer = self._open()
        cooperative: set[tuple[str, int]] = set()

        def on_assign(_: Any, partitions: list[Any]) -> None:
            cooperative.update((each.topic, each.partition) for each in partitions)
            say(assigned=sorted(list(each) for each in cooperative))

        def on_revoke(_: Any, partitions: list[Any]) -> None:
            cooperative.difference_update((each.topic, each.partition) for each in partitions)
            say(revoked=names(partitions))

        consumer.subscribe(topics, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)

    def do_assign(self, partitions: list[list[Any]]) -> None:
        self._open().assign(places(partitions))

    def do_seek(self, topic: str, partition: int, offset: int) -> None:
        self._open().seek(TopicPartition(topic, partition, offset))

    def do_pause(self, partitions: list[list[Any]]) -> None:
        self._open().pause(places(partitions))

    def do_resume(self, partitions: list[list[Any]]) -> None:
        self._open().resume(places(partitions))

    def do_commit(self, offsets: list[list[Any]] | None = None) -> None:
        if offsets is None:
            self._open().commit(asynchronous=False)
        else:
            wanted = [TopicPartition(topic, partition, at, text) for topic, partition, at, text in offsets]
            self._open().commit(offsets=wanted, asynchronous=False)

    def do_committed(self, partitions: list[list[Any]]) -> list[list[Any]]:
        found = self._open().committed(places(partitions), SECONDS)
        return [[each.topic, each.partition, max(each.offset, -1), each.metadata or ""] for each in found]

    def do_times(self, partitions: list[list[Any]]) -> list[list[Any]]:
        found = self._open().offsets_for_times(places(partitions), SECONDS)
        return [[each.topic, each.partition, max(each.offset, -1)] for each in found]

    def do_ends(self, partitions: list[list[Any]]) -> list[list[Any]]:
        return [[*each, *self._open().get_watermark_offsets(TopicPartition(*each), SECONDS)] for each in partitions]

    def do_leave(self) -> None:
        self._open().close()
        self.consumer = None

    def do_txn_init(self, producer: str, name: str = "", timeout_ms: int = 60_000) -> None:
        settings = {"transactional.id": name or producer, "transaction.timeout.ms": timeout_ms}
        more = {"message.timeout.ms": timeout_ms, "linger.ms": 0}
        self.transactional[producer] = kafka.Producer({**self.servers, **settings, **more})
        self.transactional[producer].init_transactions(SECONDS)

    def do_txn_begin(self, producer: str) -> None:
        self.transactional[producer].begin_transaction()

    def do_txn_keep_member(self) -> None:
        self.kept = self._open().consumer_group_metadata()

    def do_txn_offsets(self, producer: str, offsets: list[list[Any]], kept: bool = False) -> None:
        member = self.kept if kept else self._open().consumer_group_metadata()
        self.transactional[producer].send_offsets_to_transaction(places(offsets), member, SECONDS)

    def do_txn_commit(self, producer: str) -> None:
        self.transactional[producer].commit_transaction(SECONDS)

    def do_txn_abort(self, producer: str) -> None:
        self.transactional[producer].abort_transaction(SECONDS)

    def poll(self) -> bool:
        if self.consumer is None:
            return False
        got = []
        for message in self.consumer.consume(500, 0.05):
            if message.error():
                say(trouble=message.error().name())
                continue
            kind, timestamp = message.timestamp()
            stamp = -1 if kind == kafka.TIMESTAMP_NOT_AVAILABLE else timestamp
            place = message.topic(), message.partition(), message.offset(), stamp
            got.append(record(*place, message.key(), message.value(), message.headers()))
        if got:
            say(records=got)
        return True

    def do_create(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        wanted = of_admin.NewTopic(topic, partitions, 1, config=configs or {})
        self.admin.create_topics([wanted], operation_timeout=SECONDS)[topic].result(SECONDS)

    def do_delete(self, topic: str) -> None:
        self.admin.delete_topics([topic], operation_timeout=SECONDS)[topic].result(SECONDS)

    def do_add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([of_admin.NewPartitions(topic, total)])[topic].result(SECONDS)

    def do_topics(self) -> dict[str, int]:
        listed = self.admin.list_topics(timeout=SECONDS).topics
        return {name: len(each.partitions) for name, each in listed.items()}

    def do_brokers(self) -> list[str]:
        return [str(number) for number in self.admin.list_topics(timeout=SECONDS).brokers]

    def do_configs(self, kind: str, name: str) -> dict[str, list[Any]]:
        resource = of_admin.ConfigResource(kind, name)
        found = self.admin.describe_configs([resource])[resource].result(SECONDS)
        return {key: [each.value, each.source] for key, each in found.items()}

    def do_alter(self, kind: str, name: str, configs: dict[str, str | None]) -> None:
        operations = {True: of_admin.AlterConfigOpType.DELETE, False: of_admin.AlterConfigOpType.SET}
        entries = [
            of_admin.ConfigEntry(key, value or "", incremental_operation=operations[value is None])
            for key, value in configs.items()
        ]
        resource = of_admin.ConfigResource(kind, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(SECONDS)

    def do_delete_records(self, partitions: list[list[Any]]) -> list[int]:
        done = self.admin.delete_records(places(partitions))
        return [each.result(SECONDS).low_watermark for each in done.values()]

    def do_groups(self) -> dict[str, str]:
        found = self.admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS)
        return {each.group_id: each.state.name.lower() for each in found.valid}

    def do_group(self, group: str) -> dict[str, Any]:
        found = self.admin.describe_consumer_groups([group])[group].result(SECONDS)
        members = [
            {"instance": each.group_instance_id or "", "parts": names(each.assignment.topic_partitions)}
            for each in found.members
        ]
        return {"state": found.state.name.lower(), "assignor": found.partition_assignor, "members": members}

    def do_delete_group(self, group: str) -> None:
        self.admin.delete_consumer_groups([group])[group].result(SECONDS)

    def do_group_offsets(self, group: str) -> list[list[Any]]:
        asked = [kafka.ConsumerGroupTopicPartitions(group)]
        found = self.admin.list_consumer_group_offsets(asked)[group].result(SECONDS)
        return sorted([each.topic, each.partition, each.offset] for each in found.topic_partitions)

    def do_set_offsets(self, group: str, offsets: list[list[Any]]) -> None:
        asked = [kafka.ConsumerGroupTopicPartitions(group, places(offsets))]
        self.admin.alter_consumer_group_offsets(asked)[group].result(SECONDS)


if __name__ == "__main__":
    driver = ConfluentDriver(sys.argv[1])
    serve(driver, driver.poll)
