"""Options of one cluster run that a seed draws: its shape, its clients, and the kinds and rates of its faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.sim.cluster.world import LISTENER, PORT
from tiered.config.settings import Settings
from tiered.ids import PROCESS_STEP
from tiered.records.model import Codec

MIB = 1 << 20
BROKERS = 3
"""Possible numbers of brokers of a run."""
TROUBLES = (
    "kill", "power", "disk_lost", "freeze", "stop", "disk_full", "disk_error", "disk_slow", "clock_jump",
    "one_way", "isolated", "halves", "reset", "bucket_away", "bucket_away_for_one", "kill_all", "power_all", "flapping",
)  # fmt: skip
"""Every kind of fault. Each seed takes some of them."""
ACTS_LATE = "acts_late"
"""The fault that is drawn apart from these."""

SETTING_KINDS = ("flush", "min_isr", "retention", "local_retention", "tiering", "unclean")
"""Kinds of settings that may change during their use."""

SETTINGS_CHANGE_SHARE, DEFAULT_MIN_ISR_SHARE, DELETES_SHARE, UNCLEAN_SHARE, UNTIERED_SHARE = 0.5, 0.2, 0.3, 0.1, 0.25
"""Shares of seeds in which settings change, whose topics use the brokers' `min.insync.replicas`, in which records are
deleted, and in which any replica may lead; share of topics that are not tiered."""
ACTS_LATE_SHARE, JOINS_SHARE, LEAVES_SHARE, STATIC_SHARE = 0.25, 0.2, 0.7, 0.4
"""Shares of seeds in which brokers act late, and in which one joins; of the latter, in which one leaves; of those with
groups, whose members are static."""

TRANSACTIONS_SHARE, COPIES_SHARE, LOSSLESS_SHARE = 0.25, 0.7, 0.75
"""Share of seeds with transactional producers; of these, share with copiers, and share in which no machine loses more
than a process, so that everything can be judged."""
LOSSY_TROUBLES = ("power", "disk_lost", "disk_full", "disk_error", "power_all")
DELAY_SECONDS = 10.0
SOURCE_TOPIC, TARGET_TOPIC = "x0", "y0"
"""Topics of transactional producers, and of copies."""

COMPACTION_SHARE, UNTIERED_COMPACTION_SHARE = 0.14, 0.4
"""Share of seeds with a compacted topic; of these, share in which it is not tiered."""
COMPACTED_TOPIC = "c0"
COMMITTED_TOPIC = "o0"
"""The topic whose offsets are committed by groups without members."""
SMALL_OBJECT_BYTES, MIB = 1024, 1 << 20
"""Limits on the objects of cleans. With the first one a run of segments becomes several objects."""

ENCRYPTION_SHARE, TURNED_ON_SHARE = 0.15, 0.3
"""Share of seeds with an encrypted bucket; of these, share in which encryption is turned on while brokers run."""

TIME_READER_SHARE = 0.35
"""Share of seeds in which a reader looks up times."""
DISK_CACHE_SHARE, DISK_CACHE_BYTES = 0.3, (8_192, MIB)
"""Share of seeds in which brokers keep chunks on disk, and the sizes of this cache: one that is always full, and one
that never is."""
REST_SHARE = 0.15
"""Share of seeds with REST consumers."""
FIRST_BYTE_SECONDS = (0.0, 0.05, 0.2)
"""Times of the bucket up to the first byte in these: records move while a look-up waits for it."""

RARE_STEP_SHARE = 0.6
CHAINS_SHARE, CHAIN_CHANGES_SHARE = 0.33, 0.4
"""Shares of runs whose records are acknowledged once they are in the bucket, and of those whose topics leave and enter
that mode."""
CHAINS = "chains"
"""Kind of setting that is drawn only for such runs: the topics enter or leave that mode."""
"""Share of the seeds with reassignments, deletions or transactions that bring about the rare steps of these."""
RIVALS = (0, 2, 2, 3)

SMALL_CHUNK_SHARES = (*(0.0,) * 6, 0.2, 0.3, 0.5, 1.0)
"""Shares of connections with chunks down to one byte: the larger the share, the slower the run."""


@dataclass(frozen=True)
class TopicShape:
    """One topic of the run."""

    name: str
    partitions: int
    replicas: int
    min_isr: int
    flush: str
    tiered: bool = True
    own_min_isr: bool = True
    """True if the topic has its own `min.insync.replicas`; otherwise the value of all brokers applies."""
    unclean: bool = False
    """True if any replica may lead the topic (unclean leader election)."""
    keeps: bool = False
    """True if no record expires, whatever the topics of the run do."""
    own: tuple[tuple[str, str], ...] = ()
    """Other settings of the topic alone."""

    @property
    def configs(self) -> dict[str, str]:
        """Returns the settings that the topic is created with, beside those of all topics."""
        own = {"min.insync.replicas": str(self.min_isr)} if self.own_min_isr else {}
        if not self.tiered:
            own["remote.storage.enable"] = "false"
        if self.keeps:
            own |= {"retention.bytes": "-1", "retention.ms": "-1"}
        if self.unclean:
            own["unclean.leader.election.enable"] = "true"
        return own | {"flush": self.flush} | dict(self.own)


@dataclass(frozen=True)
class ClusterOptions:
    """Options that a seed draws; printed with a failing run."""

    seed: int
    brokers: int
    """Number of brokers at the beginning."""
    topics: tuple[TopicShape, ...]
    segment_bytes: int
    local_retention_bytes: int
    retention_bytes: int
    retention_ms: int
    senders: int
    send_rate: float
    """Batches per second of each sender."""
    in_flight: int
    """Maximum number of batches that an idempotent sender has in flight for one partition."""
    readers: int
    members: int
    admin: bool
    admin_deletes: bool
    """True if the administration deletes records."""
    moves: bool
    troubles: tuple[str, ...]
    rot: bool
    fetch_bytes: int
    """Bytes that a follower fetches from a partition in one request; at least one batch."""
    troublemakers: int
    pause_seconds: float
    """Mean time between two faults of one source."""
    worst_fault: float
    """Maximum chance that a bucket call fails."""
    bucket_rate: float
    """Calls per second of all brokers before the bucket throttles them; 0 means no limit."""
    list_keys: int
    """Maximum number of keys in one page of a list; 0 means as many as requested."""
    latency_seconds: float
    skewed: bool
    """True if each direction between two hosts has its own latency."""
    small_chunk_share: float
    """Share of the connections that deliver chunks of any size down to one byte."""
    session_ms: int
    drift_ppm: int
    manifest_fan: int
    snapshot_slots: int
    chaos_seconds: float
    rebuild: bool
    joins: bool = False
    """True if a broker joins."""
    leaves: bool = False
    """True if a broker is decommissioned after that."""
    moves_at_once: int = 1
    static: bool = False
    """True if all members of the group but one are static."""
    group_topics: int = 1
    """Number of topics that the members of the group read."""
    deletes: bool = False
    """True if records are deleted during the whole run."""
    deletes_at_joins: bool = False
    """True if records are deleted whenever a leader proposes a member of an ISR."""
    changes: tuple[str, ...] = ()
    """Kinds of settings that change, of topics in use and of all brokers."""
    min_isr: int = 1
    """`min.insync.replicas` in the configuration file of each broker."""
    transactional_producers: int = 0
    copies: bool = False
    """True if records of transactional producers are copied, in transactions with the offsets of a group."""
    keyed_writers: int = 0
    """Writers over HTTP with idempotency keys."""
    returns_replicas: bool = False
    """True if reassignments also remove replicas that are in sync, and add them again."""
    repeats_reports: bool = False
    """True if transaction coordinators hear of markers twice."""
    rivals: int = 0
    """Transactional clients that commit offsets for the same partition of a group."""
    source_partitions: int = 1
    """Partitions of the topic of transactional producers, and of the topic of copies."""
    compacted: TopicShape | None = None
    """The compacted topic, if there is one."""
    compaction_transactions: int = 0
    """Transactional producers of the compacted topic."""
    key_map_slots: int = 0
    """Places for keys in the memory of a clean; 0 for as many as there are keys."""
    compaction_deletes: bool = False
    """True if records of the compacted topic are deleted, while its policy allows that."""
    policy_changes: bool = False
    """True if the policy of the compacted topic changes."""
    swap_crashes: bool = False
    """True if machines crash in the middle of swaps."""
    cleaner_backoff_ms: int = 15_000
    is_encrypted: bool = False
    """True if the bucket is encrypted, and its key is rotated."""
    turns_encryption_on: bool = False
    """True if the bucket is plain at the beginning."""
    has_time_reader: bool = False
    """True if a reader looks up times. Brokers keep no chunk of the bucket then."""
    disk_cache_bytes: int = 0
    """Bytes of chunks that each broker keeps on disk. Brokers keep none in memory then."""
    first_byte_seconds: float = 0.0
    """Time until the bucket sends the first byte."""
    rest_consumers: int = 0
    """Number of REST consumers, in a group of their own."""
    rest_reset: str = "latest"
    rest_commits: bool = True
    """True if the REST consumers commit automatically."""
    rest_pause_seconds: float = 0.5
    """Mean time between two reads of a REST consumer."""
    rest_slow: bool = False
    """True if their replies are read late, or get lost."""
    consumers: int = 0
    """Number of members of a consumer group (KIP-848)."""
    committers: int = 0
    """Number of groups without members whose offsets are committed."""
    offsets_partitions: int = 1
    """Partitions of the topic of committed offsets."""
    full_seconds: float = 4.0
    """Longest time for which a disk is full."""
    outage_seconds: float = 8.0
    """Longest time for which the bucket is away."""
    delay_seconds: float = DELAY_SECONDS
    """Longest delay of a bucket call: a call from before the end of all faults must end well before everything must be
    live again."""
    reply_seconds: float = 1.0
    """Longest time until a reply of the bucket counts as lost."""
    batch_records: int = 3
    """Most records in a batch of a sender."""
    codecs: tuple[Codec, ...] = (Codec.NONE, Codec.NONE, Codec.LZ4)
    """Codecs of which each batch of a sender has one."""
    processes: int = 1
    """Processes of each machine, each of them a broker; `brokers` is the number of machines."""
    machine_is_lost: bool = False
    """True if a machine is lost for good once all has healed, with the disks of its processes."""
    internal_flush: str = ""
    """`flush` of the internal topics; empty for that of all topics."""
    transactional_flush: str = "none"
    """`flush` of the topics of transactional producers."""
    window_ms: int = 50
    """Longest time for which records wait for others to share a put."""
    window_bytes: int = MIB
    changes_processes: bool = False
    """True if machines start with one process, or with all again, while load runs."""

    @classmethod
    def for_seed(cls, seed: int, brokers: int = BROKERS, *, compacts: bool = True) -> ClusterOptions:
        """Returns the options of a seed. If it never `compacts`, they are as they were before there was compaction:
        without encryption, look-ups by time and REST consumers too, which came later."""
        rng = random.Random(f"{seed}/cluster-options")
        count = rng.randint(1, 2)
        troubles = tuple(each for each in TROUBLES if rng.random() < 0.35)
        net, bucket = random.Random(f"{seed}/net-options"), random.Random(f"{seed}/bucket-options")
        made = cls(
            seed=seed,
            brokers=brokers,
            topics=tuple(_draw_topic(rng, number, brokers) for number in range(count)),
            segment_bytes=rng.choice((1024, 2048, 4096)),
            local_retention_bytes=rng.choice((1, 4096, -2)),
            retention_bytes=rng.choice((-1, -1, -1, 16384)),
            retention_ms=random.Random(f"{seed}/keeps").choice((-1,) * 6 + (10_000, 20_000)),
            senders=rng.randint(2, 3),
            send_rate=rng.choice((1.0, 2.0, 4.0)),
            in_flight=random.Random(f"{seed}/in-flight").choice((1, 1, 5)),
            readers=1,
            members=rng.choice((0, 0, 0, 2)),
            admin=rng.random() < 0.3,
            admin_deletes=random.Random(f"{seed}/cuts").random() < 0.4,
            moves=random.Random(f"{seed}/moves").random() < 0.25,
            troubles=troubles,
            fetch_bytes=random.Random(f"{seed}/fetches").choice((MIB,) * 5 + (1000,)),
            rot=random.Random(f"{seed}/bit").random() < 0.2,
            troublemakers=rng.randint(1, 2),
            pause_seconds=rng.choice((1.0, 2.0, 4.0)),
            worst_fault=rng.choice((0.0, 0.0, 0.03, 0.1)),
            bucket_rate=bucket.choice((0.0, 0.0, 0.0, 10.0, 30.0)),
            list_keys=bucket.choice((0, 0, 2, 3, 10)),
            latency_seconds=rng.choice((0.001, 0.001, 0.005, 0.05)),
            small_chunk_share=net.choice(SMALL_CHUNK_SHARES),
            skewed=net.random() < 0.3,
            session_ms=rng.choice((1500, 3000)),
            drift_ppm=rng.choice((0, 0, 1000)),
            manifest_fan=rng.choice((2, 4, 32)),
            snapshot_slots=rng.choice((5, 20, 200)),
            chaos_seconds=rng.choice((15.0, 25.0)),
            rebuild=rng.random() < 0.15,
        )
        made = made.with_changes(troubles=(*troubles, *_draw_acts_late(seed)), **_draw_operations(made))
        made = made.with_changes(**_draw_transactions(made))
        if not compacts:
            return made
        drawn = _draw_compaction(made) | _draw_encryption(made) | _draw_time_reader(made) | _draw_disk_cache(made)
        made = made.with_changes(**drawn, **_draw_rare_steps(made), **_draw_rest(made))
        return made.with_changes(**_draw_chains(made))

    def with_changes(self, **changes: Any) -> ClusterOptions:
        """Returns the options with some fields changed."""
        return replace(self, **changes)

    def without_compaction(self) -> ClusterOptions:
        """Returns the options that the seed had before there were compacted topics."""
        return ClusterOptions.for_seed(self.seed, compacts=False)

    @property
    def subscription(self) -> list[str]:
        """Returns the topics that the members of the group read."""
        return [shape.name for shape in self.topics[: self.group_topics]]

    @property
    def transactional_topics(self) -> tuple[TopicShape, ...]:
        """Returns the topics of transactional producers and of their copies."""
        names = (SOURCE_TOPIC, TARGET_TOPIC) if self.transactional_producers else ()
        replicas = min(self.brokers, 3)
        return tuple(
            TopicShape(name, self.source_partitions, replicas, min(replicas, 2), self.transactional_flush, keeps=True)
            for name in names
        )

    @property
    def all_topics(self) -> tuple[TopicShape, ...]:
        """Returns all topics of the run, with those of transactional producers, the compacted one, and the one whose
        offsets are committed."""
        compacted = (self.compacted,) if self.compacted is not None else ()
        return (*self.topics, *self.transactional_topics, *compacted, *self.committed_topics)

    @property
    def committed_topics(self) -> tuple[TopicShape, ...]:
        """Returns the topic of the groups without members, if there are any."""
        replicas, own = min(self.brokers, 3), (("internal.segment.bytes", str(MIB)),)
        shape = TopicShape(COMMITTED_TOPIC, 1, replicas, min(replicas, 2), "none", keeps=True, own=own)
        return (shape,) if self.committers else ()

    def describe(self) -> str:
        """Returns one readable line for each option."""
        return "\n".join(f"  {each.name}={getattr(self, each.name)!r}" for each in fields(self))

    @property
    def has_chains(self) -> bool:
        """True if records may be acknowledged once they are in the bucket."""
        return CHAINS in self.changes or any(each.flush == "bucket" for each in self.all_topics)

    @property
    def topic_configs(self) -> dict[str, str]:
        """Returns the settings that all topics have in common."""
        return {
            "internal.segment.bytes": str(self.segment_bytes),
            "segment.ms": "5000",
            "local.retention.bytes": str(self.local_retention_bytes),
            "retention.bytes": str(self.retention_bytes),
            "retention.ms": str(self.retention_ms),
            "file.delete.delay.ms": "2000",
        }

    def settings(self) -> list[Settings]:
        """Returns the settings of each broker."""
        return [
            replace(
                COMMON_SETTINGS,
                node_id=node_id,
                process=process,
                processes=self.processes,
                kafka=f"b{node_id}:{PORT}",
                advertised_listeners=(f"{LISTENER}://b{node_id}:{PORT}",),
                http=f"b{node_id}:8082",
                replica_fetch_max_bytes=self.fetch_bytes,
                replica_fetch_response_max_bytes=10 * self.fetch_bytes,
                broker_session_timeout_ms=self.session_ms,
                tiered_broker_suspect_timeout_ms=self.session_ms,
                broker_heartbeat_interval_ms=self.session_ms // 3,
                min_insync_replicas=self.min_isr,
                offsets_topic_num_partitions=self.offsets_partitions,
                log_cleaner_backoff_ms=self.cleaner_backoff_ms,
                tiered_internal_topics_flush=self.internal_flush,
                tiered_wal_window_ms=self.window_ms,
                tiered_wal_window_bytes=self.window_bytes,
                tiered_chunk_cache_bytes=(
                    0 if self.has_time_reader or self.disk_cache_bytes else COMMON_SETTINGS.tiered_chunk_cache_bytes
                ),
                tiered_chunk_cache_disk_bytes=self.disk_cache_bytes,
                tiered_cleaner_object_max_bytes=SMALL_OBJECT_BYTES if self.key_map_slots else MIB,
            )
            for process in range(self.processes)
            for node_id in range(1 + PROCESS_STEP * process, 1 + PROCESS_STEP * process + self.brokers + self.joins)
        ]


def _draw_acts_late(seed: int) -> tuple[str, ...]:
    return (ACTS_LATE,) if random.Random(f"{seed}/acts-late").random() < ACTS_LATE_SHARE else ()


def _draw_operations(made: ClusterOptions) -> dict[str, Any]:
    """Draws the operators and groups of a run, each from its own random streams."""
    settings = random.Random(f"{made.seed}/settings")
    brokers, groups = random.Random(f"{made.seed}/brokers"), random.Random(f"{made.seed}/groups")
    changing, by_default = settings.random() < SETTINGS_CHANGE_SHARE, settings.random() < DEFAULT_MIN_ISR_SHARE
    changes = settings.sample(SETTING_KINDS, settings.randint(1, 3))
    changes += ["flush"] * (settings.random() < 0.3) + ["min_isr"] * by_default
    if made.rot:  # a bit rots where a start looks, which goes by what `flush` was all the time
        changes = [each for each in changes if each != "flush"]
    deletes, unclean = settings.random() < DELETES_SHARE, settings.random() < UNCLEAN_SHARE
    topics = tuple(
        replace(
            each,
            tiered=settings.random() >= UNTIERED_SHARE,
            own_min_isr=not by_default,
            unclean=unclean,
            min_isr=min(each.replicas, 2) if by_default else each.min_isr,
        )
        for each in made.topics
    )
    joins = brokers.random() < JOINS_SHARE and made.brokers == BROKERS
    return {
        "topics": topics,
        "members": max(made.members, groups.choice((0, 0, 2, 2, 3))),
        "static": groups.random() < STATIC_SHARE,
        "group_topics": min(len(topics), random.Random(f"{made.seed}/group-topics").choice((1, 2, 2))),
        "joins": joins,
        "leaves": joins and brokers.random() < LEAVES_SHARE,
        "moves_at_once": random.Random(f"{made.seed}/moves-at-once").choice((1, 4)),
        "deletes": deletes,
        "changes": tuple(each for each in SETTING_KINDS if changing and each in changes),
        "min_isr": 2 if by_default else 1,
    }


def _draw_transactions(made: ClusterOptions) -> dict[str, Any]:
    """Draws the transactional clients of a run from a random stream of their own."""
    rng = random.Random(f"{made.seed}/transactions")
    if rng.random() >= TRANSACTIONS_SHARE:
        return {}
    drawn: dict[str, Any] = {
        "transactional_producers": rng.randint(1, 3),
        "copies": rng.random() < COPIES_SHARE,
        "source_partitions": rng.randint(1, 2),
        "keyed_writers": random.Random(f"{made.seed}/keyed-writers").choice((0, 1, 2)),
    }
    if rng.random() < LOSSLESS_SHARE:
        drawn |= {
            "troubles": tuple(each for each in made.troubles if each not in LOSSY_TROUBLES),
            "changes": tuple(each for each in made.changes if each != "unclean"),
            "rot": False,
        }
    return drawn


def _draw_compaction(made: ClusterOptions) -> dict[str, Any]:
    """Draws the compacted topic of a run from a random stream of its own."""
    rng = random.Random(f"{made.seed}/compaction")
    if rng.random() >= COMPACTION_SHARE:
        return {}
    # The other topics and senders are fewer, so that the run takes no longer.
    fewer = {"topics": made.topics[:1], "group_topics": 1, "senders": made.senders - 1}
    return fewer | compaction_options(rng, made.brokers)


def _draw_encryption(made: ClusterOptions) -> dict[str, Any]:
    """Draws the encryption of a run from a random stream of its own."""
    rng = random.Random(f"{made.seed}/encryption")
    is_encrypted = rng.random() < ENCRYPTION_SHARE
    return {"is_encrypted": is_encrypted, "turns_encryption_on": is_encrypted and rng.random() < TURNED_ON_SHARE}


def _draw_time_reader(made: ClusterOptions) -> dict[str, Any]:
    """Draws from a random stream of its own if a reader looks up times."""
    rng = random.Random(f"{made.seed}/time-reader-options")
    if rng.random() >= TIME_READER_SHARE:
        return {}
    return {"has_time_reader": True, "first_byte_seconds": rng.choice(FIRST_BYTE_SECONDS)}


def _draw_disk_cache(made: ClusterOptions) -> dict[str, Any]:
    """Draws from a random stream of its own if brokers keep chunks on disk, and how many."""
    rng = random.Random(f"{made.seed}/disk-cache")
    return {"disk_cache_bytes": rng.choice(DISK_CACHE_BYTES)} if rng.random() < DISK_CACHE_SHARE else {}


def _draw_rare_steps(made: ClusterOptions) -> dict[str, Any]:
    """Draws the clients and operators that bring about steps which are else rare, from a random stream of their own."""
    rng = random.Random(f"{made.seed}/rare-steps")
    is_moved_back, is_deleted, are_repeated = (rng.random() < RARE_STEP_SHARE for _ in range(3))
    rivals = rng.choice(RIVALS)
    return {
        "returns_replicas": made.moves and is_moved_back,
        "deletes_at_joins": made.deletes and is_deleted,
        "repeats_reports": made.transactional_producers > 0 and are_repeated,
        "rivals": rivals if made.transactional_producers else 0,
    }


def _draw_rest(made: ClusterOptions) -> dict[str, Any]:
    """Draws the REST consumers of a run from a random stream of their own."""
    rng = random.Random(f"{made.seed}/rest-options")
    return rest_options(rng) if rng.random() < REST_SHARE else {}


def _draw_chains(made: ClusterOptions) -> dict[str, Any]:
    """Draws from a random stream of its own if records are acknowledged once they are in the bucket."""
    rng = random.Random(f"{made.seed}/chains")
    if rng.random() >= CHAINS_SHARE:
        return {}

    def in_bucket(shape: TopicShape) -> TopicShape:
        return replace(shape, flush="bucket") if rng.random() < 0.8 and shape.tiered else shape

    topics = tuple(map(in_bucket, made.topics))
    changing = rng.random() < CHAIN_CHANGES_SHARE and not made.rot
    return {
        "topics": topics,
        "compacted": in_bucket(made.compacted) if made.compacted is not None else None,
        "internal_flush": rng.choice(("bucket", "bucket", "")),
        "transactional_flush": rng.choice(("bucket", "bucket", "none")),
        "window_ms": rng.choice((5, 50, 250)),
        "window_bytes": rng.choice((64 << 10, MIB)),
        "changes": (*made.changes, *((CHAINS,) if changing else ())),
    }


def rest_options(rng: random.Random) -> dict[str, Any]:
    """Draws the options of a run with REST consumers."""
    return {
        "rest_consumers": rng.choice((1, 2, 2, 3)),
        "rest_reset": rng.choice(("latest", "latest", "earliest")),
        "rest_commits": rng.random() < 0.6,
        "rest_pause_seconds": rng.choice((0.5, 1.0, 2.0)),
        "rest_slow": rng.random() < 0.5,
    }


def compaction_options(rng: random.Random, brokers: int) -> dict[str, Any]:
    """Draws the options of a run with a compacted topic."""
    shape = _draw_topic(rng, 0, brokers)
    tiered = rng.random() >= UNTIERED_COMPACTION_SHARE
    own = {
        "cleanup.policy": rng.choice(("compact", "compact", "compact", "compact,delete", "delete")),
        "internal.segment.bytes": rng.choice(("1024", "1024", "2048")),
        "segment.ms": "3000",
        "min.cleanable.dirty.ratio": rng.choice(("0.01", "0.1", "0.5")),
        "delete.retention.ms": rng.choice(("1000", "5000", "20000")),
        "min.compaction.lag.ms": rng.choice(("0", "0", "0", "2000")),
        "max.compaction.lag.ms": rng.choice(("4000", "9223372036854775807")),
        "retention.ms": rng.choice(("-1", "-1", "10000")),
        "retention.bytes": "-1",
    }
    return {
        "compacted": replace(shape, name=COMPACTED_TOPIC, tiered=tiered, own=tuple(own.items())),
        "compaction_transactions": rng.choice((0, 1, 2)),
        "key_map_slots": rng.choice((0, 0, 0, 6)),
        "policy_changes": rng.random() < 0.5,
        "swap_crashes": rng.random() < 0.5,
        "cleaner_backoff_ms": 1_000,
        "compaction_deletes": rng.random() < 0.4,
    }


def _draw_topic(rng: random.Random, number: int, brokers: int) -> TopicShape:
    replicas = min(brokers, rng.choice((1, 2, 3, 3, 3)))
    min_isr = min(replicas, rng.choice((1, 2, 2)))
    return TopicShape(f"t{number}", rng.randint(1, 2), replicas, min_isr, rng.choice(("none", "none", "ack")))


COMMON_SETTINGS = replace(
    Settings(),
    auto_create_topics_enable=False,
    tiered_internal_configs_enable=True,
    log_retention_check_interval_ms=2_000,
    remote_log_manager_task_interval_ms=2_000,
    log_flush_offset_checkpoint_interval_ms=3_000,
    log_flush_scheduler_interval_ms=5_000,
    tiered_upload_max_lag_ms=5_000,
    tiered_object_delete_delay_ms=2_000,
    tiered_topic_delete_delay_ms=5_000,
    replica_lag_time_max_ms=5_000,
    replica_fetch_wait_max_ms=1_500,
    offsets_topic_num_partitions=1,
    transaction_state_log_num_partitions=2,
    group_initial_rebalance_delay_ms=0,
    group_consumer_session_timeout_ms=6_000,
    group_consumer_heartbeat_interval_ms=1_000,
    group_consumer_min_session_timeout_ms=1_000,
    group_consumer_min_heartbeat_interval_ms=100,
)
"""Settings that all brokers of a run share: loops run often enough to matter within forty seconds, and not more
often."""
