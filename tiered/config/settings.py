"""The two settings tables: of a topic and of a broker. Names, defaults and limits are Kafka's where Kafka has them.

Rules between settings are in `rules`; parsing and refusal of one value are in `setting`. The command line decides where
values come from (files, options, environment).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tiered.config import listeners, rules
from tiered.config.kafka_aliases import HOUR_MS, LEADERS_ONLY, MINUTE_MS, RACK_AWARE, resolve_aliases
from tiered.config.listener_overrides import (
    PLAIN_USERS,
    ListenerOverride,
    parse_overrides,
    read_plain_users,
    split_overrides,
)
from tiered.config.listeners import BUILT, PLAINTEXT, Endpoint
from tiered.config.setting import SettingRow, Value, rows, setting, setting_fields, text_of, unknown_setting
from tiered.config.unserved import is_known_to_kafka
from tiered.errors import Code, Refused
from tiered.security import sasl_plain
from tiered.security.sasl_oauthbearer import MECHANISM as OAUTHBEARER
from tiered.security.secret import Secret

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20
GIB = 1 << 30
HTTPS = "https://"
STORE_TYPES = ("PEM", "PKCS12")
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SASL_MECHANISMS = (*SCRAM_MECHANISMS, sasl_plain.MECHANISM)
"""The mechanisms that the command line knows too."""

SUBJECT_NAME_STRATEGIES = tuple(
    f"io.confluent.kafka.serializers.subject.{each}NameStrategy" for each in ("Topic", "Record", "TopicRecord")
)

NO_PREALLOCATION = "segment files grow as they are written"


@dataclass(frozen=True)
class TopicConfig:
    """Settings of one topic. The constructor takes typed values unchecked; text goes through `from_strings`."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "Treatment of old records: delete by total retention, compact to the last record of each key, both, or"
        " neither.",
        choices=("delete", "compact"),
    )
    compression_type: str = setting(
        "producer",
        "Codec of batches that the broker itself builds; clients' batches keep theirs.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_gzip_level: int = setting(-1, "Level of gzip, -1 for zlib's default.", -1, 9)
    compression_lz4_level: int = setting(9, "Level of lz4; 9 stands for its fast form, as in Kafka.", 1, 17)
    compression_zstd_level: int = setting(3, "Level of zstd.", -131072, 22)
    retention_ms: int = setting(
        7 * DAY_MS, "Age at which a record may be deleted, on disk and in the bucket; -1 keeps all.", -1, LONG_MAX
    )
    retention_bytes: int = setting(
        -1, "Largest size of a partition, local and cold; -1 and less keep all.", LONG_MIN, LONG_MAX
    )
    remote_storage_enable: bool = setting(True, "Closed segments are copied to the bucket.")
    local_retention_ms: int = setting(
        -2, "Age at which a local copy may be deleted once it is in the bucket; -2 follows retention.ms.", -2, LONG_MAX
    )
    local_retention_bytes: int = setting(
        -2, "Most local bytes kept of segments that are in the bucket; -2 follows retention.bytes.", -2, LONG_MAX
    )
    segment_bytes: int = setting(
        GIB, "Size at which a segment is closed. A larger batch gets a segment of its own.", MIB, INT_MAX
    )
    internal_segment_bytes: int = setting(
        0, "Size at which a segment is closed, in place of segment.bytes; 0 is none.", 0, INT_MAX, internal=True
    )
    segment_ms: int = setting(7 * DAY_MS, "Age at which a segment is closed.", 1, LONG_MAX)
    segment_jitter_ms: int = setting(
        0, "Largest random reduction of segment.ms, so that segments do not all roll at once.", 0, LONG_MAX
    )
    segment_index_bytes: int = setting(
        10 * MIB, "Size of an index at which its segment is closed; less than 65536 count as 65536.", 4, INT_MAX
    )
    index_interval_bytes: int = setting(
        4096, "Bytes of log between two index entries; more than 65536 count as 65536.", 0, INT_MAX
    )
    max_message_bytes: int = setting(MIB + 12, "Largest size of a record batch.", 0, INT_MAX)
    message_timestamp_type: str = setting(
        "CreateTime",
        "Timestamp of a record: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX, "How far a producer's timestamp may lie in the past.", 0, LONG_MAX
    )
    message_timestamp_after_max_ms: int = setting(
        HOUR_MS, "How far a producer's timestamp may lie in the future.", 0, LONG_MAX
    )
    min_insync_replicas: int = setting(
        1, "Replicas that must hold a record before acks=all is acknowledged; all, where a topic has fewer.", 1, INT_MAX
    )
    unclean_leader_election_enable: bool = setting(
        False, "Allows a replica to lead that may lack records. (A single broker has no other replica.)"
    )
    file_delete_delay_ms: int = setting(MINUTE_MS, "Time between renaming a dropped file and deleting it.", 0, LONG_MAX)
    flush: str = setting(
        "none",
        "What acks=all waits for beside the replicas: nothing, a grouped fsync on each of them, or the bucket.",
        choices=("none", "ack", "bucket"),
    )
    flush_messages: int = setting(LONG_MAX, "Records after which the log is fsynced.", 1, LONG_MAX)
    flush_ms: int = setting(LONG_MAX, "Time after which the log is fsynced.", 0, LONG_MAX)
    delete_retention_ms: int = setting(
        DAY_MS, "How long a tombstone stays after the first clean that left no older record of its key.", 0, LONG_MAX
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Share of bytes that were never cleaned above which a log is cleaned.", 0, 1
    )
    min_compaction_lag_ms: int = setting(0, "Age before which no record is cleaned.", 0, LONG_MAX)
    max_compaction_lag_ms: int = setting(
        LONG_MAX, "Age from which on a record makes its log due for a clean.", 1, LONG_MAX
    )
    preallocate: bool = setting(
        False,
        "Kept without effect: segment files grow as they are written.",
        without_effect={"true": NO_PREALLOCATION},
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "PARTITION:BROKER, ... or `*`: leaders that throttle followers which are not in sync (KIP-73).",
        skips_blank_words=True,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "PARTITION:BROKER, ... or `*`: followers that are throttled while they are not in sync (KIP-73).",
        skips_blank_words=True,
    )
    remote_log_copy_disable: bool = setting(
        False, "No more segments are copied to the bucket; the topic is read from there as before."
    )
    remote_log_delete_on_disable: bool = setting(
        False, "With remote.storage.enable=false: records that only the bucket has are deleted."
    )
    confluent_key_schema_validation: bool = setting(
        False, "Records are refused unless the key names a schema of its subject in the schema registry."
    )
    confluent_value_schema_validation: bool = setting(
        False, "Records are refused unless the value names a schema of its subject in the schema registry."
    )
    confluent_key_subject_name_strategy: str = setting(
        SUBJECT_NAME_STRATEGIES[0],
        "With confluent.key.schema.validation: the subject that the schema of a key must have.",
        choices=SUBJECT_NAME_STRATEGIES,
    )
    confluent_value_subject_name_strategy: str = setting(
        SUBJECT_NAME_STRATEGIES[0],
        "With confluent.value.schema.validation: the subject that the schema of a value must have.",
        choices=SUBJECT_NAME_STRATEGIES,
    )

    @property
    def segment_size(self) -> int:
        """Bytes at which a segment is closed."""
        return self.internal_segment_bytes or self.segment_bytes

    @property
    def copies_to_bucket(self) -> bool:
        """True if closed segments are copied to the bucket."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def deletes_cold(self) -> bool:
        """True if the topic gives up what only the bucket has."""
        return self.remote_log_delete_on_disable and not self.remote_storage_enable

    @classmethod
    def from_strings(cls, given: Mapping[str, str], defaults: TopicConfig | None = None) -> TopicConfig:
        """Returns `defaults` with the values in `given`, as text.

        Raises `Refused` (INVALID_CONFIG) with what is wrong.
        """
        config = replace(defaults or cls(), **_parse_values(topic_rows(), given, "topic"))
        rules.check_topic(config, topic_rows())
        return config

    def to_strings(self) -> dict[str, str]:
        """Returns every setting as text by its dotted name."""
        return _format_values(self)


def _default_of(topic_name: str) -> Any:
    """Returns a broker setting that is the default of a topic setting and shares its limits."""
    row = topic_rows()[topic_name]
    return setting(
        row.default,
        f"Default of `{topic_name}`.",
        row.low,
        row.high,
        row.choices,
        row.unsupported,
        row.without_effect,
        topic_name=topic_name,
    )


@cache
def topic_rows() -> dict[str, SettingRow]:
    """Returns the rows of the topic table by name."""
    return rows(TopicConfig)


@cache
def listed_topic_rows() -> dict[str, SettingRow]:
    """Returns the rows of the topic table that users are shown."""
    return {name: row for name, row in topic_rows().items() if not row.internal}


NO_LOGIN = "NONE"
BASIC, BEARER = "BASIC", "BEARER"
HTTP_LOGINS = (NO_LOGIN, BASIC, BEARER)
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True)
class Settings:
    """Settings of one broker. The constructor takes typed values unchecked; text goes through `from_strings`."""

    # Identity, store and listeners.
    node_id: int = setting(1, "Number of this broker, unique in its cluster.", 0, INT_MAX)
    tiered_processes: str = setting(
        "1",
        "Processes of this machine: each is a broker, and `auto` runs one for each core. Process k of broker N is the"
        " broker N + 1000 k.",
    )
    tiered_processes_port_step: int = setting(
        100, "Process k serves and advertises port P as P + this x (k + 1); all of them share port P.", 1, 10_000
    )
    data_dir: str = setting("./tiered-data", "Directory of the hot log; one process owns it.")
    store: str = setting(
        "", "Bucket: `s3://bucket/prefix`, `file:///dir` or `memory://`; empty is `bucket` under the data directory."
    )
    tiered_encryption_keys_file: str = setting(
        "",
        "File with the keys that encrypt what goes to the bucket (docs/reference/security.md). Empty: no encryption.",
    )
    http: str = setting(
        "127.0.0.1:8082", "HOST:PORT of the HTTP interface, or https://HOST:PORT for TLS; port 0 takes a free one."
    )
    advertised_http: str = setting(
        "",
        "Address of this broker for HTTP clients, HOST:PORT or http(s)://HOST[:PORT]; else `http`, with the host of"
        " its Kafka listener if `http` is bound to all addresses.",
    )
    kafka: str = setting(
        "127.0.0.1:9092", "HOST:PORT of the Kafka protocol; port 0 takes a free one, empty does not serve it."
    )
    listeners: tuple[str, ...] = setting((), "Kafka's form of `kafka`, which it replaces: NAME://HOST:PORT, ...")
    advertised_listeners: tuple[str, ...] = setting(
        (),
        "Addresses for clients, NAME://HOST:PORT, ...; else the listener's own address.",
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        (),
        "NAME:PROTOCOL, ...: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; else that of this name, or PLAINTEXT.",
        skips_blank_words=True,
    )
    controller_listener_names: tuple[str, ...] = setting(
        (), "Names in `listeners` that stand for Kafka's controllers; they are not opened."
    )
    broker_rack: str = setting("", "Rack of this broker, for the placement of replicas.")
    replica_selector_class: str = setting(
        RACK_AWARE,
        "Replica for consumers that name their rack: one in sync there, or the leader (KIP-392). (Kafka: leader.)",
        choices=(RACK_AWARE, LEADERS_ONLY),
    )
    inter_broker_listener_name: str = setting(
        "", "Listener for other brokers; empty means the first one, or that of security.inter.broker.protocol."
    )
    security_inter_broker_protocol: str = setting(
        "",
        "Protocol between brokers, if inter.broker.listener.name is empty. (Kafka: PLAINTEXT.)",
        choices=("", *BUILT),
    )
    ssl_keystore_type: str = setting("PEM", "Form of the key store. (Kafka: JKS.)", choices=STORE_TYPES, dynamic=True)
    ssl_keystore_location: str = setting("", "File with the private key and its certificates.", dynamic=True)
    ssl_keystore_password: Secret = setting(Secret(), "Password of a PKCS12 key store.", dynamic=True)
    ssl_keystore_certificate_chain: str = setting("", "Certificates of the key as PEM, its own first.", dynamic=True)
    ssl_keystore_key: Secret = setting(Secret(), "Private key as PEM.", dynamic=True)
    ssl_key_password: Secret = setting(Secret(), "Password of an encrypted private key.", dynamic=True)
    ssl_truststore_type: str = setting(
        "PEM", "Form of the trust store. (Kafka: JKS.)", choices=STORE_TYPES, dynamic=True
    )
    ssl_truststore_location: str = setting("", "File with the certificates to trust.", dynamic=True)
    ssl_truststore_password: Secret = setting(Secret(), "Password of a PKCS12 trust store.", dynamic=True)
    ssl_truststore_certificates: str = setting("", "Certificates to trust as PEM.", dynamic=True)
    ssl_client_auth: str = setting(
        "none",
        "Certificates of clients: required, requested, or none.",
        choices=("required", "requested", "none"),
        dynamic=True,
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        ("TLSv1.2", "TLSv1.3"), "Versions of TLS.", choices=("TLSv1.2", "TLSv1.3"), dynamic=True
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        (), "Cipher suites of TLSv1.2, by OpenSSL's names; empty means OpenSSL's own.", dynamic=True
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "https",
        "Check of the name of other brokers against their certificates; empty means none.",
        choices=("https", ""),
        dynamic=True,
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT", "Principals of clients with certificates: DEFAULT, or RULE:pattern/replacement/[LU], ..."
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        SCRAM_MECHANISMS, "Mechanisms of logins. (Kafka: GSSAPI.)", choices=(*SASL_MECHANISMS, OAUTHBEARER)
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", "Public keys of tokens, as a JWK set: file:///PATH, or one of tiered.sasl.oauthbearer.allowed.urls."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, "Time between two looks for newer keys of tokens; a file is looked at more often.", 10_000, INT_MAX
    )
    sasl_oauthbearer_expected_issuer: str = setting("", "Issuer of tokens. (Kafka: any.)")
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        (), "Audiences of tokens: a token names one of them. (Kafka: any.)"
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, "Most seconds that the clocks of issuer and broker may differ.", 0, 3600
    )
    sasl_oauthbearer_sub_claim_name: str = setting("sub", "Claim of tokens with the name of the principal.")
    tiered_sasl_oauthbearer_allowed_urls: tuple[str, ...] = setting(
        (), "URLs from which keys of tokens may be fetched. (Kafka: a property of the JVM.)"
    )
    connections_max_reauth_ms: int = setting(
        0, "Milliseconds after which a client has to log in again (KIP-368); 0: never.", 0, 2**53
    )
    connection_failed_authentication_delay_ms: int = setting(100, "Delay of the reply to a failed login.", 0, 10_000)
    delegation_token_secret_key: Secret = setting(
        Secret(), "Secret key of delegation tokens, the same on all brokers; empty: none are served."
    )
    delegation_token_max_lifetime_ms: int = setting(
        7 * DAY_MS, "Longest lifetime of a delegation token, with all renewals.", 1, LONG_MAX
    )
    delegation_token_expiry_time_ms: int = setting(
        DAY_MS, "Time after which a delegation token expires unless it is renewed.", 1, LONG_MAX
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        HOUR_MS, "Time between two looks for expired delegation tokens, which are removed.", 1, LONG_MAX
    )
    cordoned_log_dirs: tuple[str, ...] = setting(
        (), "`*`, set for one running broker: it gets no new replicas (KIP-1066).", choices=("*",), dynamic=True
    )
    broker_session_timeout_ms: int = setting(
        6_000, "Time without contact after which a broker is fenced.", 500, INT_MAX
    )
    tiered_broker_suspect_timeout_ms: int = setting(
        -1,
        "Time after which a broker is fenced, or a controller replaced, that is silent and leaves a request without a"
        " reply; one that replies has `broker.session.timeout.ms`, and a value of that or more leaves it to each. It"
        " doubles for an hour for a broker that was fenced and is back at once. -1: a third of it, but 2000 at least.",
        -1, INT_MAX,
    )  # fmt: skip
    tiered_disk_stall_timeout_ms: int = setting(
        2_250,
        "Time without the end of an fsync, while records of flush=ack wait for one, after which a broker leads only"
        " where no other can; 0: it keeps waiting.",
        0, INT_MAX,
    )  # fmt: skip
    broker_heartbeat_interval_ms: int = setting(1_500, "Time between two heartbeats of a broker.", 50, INT_MAX)
    auto_leader_rebalance_enable: bool = setting(True, "Preferred leaders lead again after they come back.")
    leader_imbalance_check_interval_seconds: int = setting(
        300, "Longest time between two checks for preferred leaders.", 1, INT_MAX
    )
    replica_lag_time_max_ms: int = setting(
        10_000, "Longest time that a replica may lag and stay in sync.", 100, LONG_MAX
    )
    replica_fetch_wait_max_ms: int = setting(500, "Longest time that a leader holds a replica's fetch.", 1, INT_MAX)
    replica_fetch_max_bytes: int = setting(MIB, "Bytes that a replica fetches from one partition at once.", 1, INT_MAX)
    replica_fetch_response_max_bytes: int = setting(
        10 * MIB, "Bytes that a replica fetches from one leader at once.", 1, INT_MAX
    )
    log_level: str = setting(
        "info", "Least severe event that is logged, to stderr.", choices=("debug", "info", "warning", "error"),
        dynamic=True,
    )  # fmt: skip
    tiered_insecure: bool = setting(
        False, "Addresses that other machines reach are served also without TLS and a login."
    )
    tiered_audit_file: str = setting(
        "", "File that gets the audit log: logins and refused operations as JSON lines. Empty: the log on stderr."
    )
    tiered_audit_topic: str = setting(
        "", "Topic that gets the audit log too. It must exist: an operator creates it, and says who may read it."
    )
    # Rights.
    authorizer_class_name: str = setting(
        "", "Rights by ACLs if it is Kafka's StandardAuthorizer; otherwise everybody may do everything.",
        choices=("", STANDARD_AUTHORIZER),
    )  # fmt: skip
    super_users: str = setting("", "Principals that may do everything, as User:alice;User:bob.")
    allow_everyone_if_no_acl_found: bool = setting(
        False, "Everybody may do everything with a resource for which there is no ACL."
    )
    # Topics.
    auto_create_topics_enable: bool = setting(True, "A client that names a missing topic creates it.")
    delete_topic_enable: bool = setting(True, "Topics can be deleted.")
    num_partitions: int = setting(1, "Partitions of a topic that is created without a number.", 1, 100_000)
    tiered_partitions_max: int = setting(
        50_000, "Most partitions of a cluster: above it none is created.", 1, INT_MAX, dynamic=True
    )
    tiered_partitions_max_per_broker: int = setting(
        4_000,
        "Most replicas on one broker: above it no partition is created or moved there.",
        1,
        INT_MAX,
        dynamic=True,
    )
    tiered_compression_gzip_level_max: int = setting(
        9, "Highest `compression.gzip.level` that a request may set for a topic.", 1, 9, dynamic=True
    )
    tiered_compression_lz4_level_max: int = setting(
        17, "Highest `compression.lz4.level` that a request may set for a topic; 9 is fast, and always taken.", 1, 17,
        dynamic=True,
    )  # fmt: skip
    tiered_compression_zstd_level_max: int = setting(
        12, "Highest `compression.zstd.level` that a request may set for a topic: 22 takes 17 times the CPU.", 1, 22,
        dynamic=True,
    )  # fmt: skip
    tiered_max_message_bytes_max: int = setting(
        16 * MIB, "Highest `max.message.bytes` that a request may set for a topic: a batch is one write.", 1, INT_MAX,
        dynamic=True,
    )  # fmt: skip
    tiered_acls_max: int = setting(10_000, "Most ACLs of a cluster: above it none is added.", 1, 100_000, dynamic=True)
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
    log_cleaner_enable: bool = setting(True, "Compacted logs are cleaned.", dynamic=True)
    log_cleaner_threads: int = setting(1, "Most logs that are cleaned at the same time.", 1, 16, dynamic=True)
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * MIB,
        "Most memory for the keys of all cleans; 24 bytes a key. Keys that do not fit take another clean.",
        MIB,
        LONG_MAX,
        dynamic=True,
        of_machine=True,
    )
    log_cleaner_io_buffer_size: int = setting(
        512 << 10,
        "Bytes that all cleans read at once, beside single larger batches.",
        1024,
        INT_MAX,
        dynamic=True,
        of_machine=True,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9, "Share of the memory for keys that is used: a fuller table is slower.", 0.1, 0.95, dynamic=True
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        float(LONG_MAX), "Bytes per second that all cleans read.", 1, float(LONG_MAX), dynamic=True, of_machine=True
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "Time between two looks for logs to clean.", 1, LONG_MAX, dynamic=True
    )
    log_cleaner_delete_retention_ms: int = _default_of("delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _default_of("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _default_of("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _default_of("max.compaction.lag.ms")
    log_preallocate: bool = _default_of("preallocate")
    # Groups.
    offsets_topic_num_partitions: int = setting(50, "Partitions of `__consumer_offsets`.", 1, 10_000)
    offsets_topic_replication_factor: int = setting(
        3, "Replicas of `__consumer_offsets`; fewer while there are fewer brokers.", 1, 32767
    )
    offsets_topic_segment_bytes: int = setting(
        100 * MIB, "Size at which a segment of `__consumer_offsets` is closed.", MIB, INT_MAX
    )
    tiered_groups_max_bytes: int = setting(
        256 << 20,
        "Memory for all groups that a broker coordinates: subscriptions, assignments, offsets. Above three quarters of"
        " it, joins and commits that need more are refused to clients that have more than their share"
        " (docs/reference/security.md); above it, to all. Clients try again.",
        1 << 20,
        LONG_MAX,
    )
    offset_metadata_max_bytes: int = setting(
        4096, "Largest size of the metadata text of a committed offset.", 0, INT_MAX
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60, "Time for which the offsets of an empty group are kept.", 1, INT_MAX
    )
    offsets_retention_check_interval_ms: int = setting(
        10 * MINUTE_MS, "Time between two checks for expired offsets.", 1, LONG_MAX
    )
    group_min_session_timeout_ms: int = setting(
        6_000, "Shortest session timeout that a member may request.", 0, INT_MAX
    )
    group_max_session_timeout_ms: int = setting(
        30 * MINUTE_MS, "Longest session timeout that a member may request.", 0, INT_MAX
    )
    group_initial_rebalance_delay_ms: int = setting(
        500, "Time that an empty group waits for more members, again after each that joins. (Kafka: 3000.)", 0, INT_MAX
    )
    group_max_size: int = setting(1_000, "Most members of a classic group. (Kafka: no limit.)", 1, INT_MAX)
    group_consumer_session_timeout_ms: int = setting(
        45_000, "Time without a heartbeat after which a member of a consumer group (KIP-848) is removed.", 1, INT_MAX
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "Time between two heartbeats of a member of a consumer group.", 1, INT_MAX
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "Shortest session timeout of a consumer group, by the setting above or its own.", 1, INT_MAX
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "Longest session timeout of a consumer group.", 1, INT_MAX
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "Shortest time between two heartbeats of a member of a consumer group.", 1, INT_MAX
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "Longest time between two heartbeats of a member of a consumer group.", 1, INT_MAX
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000, "Time after which a regular expression of a consumer group finds new topics.", 10_000, INT_MAX
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "Conversions of groups with members: to a consumer group when the first member joins by the new protocol, and"
        " back when the last one leaves.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_max_size: int = setting(
        INT_MAX, "Most members of a consumer group; `tiered.groups.max.bytes` bounds their memory.", 1, INT_MAX
    )
    # Transactions.
    transaction_state_log_num_partitions: int = setting(50, "Partitions of `__transaction_state`.", 1, 10_000)
    transaction_state_log_replication_factor: int = setting(
        3, "Replicas of `__transaction_state`; fewer while there are fewer brokers.", 1, 32767
    )
    transaction_state_log_min_isr: int = setting(
        2,
        "Least in-sync replicas for a change of `__transaction_state`; all of them if it has fewer replicas.",
        1,
        32767,
    )
    transaction_state_log_segment_bytes: int = setting(
        100 * MIB, "Size at which a segment of `__transaction_state` is closed.", MIB, INT_MAX
    )
    transaction_max_timeout_ms: int = setting(
        15 * MINUTE_MS, "Longest timeout of transactions that a producer may request.", 1, INT_MAX
    )
    transactional_id_expiration_ms: int = setting(
        7 * 24 * 60 * MINUTE_MS, "Time after which a transactional id without a transaction is removed.", 1, INT_MAX
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        60 * MINUTE_MS, "Time between two checks for expired transactional ids.", 1, INT_MAX
    )
    share_coordinator_state_topic_num_partitions: int = setting(50, "Partitions of `__share_group_state`.", 1, 10_000)
    share_coordinator_state_topic_replication_factor: int = setting(
        3, "Replicas of `__share_group_state`; fewer while there are fewer brokers.", 1, 32767
    )
    share_coordinator_state_topic_min_isr: int = setting(
        2,
        "Least in-sync replicas for a change of `__share_group_state`; all of them if it has fewer replicas.",
        1,
        32767,
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        100 * MIB, "Size at which a segment of `__share_group_state` is closed.", MIB, INT_MAX
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        500, "Updates of the state of one share partition between two records that have all of it.", 0, 500
    )
    tiered_share_state_max_bytes: int = setting(
        256 << 20,
        "Memory for the state of all share partitions that a broker coordinates. New ones take half of it at most.",
        1 << 20,
        LONG_MAX,
    )
    tiered_transactions_max_bytes: int = setting(
        256 << 20,
        "Memory for all transactional ids that a broker coordinates. Above three quarters of it, new ids and partitions"
        " are refused to clients that have more than their share (docs/reference/security.md); above it, to all.",
        1 << 20,
        LONG_MAX,
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Ask the coordinator, before the first record of a transaction in a partition, if the partition belongs to the"
        " transaction.",
        dynamic=True,
    )
    # Connections of the Kafka protocol.
    socket_request_max_bytes: int = setting(100 * MIB, "Largest size of a request.", 1024, INT_MAX)
    queued_max_requests: int = setting(
        500, "Most requests in progress, over all connections.", 1, INT_MAX, of_machine=True
    )
    queued_max_request_bytes: int = setting(
        128 * MIB, "Most bytes of requests in memory, over all connections.", 1024, LONG_MAX, of_machine=True
    )
    leader_replication_throttled_rate: int = setting(
        LONG_MAX,
        "Bytes per second that a leader sends to throttled followers.",
        0,
        LONG_MAX,
        dynamic=True,
        of_machine=True,
    )
    follower_replication_throttled_rate: int = setting(
        LONG_MAX, "Bytes per second that throttled followers copy.", 0, LONG_MAX, dynamic=True, of_machine=True
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(LONG_MAX, "No effect.", 0, LONG_MAX, dynamic=True)
    max_connections: int = setting(2_000, "Most connections at the same time.", 1, INT_MAX, dynamic=True)
    max_connections_per_ip: int = setting(
        500,
        "Most connections from one address at the same time. 0 needs `max.connections.per.ip.overrides`.",
        0,
        INT_MAX,
        dynamic=True,
    )
    max_connections_per_ip_overrides: tuple[str, ...] = setting(
        (),
        "Addresses with a maximum of their own, on the Kafka port and over HTTP: `10.0.0.7:20,::1:5`.",
        skips_blank_words=True,
        dynamic=True,
    )
    max_connection_creation_rate: int = setting(1_000, "Most new connections per second.", 1, INT_MAX, dynamic=True)
    quota_window_num: int = setting(11, "Samples over which the rates of client quotas are measured.", 1, 100)
    quota_window_size_seconds: int = setting(1, "Length of a sample of client quotas.", 1, 3600)
    controller_quota_window_num: int = setting(
        11, "Samples over which changes of metadata may be made at once, under a client quota.", 1, 100
    )
    controller_quota_window_size_seconds: int = setting(
        1, "Length of a sample of client quotas for changes of metadata.", 1, 3600
    )
    tiered_store_request_rate: float = setting(
        0.0,
        "Requests to the bucket that each user may cause in a second on a broker, by cold reads and look-ups."
        " 0 for no limit. The quota `store_request_rate` of an entity takes its place.",
        0.0,
        float(LONG_MAX),
        of_machine=True,
    )
    connections_max_idle_ms: int = setting(
        10 * MINUTE_MS, "Time after which a connection without requests is closed.", 1, LONG_MAX
    )
    remote_list_offsets_request_timeout_ms: int = setting(
        30_000, "Longest time for a lookup of offsets by time in the bucket.", 1, LONG_MAX, dynamic=True
    )
    remote_fetch_max_wait_ms: int = setting(
        500,
        "Time for which a fetch that would wait less, or not at all, waits for records that only the bucket has.",
        1,
        INT_MAX,
        dynamic=True,
    )
    fetch_max_bytes: int = setting(55 * MIB, "Most bytes of records in one reply.", 1024, INT_MAX)
    tiered_frame_timeout_ms: int = setting(
        30_000, "Longest time from the first byte of a request to its last.", 1, INT_MAX
    )
    # Loops of the broker.
    log_retention_check_interval_ms: int = setting(
        5 * MINUTE_MS, "Time between two checks of rolls by time and of retention.", 1, LONG_MAX
    )
    log_flush_scheduler_interval_ms: int = setting(10_000, "Time between two checks of flush.ms.", 1, LONG_MAX)
    producer_id_expiration_ms: int = setting(
        DAY_MS,
        "Time after which the state of an idle idempotent producer, or of an idempotency key, is dropped.",
        1,
        INT_MAX,
    )
    tiered_producer_ids_max: int = setting(
        200_000,
        "Most producer states of a broker, counted once for each partition. Above three quarters of it, states of"
        " producers that wrote nothing for ten minutes are dropped, and new ones are refused to clients that have more"
        " than their share (docs/reference/security.md); above it, all new ones are. Clients try again.",
        1,
        INT_MAX,
    )
    tiered_producer_ids_max_per_partition: int = setting(
        10_000,
        "Most producer states of a partition. Above it, a new producer replaces one that wrote nothing for ten"
        " minutes, or is refused, and clients try again. Half of them may be idempotency keys of HTTP. Clients have"
        " shares of both. The same on all brokers.",
        1,
        INT_MAX,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        MINUTE_MS, "Time between two writes of the recovery points.", 1, INT_MAX
    )
    remote_log_storage_system_enable: bool = setting(True, "Topics are tiered unless their own settings switch it off.")
    remote_log_manager_task_interval_ms: int = setting(
        30_000,
        "Time between two copies of closed segments; those of a single replica, or of 512 MiB together, go at once.",
        1,
        LONG_MAX,
    )
    remote_log_manager_copy_max_bytes_per_second: int = setting(
        LONG_MAX,
        "Most bytes of segments that are copied to the bucket in a second, on average. A segment is copied in one go.",
        1,
        LONG_MAX,
        dynamic=True,
        of_machine=True,
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        LONG_MAX,
        "Most bytes of segments that fetches get from the bucket in a second, on average.",
        1,
        LONG_MAX,
        dynamic=True,
        of_machine=True,
    )
    remote_log_manager_copier_thread_pool_size: int = setting(
        4, "Most segments copied at the same time.", 1, 64, of_machine=True
    )
    # Settings that Kafka does not have.
    tiered_internal_configs_enable: bool = setting(
        False,
        "Topics may set internal.segment.bytes, which is for tests: small segments cost files and requests to the"
        " bucket. The same on all brokers.",
    )
    tiered_certificate_expiry_warning_days: int = setting(
        14,
        "Days before a certificate of a listener expires from which the health report names it; for a short life, its"
        " last third at most.",
        0,
        36_500,
        dynamic=True,
    )
    tiered_clock_skew_max_ms: int = setting(
        5_000,
        "Most by which the clock of a broker may differ from the controller's: more is a problem of the health report.",
        100,
        LONG_MAX,
        dynamic=True,
    )
    tiered_trace_min_ms: int = setting(
        -1,
        "Requests that take at least so long are traced: `tiered trace` shows the slowest of the last ten minutes. -1"
        " traces none, and costs nothing.",
        -1,
        INT_MAX,
        dynamic=True,
    )
    tiered_trace_otlp_endpoint: str = setting(
        "",
        "URL that gets the traced requests as spans of OpenTelemetry, by OTLP over HTTP, such as"
        " http://collector:4318/v1/traces; empty: none are sent. It needs the extra `otel`.",
    )
    tiered_upload_max_lag_ms: int = setting(
        10 * MINUTE_MS,
        "Age at which the oldest record outside the bucket is copied there: its segment is closed and uploaded.",
        1,
        LONG_MAX,
    )
    tiered_upload_pause: bool = setting(
        False,
        "No segments are copied to the bucket for now; they wait on the disks, however old. To keep later records of"
        " one topic out of the bucket, set its `remote.log.copy.disable`.",
        dynamic=True,
    )
    tiered_internal_topics_flush: str = setting(
        "",
        "Value of `flush` that `__consumer_offsets` and `__transaction_state` are created with; empty: `log.flush`.",
        choices=("", "none", "ack", "bucket"),
    )
    tiered_wal_window_ms: int = setting(
        250, "Longest time for which records of flush=bucket wait for others to share a put.", 1, 10_000
    )
    tiered_wal_window_bytes: int = setting(
        8 * MIB, "Bytes of records of flush=bucket that end this wait.", 64 << 10, 256 * MIB
    )
    tiered_chunk_cache_bytes: int = setting(
        256 * MIB, "Memory for chunks read from the bucket.", MIB, LONG_MAX, of_machine=True
    )
    tiered_chunk_cache_disk_bytes: int = setting(
        0, "Bytes of the data directory for chunks read from the bucket; 0: none.", 0, LONG_MAX, of_machine=True
    )
    tiered_topic_delete_delay_ms: int = setting(
        10 * MINUTE_MS, "Time between deleting a topic and deleting its objects.", 0, LONG_MAX
    )
    tiered_object_delete_delay_ms: int = setting(
        MINUTE_MS,
        "Time between removing an object from its manifest and deleting it, so that readers can finish.",
        0,
        LONG_MAX,
    )
    tiered_cleaner_max_requests_per_second: float = setting(
        50.0,
        "Requests per second that all cleans in the bucket make.",
        0.1,
        float(LONG_MAX),
        dynamic=True,
        of_machine=True,
    )
    tiered_cleaner_object_max_bytes: int = setting(
        64 * MIB, "Largest log part of an object that a clean puts. Each clean has one in memory.", 1024, INT_MAX
    )
    tiered_http_body_max_bytes: int = setting(
        64 * MIB, "Largest size of an HTTP request body, decompressed.", 1024, INT_MAX
    )
    tiered_http_allowed_hosts: tuple[str, ...] = setting(
        (),
        "Host names, beside its own, by which HTTP clients may reach the broker, and whose pages may; `*` is any name.",
    )
    tiered_console_enable: bool = setting(True, "Serve the console at `/console/` of the HTTP listener.")
    tiered_console_messages: bool = setting(
        True, "Show records in the console. Without it, commands and scripts read what their ACLs allow, as before."
    )
    tiered_console_read_only: bool = setting(
        False, "Refuse changes that pages ask for, those of the console too. Commands and scripts may change things."
    )
    tiered_console_warehouse: str = setting(
        "",
        "Directory or s3:// URL of the Delta tables of topics that the console shows. It needs the extra `sql`; without"
        " a place there is no page of tables.",
    )
    tiered_console_prices: str = setting(
        "",
        "TOML file with the prices of the bucket, for the page of costs, such as `infra/prices/s3-standard.toml`.",
    )
    authentication_method: tuple[str, ...] = setting(
        (NO_LOGIN,),
        "Logins of HTTP requests, as in the REST Proxy: BASIC with a password, BEARER with a token.",
        choices=HTTP_LOGINS,
    )
    tiered_metrics_max_topics: int = setting(
        1000, "Most topics with their own labels in metrics; all others share one.", 0, 100_000
    )
    tiered_metrics_max_group_topics: int = setting(
        1000,
        "Most pairs of a group and a topic with their own labels in metrics; all others share one.",
        0,
        100_000,
    )
    tiered_http_connections_max: int = setting(
        1000, "Most HTTP connections at the same time.", 1, 1_000_000, dynamic=True
    )
    tiered_http_connections_max_per_ip: int = setting(
        500,
        "Most HTTP connections from one address at the same time; half as many event streams.",
        1,
        1_000_000,
        dynamic=True,
    )
    tiered_http_max_connection_creation_rate: int = setting(
        1_000, "Most new HTTP connections per second.", 1, INT_MAX, dynamic=True
    )

    process: int = 0
    """Number of this process on its machine. `tiered serve` sets it."""
    processes: int = 1
    """Number of processes on its machine."""
    listener_overrides: tuple[ListenerOverride, ...] = ()
    """Settings of single listeners, which `for_listener` applies."""
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the settings that the broker was started with, also those that have their default value."""

    @classmethod
    def from_strings(cls, given: Mapping[str, str], defaults: Settings | None = None) -> Settings:
        """Returns `defaults` with the values in `given`.

        Raises `Refused` (INVALID_CONFIG) with the setting, the value and what is allowed.
        """
        of_broker, of_listeners = split_overrides(given)
        values = _parse_values(broker_rows(), resolve_aliases(of_broker, broker_rows()), "broker")
        settings = replace(defaults or cls(given=frozenset(name.replace("_", ".") for name in values)), **values)
        overrides = parse_overrides(of_listeners, broker_rows())
        settings = replace(settings, listener_overrides=(*settings.listener_overrides, *overrides))
        settings = replace(settings, inter_broker_listener_name=settings.inter_broker_listener_name.upper())
        parse_address(settings.http_address, "http")
        settings.effective_listeners()
        settings.resolve_advertised_listeners(settings.effective_listeners(), "localhost")
        settings.resolve_advertised_http(0)
        rules.check_broker(settings, broker_rows())
        between = settings.inter_broker_endpoint()
        if settings.security_inter_broker_protocol and between is not None:
            settings = replace(settings, inter_broker_listener_name=between.name)
        rules.check_topic(settings.topic_defaults(), topic_rows())
        return settings

    def effective_listeners(self) -> tuple[Endpoint, ...]:
        """Returns the listeners of the Kafka protocol. Raises `Refused` (INVALID_CONFIG) if a setting is wrong."""
        skipped = [name.upper() for name in self.controller_listener_names]
        if self.listeners:
            row = broker_rows()["listeners"]
            endpoints = listeners.parse(self.listeners, skipped, row.refuse)
            endpoints = tuple(each._replace(host=each.host or listeners.ANY_HOST) for each in endpoints)
        else:
            row = broker_rows()["kafka"]
            endpoints = (Endpoint(PLAINTEXT, *parse_address(self.kafka, "kafka")),) if self.kafka else ()
        return listeners.with_protocols(endpoints, self.listener_security_protocol_map, row.refuse)

    def for_listener(self, name: str) -> Settings:
        """Returns the settings that are in force for a listener."""
        own = {
            each.name.replace(".", "_"): each.value
            for each in self.listener_overrides
            if each.listener == name and each.name != PLAIN_USERS
        }
        return replace(self, **own) if own else self  # type: ignore[arg-type]

    @property
    def uses_tokens(self) -> bool:
        """True if clients may log in by token."""
        return BEARER in self.authentication_method or OAUTHBEARER in self._login_mechanisms()

    @property
    def takes_passwords(self) -> bool:
        """True if the users of the cluster may log in with their passwords."""
        return BASIC in self.authentication_method or not self._login_mechanisms().isdisjoint(SCRAM_MECHANISMS)

    def _login_mechanisms(self) -> set[str]:
        listeners = [each.name for each in self.effective_listeners() if each.requires_login]
        return {each for name in listeners for each in self.for_listener(name).sasl_enabled_mechanisms}

    def plain_users(self, listener: str) -> Mapping[str, Secret]:
        """Returns the users of a listener that log in by PLAIN."""
        for each in self.listener_overrides:
            if (each.listener, each.name) == (listener, PLAIN_USERS) and isinstance(each.value, Secret):
                return read_plain_users(each.value)
        return {}

    def inter_broker_endpoint(self) -> Endpoint | None:
        """Returns the listener for other brokers; None if there is none. All brokers have listeners of the same names
        and protocols."""
        return listeners.find_inter_broker(
            self.effective_listeners(), self.inter_broker_listener_name, self.security_inter_broker_protocol
        )

    def inter_broker_login(self) -> int | None:
        """Returns the node id with which this broker logs in at others; None if their listener needs no login."""
        chosen = self.inter_broker_endpoint()
        return self.node_id if chosen is not None and chosen.requires_login else None

    def resolve_advertised_listeners(self, bound: Sequence[Endpoint], hostname: str) -> tuple[Endpoint, ...]:
        """Returns the endpoints that clients get for the listeners in `bound`.

        Raises `Refused` (INVALID_CONFIG) for a name that no listener has, and for a host that clients cannot reach.
        """
        row = broker_rows()["advertised.listeners"]
        skipped = [name.upper() for name in self.controller_listener_names]
        advertised = listeners.parse(self.advertised_listeners, skipped, row.refuse)
        for each in advertised:
            if each.name not in {endpoint.name for endpoint in bound}:
                raise row.refuse(f"{each.name}://{each.address}", "no listener has that name")
            if each.host in listeners.WILDCARDS:
                raise row.refuse(f"{each.name}://{each.address}", "it must name a host that clients can reach")
        return listeners.advertise(bound, advertised, hostname)

    @property
    def http_scheme(self) -> str:
        """`https` if the HTTP interface has TLS, else `http`."""
        return "https" if self.http.startswith(HTTPS) else "http"

    @property
    def http_address(self) -> str:
        """HOST:PORT of the HTTP interface."""
        return self.http.removeprefix(HTTPS)

    def resolve_advertised_http(self, bound_port: int) -> str:
        """Returns the `http://HOST:PORT` for HTTP clients; "" if it is not set. Raises `Refused` (INVALID_CONFIG)."""
        if not self.advertised_http:
            return ""
        origin = listeners.parse_http_origin(self.advertised_http, bound_port, self.http_scheme)
        if origin is None:
            why = "it must be HOST:PORT or http(s)://HOST[:PORT], of a host that clients can reach"
            raise broker_rows()["advertised.http"].refuse(self.advertised_http, why)
        return origin

    def topic_defaults(self) -> TopicConfig:
        """Returns the settings of a topic that sets none itself."""
        values = {
            row.topic_name.replace(".", "_"): getattr(self, name.replace(".", "_"))
            for name, row in broker_rows().items()
            if row.topic_name
        }
        config = TopicConfig(**values)
        return config if self.remote_log_storage_system_enable else replace(config, remote_storage_enable=False)

    def to_strings(self) -> dict[str, str]:
        """Returns every setting as text by its dotted name."""
        return _format_values(self)


@cache
def broker_rows() -> dict[str, SettingRow]:
    """Returns the rows of the broker table by name."""
    return rows(Settings)


def unknown_topic_setting(name: str) -> Refused:
    """Returns the error for a name that no setting of topics has."""
    if name in broker_rows():
        return Refused(Code.INVALID_CONFIG, f"{name}: it is a setting of brokers, not of topics")
    return unknown_setting(name, listed_topic_rows(), "topic")


def unknown_broker_setting(name: str) -> Refused:
    """Returns the error for a name that no setting of brokers has. It tells settings of Kafka from unknown ones."""
    if is_known_to_kafka(name):
        return Refused(Code.INVALID_CONFIG, f"{name}: it is a setting of Kafka that has no effect here: leave it out")
    return unknown_setting(name, broker_rows(), "broker")


def parse_address(text: str, name: str) -> tuple[str, int]:
    """Returns the parts of `HOST:PORT`; IPv6 hosts are in brackets.

    Raises `Refused` (INVALID_CONFIG) for another form.
    """
    host_port = listeners.parse_host_port(text)
    if host_port is None or not host_port[0]:
        raise broker_rows()[name].refuse(text, "it must be HOST:PORT with a port from 0 to 65535")
    return host_port


def _parse_values(table: Mapping[str, SettingRow], given: Mapping[str, str], kind: str) -> dict[str, Any]:
    parsed: dict[str, Value] = {}
    for name, text in given.items():
        if name not in table:
            raise unknown_topic_setting(name) if kind == "topic" else unknown_broker_setting(name)
        parsed[name.replace(".", "_")] = table[name].parse(text)
    return parsed


def _format_values(table: TopicConfig | Settings) -> dict[str, str]:
    return {each.name.replace("_", "."): text_of(getattr(table, each.name)) for each in setting_fields(table)}
