"""The two settings tables: of a topic and of a broker. Kafka's names, defaults and limits where Kafka has them.

Only tables stand here; rules between settings stand in `setting_rules.py`. Where values come from (files, options,
environment) is the command's business; how one value is read and refused is `setting.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from tiered.config import listeners, rules
from tiered.config.kafka_aliases import HOUR_MS, LEADERS_ONLY, MINUTE_MS, RACK_AWARE, resolve_aliases
from tiered.config.listeners import PLAINTEXT, Endpoint
from tiered.config.setting import SettingRow, Value, rows, setting, text_of, unknown_setting

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20
GIB = 1 << 30

NO_COMPACTION = "log compaction is not built yet, and a topic that silently kept every record would be worse"
NO_EFFECT = "(Without effect: nothing is compacted.)"
NO_TIERING_SWITCH = "it is not built yet; remote.storage.enable=false ends copying and keeps what is in the bucket"
NO_BUCKET_FLUSH = "flush to the bucket is not built yet; ack gives an fsync on disk before the answer"


@dataclass(frozen=True)
class TopicConfig:
    """Settings of one topic. The constructor takes typed values unchecked; text goes through `from_strings`."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "What happens to old records: they are deleted.",
        choices=("delete", "compact"),
        unsupported={"compact": NO_COMPACTION},
    )
    compression_type: str = setting(
        "producer",
        "Codec of batches that the broker itself builds; batches of clients keep theirs.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_gzip_level: int = setting(-1, "Level of gzip, -1 for zlib's default.", -1, 9)
    compression_lz4_level: int = setting(9, "Level of lz4; 9 stands for its fast form, as in Kafka.", 1, 17)
    compression_zstd_level: int = setting(3, "Level of zstd.", -131072, 22)
    retention_ms: int = setting(7 * DAY_MS, "Age at which a record may go, everywhere; -1 keeps all.", -1, LONG_MAX)
    retention_bytes: int = setting(-1, "Size of a partition, local and cold, kept at most; -1 keeps all.", -1, LONG_MAX)
    remote_storage_enable: bool = setting(True, "Closed segments go to the bucket.")
    local_retention_ms: int = setting(
        -2, "Age at which a local copy may go once it is in the bucket; -2 follows retention.ms.", -2, LONG_MAX
    )
    local_retention_bytes: int = setting(
        -2, "Local bytes kept at most of what is in the bucket; -2 follows retention.bytes.", -2, LONG_MAX
    )
    segment_bytes: int = setting(GIB, "Size at which a segment is closed.", 1024, INT_MAX)
    segment_ms: int = setting(7 * DAY_MS, "Age at which a segment is closed.", 1, LONG_MAX)
    segment_jitter_ms: int = setting(0, "At most so much is taken off segment.ms, so that rolls spread.", 0, LONG_MAX)
    segment_index_bytes: int = setting(10 * MIB, "Size of an index at which its segment is closed.", 64, INT_MAX)
    index_interval_bytes: int = setting(4096, "Bytes of log between two index entries.", 0, INT_MAX)
    max_message_bytes: int = setting(MIB + 12, "Size of a record batch at most.", 0, INT_MAX)
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whose time a record bears: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX, "How far a producer's timestamp may lie in the past.", 0, LONG_MAX
    )
    message_timestamp_after_max_ms: int = setting(
        HOUR_MS, "How far a producer's timestamp may lie in the future.", 0, LONG_MAX
    )
    min_insync_replicas: int = setting(
        1, "Replicas that must hold a record before acks=all answers; all, where a topic has fewer.", 1, INT_MAX
    )
    unclean_leader_election_enable: bool = setting(
        False, "A replica that may lack records may lead. (With one broker there is none to choose from.)"
    )
    file_delete_delay_ms: int = setting(MINUTE_MS, "Time between renaming a dropped file and deleting it.", 0, LONG_MAX)
    flush: str = setting(
        "none",
        "What acks=all waits for beside the replicas: nothing, or an fsync (grouped) on each.",
        choices=("none", "ack", "bucket"),
        unsupported={"bucket": NO_BUCKET_FLUSH},
    )
    flush_messages: int = setting(LONG_MAX, "Records after which the log is fsynced.", 1, LONG_MAX)
    flush_ms: int = setting(LONG_MAX, "Time after which the log is fsynced.", 0, LONG_MAX)
    # Names that tools set and show. What they ask for either cannot arise here, or is refused.
    delete_retention_ms: int = setting(DAY_MS, f"How long tombstones stay. {NO_EFFECT}", 0, LONG_MAX)
    min_cleanable_dirty_ratio: float = setting(0.5, f"Share of a log that is worth a compaction. {NO_EFFECT}", 0, 1)
    min_compaction_lag_ms: int = setting(0, f"Age before which no record is compacted. {NO_EFFECT}", 0, LONG_MAX)
    max_compaction_lag_ms: int = setting(LONG_MAX, f"Age at which every record is. {NO_EFFECT}", 1, LONG_MAX)
    preallocate: bool = setting(
        False,
        "Segment files take their whole size at once.",
        unsupported={"true": "segment files grow as they are written"},
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (), "PARTITION:BROKER, ... or `*`: leaders that hold followers which are not in sync to a rate (KIP-73)."
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (), "PARTITION:BROKER, ... or `*`: replicas that copy at that rate while they are not in sync."
    )
    remote_log_copy_disable: bool = setting(
        False, "Nothing more goes to the bucket.", unsupported={"true": NO_TIERING_SWITCH}
    )
    remote_log_delete_on_disable: bool = setting(
        False, "What is in the bucket goes when tiering is switched off.", unsupported={"true": NO_TIERING_SWITCH}
    )

    @classmethod
    def from_strings(cls, given: Mapping[str, str], defaults: TopicConfig | None = None) -> TopicConfig:
        """`defaults` with `given` (values as text) over it; Refused(INVALID_CONFIG) says what is wrong."""
        config = replace(defaults or cls(), **_parse_values(topic_rows(), given, "topic"))
        rules.check_topic(config, topic_rows())
        return config

    def to_strings(self) -> dict[str, str]:
        """Every setting as text by its dotted name."""
        return _format_values(self)


