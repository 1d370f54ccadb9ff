"""Schemas of replies on the state of the cluster, its topics, its groups and its tables."""

from __future__ import annotations

from tiered_api.http.exchange.schemas import BOOLEAN, INTEGER, STRING, TEXT_OR_NULL, Schema, array, object_schema

POSITIONS = (
    "leader_epoch",
    "log_start_offset",
    "local_start_offset",
    "cold_end_offset",
    "last_stable_offset",
    "high_watermark",
    "local_bytes",
    "cold_bytes",
    "local_segments",
    "cold_segments",
)

INTEGER_OR_NULL: Schema = {**INTEGER, "nullable": True}
NUMBER_OR_NULL: Schema = {"type": "number", "nullable": True}

WAREHOUSE: dict[str, Schema] = {
    "is_set": BOOLEAN,
    "warehouse": TEXT_OR_NULL,
    "problem": TEXT_OR_NULL,
    "read_ms": INTEGER_OR_NULL,
}
TABLE: dict[str, Schema] = {
    "table": STRING,
    "kind": STRING,
    "topic": TEXT_OR_NULL,
    "topic_id": TEXT_OR_NULL,
    "is_topic_there": BOOLEAN,
    **dict.fromkeys(
        ("version", "rows", "files", "bytes", "committed_ms", "loaded_ms", "newest_ms", "lag", "dead_letters"),
        INTEGER_OR_NULL,
    ),
    "verified": {"type": "object", "nullable": True},
    "problem": TEXT_OR_NULL,
}

OVERVIEW: dict[str, Schema] = {
    "ClusterHealth": object_schema(
        "healthy reasons brokers partitions",
        healthy=BOOLEAN,
        reasons=array(STRING),
        partial=BOOLEAN,
        hidden=array(STRING),
        controller=INTEGER,
        brokers=array({"type": "object"}),
        partitions=array({"type": "object"}),
        broker_problems=array(STRING),
        machines_down=array(INTEGER),
        topics=INTEGER,
        partition_count=INTEGER,
        partitions_left_out=INTEGER,
    ),
    "TopicSummaries": object_schema(
        "topics",
        topics=array(
            object_schema(
                "name",
                name=STRING,
                topic_id=STRING,
                is_internal=BOOLEAN,
                partitions=INTEGER,
                replication_factor=INTEGER,
                leaderless=INTEGER,
                under_replicated=INTEGER,
            )
        ),
    ),
    "TopicStorage": object_schema(
        "topic partitions",
        topic=STRING,
        topic_id=STRING,
        is_internal=BOOLEAN,
        cleanup_policy=array(STRING),
        partitions=array(
            object_schema(
                "partition leader",
                partition=INTEGER,
                leader=INTEGER,
                replicas=array(INTEGER),
                isr=array(INTEGER),
                error=STRING,
                time_marks=array(array(INTEGER)),
                cleaned_to_offset={**INTEGER, "nullable": True},
                **{name: {**INTEGER, "nullable": True} for name in POSITIONS[:-2]},
            )
        ),
    ),
    "Costs": object_schema(
        "brokers days",
        prices={"type": "object", "nullable": True},
        problem=TEXT_OR_NULL,
        brokers=array(object_schema("node_id", node_id=INTEGER, since_ms=INTEGER_OR_NULL, problem=TEXT_OR_NULL)),
        days=array(
            object_schema(
                "day classes stored_gib_hours",
                day=STRING,
                classes={"type": "object"},
                stored_gib_hours={"type": "number"},
                stored_cost=NUMBER_OR_NULL,
                cost=NUMBER_OR_NULL,
            )
        ),
    ),
    "MetadataLog": object_schema(
        "slot entries next_to",
        slot=INTEGER,
        controller=INTEGER,
        controller_epoch=INTEGER,
        entries=array(
            object_schema(
                "slot controller_epoch changes changes_left_out",
                slot=INTEGER,
                controller_epoch=INTEGER,
                written_ms={**INTEGER, "nullable": True},
                bytes={**INTEGER, "nullable": True},
                changes=array({"type": "object"}),
                changes_left_out=INTEGER,
            )
        ),
        next_to={**INTEGER, "nullable": True},
    ),
    "Controllers": object_schema(
        "controllers since_slot",
        controllers=array(
            object_schema(
                "node_id controller_epoch slot",
                node_id=INTEGER,
                controller_epoch=INTEGER,
                slot=INTEGER,
                from_ms={**INTEGER, "nullable": True},
                to_ms={**INTEGER, "nullable": True},
            )
        ),
        since_slot=INTEGER,
    ),
    "Traces": object_schema(
        "node_id is_on min_ms requests",
        node_id=INTEGER,
        is_on=BOOLEAN,
        min_ms=INTEGER,
        requests=array(
            object_schema(
                "trace_id api at_ms ms phases",
                trace_id=STRING,
                api=STRING,
                version=INTEGER,
                at_ms=INTEGER,
                ms={"type": "number"},
                idle_ms={"type": "number"},
                bytes=INTEGER,
                client_id=STRING,
                principal=STRING,
                peer=STRING,
                phases=array(
                    object_schema("phase after_ms ms", phase=STRING, after_ms={"type": "number"}, ms={"type": "number"})
                ),
                phases_left_out=INTEGER,
            )
        ),
    ),
    "Segments": object_schema(
        "topic partition leader brokers segments next_from",
        topic=STRING,
        topic_id=STRING,
        partition=INTEGER,
        leader=INTEGER,
        brokers=array(
            object_schema(
                "node_id",
                node_id=INTEGER,
                local_start_offset=INTEGER,
                log_end_offset=INTEGER,
                local_bytes=INTEGER,
                error=STRING,
            )
        ),
        segments=array(
            object_schema(
                "base_offset end_offset bytes on_brokers cleaned",
                base_offset=INTEGER,
                end_offset=INTEGER,
                bytes=INTEGER,
                newest_timestamp={**INTEGER, "nullable": True},
                created_ms={**INTEGER, "nullable": True},
                on_brokers=array(INTEGER),
                why_local=TEXT_OR_NULL,
                why_code=TEXT_OR_NULL,
                object={"type": "object", "nullable": True},
                cleaned=BOOLEAN,
            )
        ),
        next_from={**INTEGER, "nullable": True},
        error=TEXT_OR_NULL,
    ),
    "Explanation": object_schema(
        "facts sentences",
        topic=STRING,
        topic_id=STRING,
        partition=INTEGER,
        base_offset=INTEGER,
        offset=INTEGER,
        group=STRING,
        table=STRING,
        facts=array(
            object_schema(
                "code trouble values mend", code=STRING, trouble=BOOLEAN, values={"type": "object"}, mend=TEXT_OR_NULL
            )
        ),
        sentences=array(STRING),
    ),
    "TopicTable": object_schema(
        "topic is_set table offsets",
        topic=STRING,
        topic_id=STRING,
        table=TEXT_OR_NULL,
        offsets={"type": "object"},
        **WAREHOUSE,
    ),
    "Tables": object_schema(
        "is_set tables partial", partial=BOOLEAN, tables=array(object_schema("table kind", **TABLE)), **WAREHOUSE
    ),
    "Table": object_schema(
        "table kind partitions",
        partitions=array(
            object_schema(
                "partition next_offset",
                partition=INTEGER,
                next_offset=INTEGER,
                log_end_offset=INTEGER_OR_NULL,
                lag=INTEGER_OR_NULL,
            )
        ),
        columns={**array({"type": "object"}), "nullable": True},
        versions={**array({"type": "object"}), "nullable": True},
        reasons={**array({"type": "object"}), "nullable": True},
        reasons_of=INTEGER_OR_NULL,
        reasons_problem=TEXT_OR_NULL,
        **WAREHOUSE | TABLE,
    ),
    "TopicGroups": object_schema(
        "topic groups",
        topic=STRING,
        groups=array(
            object_schema("group lag offsets", group=STRING, state=STRING, lag=INTEGER, offsets={"type": "object"})
        ),
        groups_left_out=INTEGER,
    ),
    "GroupLags": object_schema(
        "groups groups_left_out",
        groups=array(
            object_schema(
                "group state lag seconds",
                group=STRING,
                state=STRING,
                coordinator=INTEGER,
                topics=array(STRING),
                lag=INTEGER_OR_NULL,
                oldest_unread_ms=INTEGER_OR_NULL,
                seconds=NUMBER_OR_NULL,
            )
        ),
        groups_left_out=INTEGER,
    ),
    "GroupLag": object_schema(
        "group state lag seconds members partitions",
        group=STRING,
        state=STRING,
        lag=INTEGER,
        oldest_unread_ms=INTEGER_OR_NULL,
        seconds=NUMBER_OR_NULL,
        times_missing=INTEGER,
        members=array({"type": "object"}),
        partitions=array({"type": "object"}),
    ),
}