def _default_of(topic_name: str) -> Any:
    """A broker setting that is the default of a topic setting and shares its limits."""
    row = topic_rows()[topic_name]
    return setting(
        row.default,
        f"Default of `{topic_name}`.",
        row.low,
        row.high,
        row.choices,
        row.unsupported,
        topic_name=topic_name,
    )


@cache
def topic_rows() -> dict[str, SettingRow]:
    """The topic table by name."""
    return rows(TopicConfig)


@dataclass(frozen=True)
class Settings:
    """Settings of one broker. The constructor takes typed values unchecked; text goes through `from_strings`."""

    # Where it lives and listens.
    node_id: int = setting(1, "Number of this broker, unique in its cluster.", 0, INT_MAX)
    data_dir: str = setting("./tiered-data", "Directory of the hot log; one process owns it.")
    store: str = setting(
        "", "Bucket: `s3://bucket/prefix`, `file:///dir` or `memory://`; empty is `bucket` under the data directory."
    )
    http: str = setting("127.0.0.1:8082", "HOST:PORT of the HTTP interface; port 0 takes a free one.")
    advertised_http: str = setting(
        "",
        "What HTTP clients are told of this broker, HOST:PORT or http(s)://HOST[:PORT]; else `http`, with the host of"
        " its listener for one that is bound everywhere.",
    )
    kafka: str = setting(
        "127.0.0.1:9092", "HOST:PORT of the Kafka protocol; port 0 takes a free one, empty serves it not at all."
    )
    listeners: tuple[str, ...] = setting((), "Kafka's form of `kafka`, which it replaces: NAME://HOST:PORT, ...")
    advertised_listeners: tuple[str, ...] = setting(
        (),
        "What clients are told to connect to, NAME://HOST:PORT, ...; else the listener's own address.",
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        (), "NAME:PROTOCOL, ...; PLAINTEXT is the only protocol there is yet."
    )
    controller_listener_names: tuple[str, ...] = setting(
        (), "Names in `listeners` that stand for Kafka's controllers; they are not opened."
    )
    broker_rack: str = setting("", "Name of the place this broker stands in, for placement of replicas.")
    replica_selector_class: str = setting(
        RACK_AWARE,
        "Whether consumers that name their rack read from a replica in sync there (KIP-392). (Kafka: from leaders.)",
        choices=(RACK_AWARE, LEADERS_ONLY),
    )
    inter_broker_listener_name: str = setting("", "The listener for other brokers; without a name the first.")
    cordoned_log_dirs: tuple[str, ...] = setting(
        (), "`*`, for one broker while it runs: it gets no new replicas (KIP-1066).", choices=("*",), dynamic=True
    )
    broker_session_timeout_ms: int = setting(6_000, "Silence after which others lead what a broker led.", 500, INT_MAX)
    broker_heartbeat_interval_ms: int = setting(1_500, "Time between two signs of life of a broker.", 50, INT_MAX)
    auto_leader_rebalance_enable: bool = setting(True, "Who comes back leads again what it is the first replica of.")
    leader_imbalance_check_interval_seconds: int = setting(300, "How often that is looked for at least.", 1, INT_MAX)
    replica_lag_time_max_ms: int = setting(10_000, "Time that a replica may lag and be in sync.", 100, LONG_MAX)
    replica_fetch_wait_max_ms: int = setting(500, "How long a leader may keep a replica waiting.", 1, INT_MAX)
    replica_fetch_max_bytes: int = setting(MIB, "Bytes that a replica asks of a partition at once.", 1, INT_MAX)
    replica_fetch_response_max_bytes: int = setting(10 * MIB, "And of all of a leader's partitions.", 1, INT_MAX)
    log_level: str = setting(
        "info", "Least severe event that is logged, to stderr.", choices=("debug", "info", "warning", "error"),
        dynamic=True,
    )  # fmt: skip
    # Topics.
    auto_create_topics_enable: bool = setting(True, "A client that asks for a topic which is not there creates it.")
    delete_topic_enable: bool = setting(True, "Topics can be deleted.")
    num_partitions: int = setting(1, "Partitions of a topic that is created without a number.", 1, 100_000)
    tiered_partitions_max: int = setting(
        50_000, "Partitions of a cluster at most: above it none is created.", 1, INT_MAX, dynamic=True
    )
    tiered_partitions_max_per_broker: int = setting(
        4_000,
        "Replicas of partitions on one broker at most: above it no partition is created, and none moves there.",
        1,
        INT_MAX,
        dynamic=True,
    )
    default_replication_factor: int = setting(1, "Replicas of a topic that is created without a number.", 1, 32767)
    # Defaults of topic settings, under the names that Kafka's brokers give them.
    log_cleanup_policy: tuple[str, ...] = _default_of("cleanup.policy")
    compression_type: str = _default_of("compression.type")
    compression_gzip_level: int = _default_of("compression.gzip.level")
    compression_lz4_level: int = _default_of("compression.lz4.level")
    compression_zstd_level: int = _default_of("compression.zstd.level")
    log_retention_ms: int = _default_of("retention.ms")
    log_retention_bytes: int = _default_of("retention.bytes")
    log_remote_storage_enable: bool = _default_of("remote.storage.enable")
    log_local_retention_ms: int = _default_of("local.retention.ms")
    log_local_retention_bytes: int = _default_of("local.retention.bytes")
    log_segment_bytes: int = _default_of("segment.bytes")
    log_roll_ms: int = _default_of("segment.ms")
    log_roll_jitter_ms: int = _default_of("segment.jitter.ms")
    log_index_size_max_bytes: int = _default_of("segment.index.bytes")
    log_index_interval_bytes: int = _default_of("index.interval.bytes")
    message_max_bytes: int = _default_of("max.message.bytes")
    log_message_timestamp_type: str = _default_of("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = _default_of("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _default_of("message.timestamp.after.max.ms")
    min_insync_replicas: int = _default_of("min.insync.replicas")
    unclean_leader_election_enable: bool = _default_of("unclean.leader.election.enable")
    log_segment_delete_delay_ms: int = _default_of("file.delete.delay.ms")
    log_flush: str = _default_of("flush")
    log_flush_interval_messages: int = _default_of("flush.messages")
    log_flush_interval_ms: int = _default_of("flush.ms")
    log_cleaner_delete_retention_ms: int = _default_of("delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _default_of("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _default_of("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _default_of("max.compaction.lag.ms")
    log_preallocate: bool = _default_of("preallocate")
    # Groups.
    offsets_topic_num_partitions: int = setting(50, "Partitions of `__consumer_offsets`.", 1, 10_000)
    offsets_topic_replication_factor: int = setting(
        3, "Replicas of `__consumer_offsets`, or as many as there are brokers.", 1, 32767
    )
    offsets_topic_segment_bytes: int = setting(
        100 * MIB, "Size at which a segment of `__consumer_offsets` is closed.", 1024, INT_MAX
    )
    tiered_groups_max_bytes: int = setting(
        256 << 20,
        "Memory for all groups that a broker coordinates: what members say, assignments, offsets. Above it, joins and"
        " commits that need more are refused, and clients try again.",
        1 << 20,
        LONG_MAX,
    )
    offset_metadata_max_bytes: int = setting(4096, "Size of the text that goes with a committed offset.", 0, INT_MAX)
    offsets_retention_minutes: int = setting(
        7 * 24 * 60, "Time for which the offsets of an empty group are kept.", 1, INT_MAX
    )
    offsets_retention_check_interval_ms: int = setting(
        10 * MINUTE_MS, "How often offsets that are older than that are looked for.", 1, LONG_MAX
    )
    group_min_session_timeout_ms: int = setting(6_000, "Shortest session that a member may ask for.", 0, INT_MAX)
    group_max_session_timeout_ms: int = setting(30 * MINUTE_MS, "Longest one.", 0, INT_MAX)
    group_initial_rebalance_delay_ms: int = setting(
        500, "How long an empty group waits for more members, again after each that comes. (Kafka: 3000.)", 0, INT_MAX
    )
    group_max_size: int = setting(1_000, "Members of a group at most. (Kafka: no limit.)", 1, INT_MAX)
    # Connections of the Kafka protocol.
    socket_request_max_bytes: int = setting(100 * MIB, "Size of a request at most.", 1024, INT_MAX)
    queued_max_requests: int = setting(500, "Requests under way at most, over all connections.", 1, INT_MAX)
    queued_max_request_bytes: int = setting(
        128 * MIB, "Bytes of requests held at most, over all connections.", 1024, LONG_MAX
    )
    leader_replication_throttled_rate: int = setting(
        LONG_MAX, "Bytes per second to replicas that are held to it.", 0, LONG_MAX, dynamic=True
    )
    follower_replication_throttled_rate: int = setting(
        LONG_MAX, "Bytes per second that replicas which are held to it copy.", 0, LONG_MAX, dynamic=True
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(LONG_MAX, "No effect.", 0, LONG_MAX, dynamic=True)
    max_connections: int = setting(2_000, "Connections at the same time.", 1, INT_MAX, dynamic=True)
    max_connections_per_ip: int = setting(
        500, "Connections from one address at the same time.", 1, INT_MAX, dynamic=True
    )
    max_connection_creation_rate: int = setting(1_000, "New connections per second.", 1, INT_MAX, dynamic=True)
    connections_max_idle_ms: int = setting(
        10 * MINUTE_MS, "Time after which a connection without requests is closed.", 1, LONG_MAX
    )
    remote_list_offsets_request_timeout_ms: int = setting(
        30_000, "How long a look-up of offsets by time may take in the bucket.", 1, LONG_MAX, dynamic=True
    )
    fetch_max_bytes: int = setting(55 * MIB, "Bytes of records in one answer at most.", 1024, INT_MAX)
    tiered_frame_timeout_ms: int = setting(30_000, "Time from the first byte of a request to its last.", 1, INT_MAX)
    # Loops of the broker.
    log_retention_check_interval_ms: int = setting(
        5 * MINUTE_MS, "How often rolls by time and retention are looked at.", 1, LONG_MAX
    )
    log_flush_scheduler_interval_ms: int = setting(10_000, "How often flush.ms is looked at.", 1, LONG_MAX)
    producer_id_expiration_ms: int = setting(
        DAY_MS, "Time after which an idempotent producer that wrote nothing is forgotten.", 1, INT_MAX
    )
    tiered_producer_ids_max: int = setting(
        200_000,
        "Producers that a broker remembers, counted once for each partition. Above nine tenths of it, those that wrote"
        " nothing for ten minutes are forgotten; above it, new ones are refused, and clients try again.",
        1,
        INT_MAX,
    )
    tiered_producer_ids_max_per_partition: int = setting(
        10_000,
        "Producers that a partition remembers. Above it, a new one takes the place of one that wrote nothing for ten"
        " minutes, or is refused, and clients try again. The same on all brokers.",
        1,
        INT_MAX,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        MINUTE_MS, "How often recovery points are written down.", 1, INT_MAX
    )
    remote_log_storage_system_enable: bool = setting(True, "Topics are tiered unless they say otherwise.")
    remote_log_manager_task_interval_ms: int = setting(
        30_000,
        "How often closed segments are copied; those of a single replica, or of 512 MiB together, are at once.",
        1,
        LONG_MAX,
    )
    remote_log_manager_copier_thread_pool_size: int = setting(4, "Segments that are copied at the same time.", 1, 64)
    # What Kafka has no name for.
    tiered_upload_max_lag_ms: int = setting(
        10 * MINUTE_MS,
        "Age at which the oldest record that is not in the bucket is copied there: its segment is closed, and goes up.",
        1,
        LONG_MAX,
    )
    tiered_chunk_cache_bytes: int = setting(64 * MIB, "Memory for chunks read from the bucket.", MIB, LONG_MAX)
    tiered_topic_delete_delay_ms: int = setting(
        10 * MINUTE_MS, "Time between deleting a topic and deleting its objects.", 0, LONG_MAX
    )
    tiered_object_delete_delay_ms: int = setting(
        MINUTE_MS, "Time between taking an object out of its manifest and deleting it; spares readers.", 0, LONG_MAX
    )
    tiered_http_body_max_bytes: int = setting(
        64 * MIB, "Size of an HTTP request body at most, inflated.", 1024, INT_MAX
    )
    tiered_http_allowed_hosts: tuple[str, ...] = setting(
        (),
        "Host names, beside its own, by which HTTP reaches the broker, and whose pages may use it; `*` is any name.",
    )
    tiered_metrics_max_topics: int = setting(
        1000, "Topics that have labels of their own in metrics; all others share one.", 0, 100_000
    )
    tiered_metrics_max_group_topics: int = setting(
        1000,
        "Pairs of a group and a topic that it reads that have labels of their own in metrics; all others share one.",
        0,
        100_000,
    )
    tiered_http_connections_max: int = setting(1000, "HTTP connections at the same time.", 1, 1_000_000)
    tiered_http_connections_max_per_ip: int = setting(
        500, "HTTP connections from one address at the same time; half as many event streams.", 1, 1_000_000
    )

    @classmethod
    def from_strings(cls, given: Mapping[str, str], defaults: Settings | None = None) -> Settings:
        """`defaults` with `given` over it; Refused(INVALID_CONFIG) names the key, the value and what is allowed."""
        made = replace(
            defaults or cls(), **_parse_values(broker_rows(), resolve_aliases(given, broker_rows()), "broker")
        )
        made = replace(made, inter_broker_listener_name=made.inter_broker_listener_name.upper())
        parse_address(made.http, "http")
        made.effective_listeners()
        made.resolve_advertised_listeners(made.effective_listeners(), "localhost")
        made.resolve_advertised_http(0)
        rules.check_broker(made, broker_rows())
        rules.check_topic(made.topic_defaults(), topic_rows())
        return made

    def effective_listeners(self) -> tuple[Endpoint, ...]:
        """Where the Kafka protocol is served. Refused(INVALID_CONFIG) when that cannot be."""
        skipped = [name.upper() for name in self.controller_listener_names]
        if self.listeners:
            row = broker_rows()["listeners"]
            found = listeners.parse(self.listeners, skipped, row.refuse)
            found = tuple(each._replace(host=each.host or listeners.ANY_HOST) for each in found)
        else:
            row = broker_rows()["kafka"]
            found = (Endpoint(PLAINTEXT, *parse_address(self.kafka, "kafka")),) if self.kafka else ()
        listeners.check_protocols(found, self.listener_security_protocol_map, row.refuse)
        return found

    def resolve_advertised_listeners(self, bound: Sequence[Endpoint], hostname: str) -> tuple[Endpoint, ...]:
        """What clients are told of the listeners in `bound`. Refused(INVALID_CONFIG) for a name that none has."""
        row = broker_rows()["advertised.listeners"]
        skipped = [name.upper() for name in self.controller_listener_names]
        told = listeners.parse(self.advertised_listeners, skipped, row.refuse)
        for each in told:
            if each.name not in {endpoint.name for endpoint in bound}:
                raise row.refuse(f"{each.name}://{each.address}", "no listener has that name")
            if each.host in listeners.WILDCARDS:
                raise row.refuse(f"{each.name}://{each.address}", "it must name a host that clients can reach")
        return listeners.advertise(bound, told, hostname)

    def resolve_advertised_http(self, bound_port: int) -> str:
        """Returns the `http://HOST:PORT` that HTTP clients are told; "" where none is set. Refused(INVALID_CONFIG)."""
        if not self.advertised_http:
            return ""
        found = listeners.parse_http_origin(self.advertised_http, bound_port)
        if found is None:
            why = "it must be HOST:PORT or http(s)://HOST[:PORT], of a host that clients can reach"
            raise broker_rows()["advertised.http"].refuse(self.advertised_http, why)
        return found

    def topic_defaults(self) -> TopicConfig:
        """What a topic has that sets nothing itself."""
        values = {
            row.topic_name.replace(".", "_"): getattr(self, name.replace(".", "_"))
            for name, row in broker_rows().items()
            if row.topic_name
        }
        made = TopicConfig(**values)
        return made if self.remote_log_storage_system_enable else replace(made, remote_storage_enable=False)

    def to_strings(self) -> dict[str, str]:
        """Every setting as text by its dotted name."""
        return _format_values(self)


@cache
def broker_rows() -> dict[str, SettingRow]:
    """The broker table by name."""
    return rows(Settings)


def parse_address(text: str, name: str) -> tuple[str, int]:
    """`HOST:PORT` taken apart; IPv6 hosts stand in brackets. Refused(INVALID_CONFIG) when it is not that."""
    found = listeners.parse_host_port(text)
    if found is None or not found[0]:
        raise broker_rows()[name].refuse(text, "it must be HOST:PORT with a port from 0 to 65535")
    return found


def _parse_values(table: Mapping[str, SettingRow], given: Mapping[str, str], what: str) -> dict[str, Any]:
    parsed: dict[str, Value] = {}
    for name, text in given.items():
        if name not in table:
            raise unknown_setting(name, table, what)
        parsed[name.replace(".", "_")] = table[name].parse(text)
    return parsed


def _format_values(table: TopicConfig | Settings) -> dict[str, str]:
    return {each.name.replace("_", "."): text_of(getattr(table, each.name)) for each in fields(table)}
