"""The JSON bodies of requests as OpenAPI schemas: the one list of their fields.

`/openapi.json` shows the schemas. Parsers take the names of allowed fields from them (`names`), so that the document
and the rule of `fields` cannot differ. Values that a client chooses have no schema.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer", "format": "int64"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
TEXT_OR_NULL: Schema = {"type": "string", "nullable": True}
ANY: Schema = {}


def object_schema(required: str = "", /, **properties: Schema) -> Schema:
    """Returns the schema of an object of a response. Clients must accept fields that a later version adds."""
    shape: Schema = {"type": "object", "properties": properties}
    return shape | {"required": required.split()} if required else shape


def body_schema(required: str = "", /, **properties: Schema) -> Schema:
    """Returns the schema of an object of a request, which has no other fields."""
    return object_schema(required, **properties) | {"additionalProperties": False}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def names(schema: Schema) -> KeysView[str]:
    """Returns the fields of an object, in the order that messages show."""
    properties: Schema = schema["properties"]
    return properties.keys()


def _or_null(schema: Schema) -> Schema:
    return {**schema, "nullable": True}


def _one_of(*schemas: Schema) -> Schema:
    return {"oneOf": list(schemas)}


# -- records ----------------------------------------------------------------------------------------------------------

_TYPES = ["BINARY", "JSON", "STRING"]
_PLAIN_FIELD = _or_null(body_schema("data", type=_or_null({"type": "string", "enum": _TYPES}), data=ANY))
FIELD_V3 = _or_null(
    body_schema(
        "data",
        type=_or_null({"type": "string", "enum": [*_TYPES, "AVRO", "JSONSCHEMA", "PROTOBUF"]}),
        data=ANY,
        schema_id=_or_null(INTEGER),
        schema_version={**_one_of(TEXT_OR_NULL, INTEGER), "description": "Of the subject; without it the latest one"},
        schema={**TEXT_OR_NULL, "description": "The text of a schema, which is registered if it is new"},
        subject={**TEXT_OR_NULL, "description": "TOPIC-key or TOPIC-value without it"},
        subject_name_strategy=_or_null({"type": "string", "enum": ["TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME"]}),
    )
)
HEADER_V3 = body_schema("name", name=STRING, value={"type": "string", "format": "byte", "nullable": True})
_RECORD_V3: Schema = {
    "partition_id": _or_null(INTEGER),
    "key": FIELD_V3,
    "value": FIELD_V3,
    "headers": _or_null(array(HEADER_V3)),
    "timestamp": {
        **_one_of({**TEXT_OR_NULL, "format": "date-time"}, INTEGER),
        "description": "ISO 8601 with offset, or milliseconds since 1970",
    },
}
RECORD_V3 = body_schema("", **_RECORD_V3)
ENTRY_V3 = body_schema("id", id=STRING, **_RECORD_V3)
BATCH_V3 = body_schema("entries", entries=array(ENTRY_V3))
RECORD_V2 = body_schema("", key=ANY, value=ANY, partition=_or_null(INTEGER))
_SCHEMA_TEXT: Schema = {**TEXT_OR_NULL, "description": "In a format with a schema: its text, registered if it is new"}
_SCHEMA_ID: Schema = {**_one_of(TEXT_OR_NULL, INTEGER), "description": "In a format with a schema: its id"}
PRODUCE_V2 = body_schema(
    "records",
    records=array(RECORD_V2),
    key_schema=_SCHEMA_TEXT,
    key_schema_id=_SCHEMA_ID,
    value_schema=_SCHEMA_TEXT,
    value_schema_id=_SCHEMA_ID,
)

# -- transactions -----------------------------------------------------------------------------------------------------

TRANSACTION_RECORD = body_schema(
    "topic_name", topic_name=STRING, **{**_RECORD_V3, "key": _PLAIN_FIELD, "value": _PLAIN_FIELD}
)
TRANSACTION_OFFSET = body_schema(
    "topic_name partition_id offset", topic_name=STRING, partition_id=INTEGER, offset=INTEGER, metadata=STRING
)
TRANSACTION_GROUP = body_schema(
    "consumer_group_id offsets",
    consumer_group_id=STRING,
    generation_id=INTEGER,
    member_id=STRING,
    instance_id=TEXT_OR_NULL,
    offsets=array(TRANSACTION_OFFSET),
)
TRANSACTION = body_schema("", records=array(TRANSACTION_RECORD), consumer_group=_or_null(TRANSACTION_GROUP))

# -- users, quotas, ACLs, hanging transactions -------------------------------------------------------------------------

NOTHING = body_schema("")
TRANSACTION_ABORT = body_schema("start_offset", start_offset=INTEGER, force=BOOLEAN)
USER_PASSWORD = body_schema(
    "mechanism password",
    mechanism={"type": "string", "enum": ["SCRAM-SHA-256", "SCRAM-SHA-512"]},
    password={"type": "string", "format": "password"},
    iterations=INTEGER,
)
QUOTA_OWNER = body_schema("", user=TEXT_OR_NULL, client_id=TEXT_OR_NULL, ip=TEXT_OR_NULL)
QUOTA_CHANGE = body_schema(
    "owner",
    owner={**QUOTA_OWNER, "description": "null stands for all that have no quota of their own"},
    set={"type": "object", "additionalProperties": NUMBER},
    remove=array(STRING),
    validate_only=BOOLEAN,
)
ACL = body_schema(
    "resource_type resource_name pattern_type principal host operation permission",
    resource_type={
        "type": "string",
        "enum": ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"],
    },
    resource_name=STRING,
    pattern_type={"type": "string", "enum": ["LITERAL", "PREFIXED"]},
    principal=STRING,
    host=STRING,
    operation=STRING,
    permission={"type": "string", "enum": ["ALLOW", "DENY"]},
)

# -- acts on topics ---------------------------------------------------------------------------------------------------

PARTITION_OFFSET = body_schema("partition offset", partition=INTEGER, offset=INTEGER)
RECORDS_DELETION = body_schema(
    "",
    offsets={**array(PARTITION_OFFSET), "description": "For each partition, its new first offset"},
    before_timestamp={**INTEGER, "description": "Instead of offsets: milliseconds since 1970, for all partitions"},
    validate_only=BOOLEAN,
)
COMPACTION = body_schema("", validate_only=BOOLEAN)
ELECTION = body_schema(
    "election_type",
    election_type={"type": "string", "enum": ["PREFERRED", "UNCLEAN"]},
    partitions={**array(INTEGER), "description": "Without it, all partitions"},
    validate_only=BOOLEAN,
)
PARTITION_REPLICAS = body_schema(
    "partition replicas",
    partition=INTEGER,
    replicas={**_or_null(array(INTEGER)), "description": "Broker ids, the preferred leader first; null cancels a move"},
)
REASSIGNMENT = body_schema("partitions", partitions=array(PARTITION_REPLICAS), validate_only=BOOLEAN)

# -- groups -----------------------------------------------------------------------------------------------------------

RESET_OFFSET = body_schema("topic partition offset", topic=STRING, partition=INTEGER, offset=INTEGER)
OFFSETS_RESET = body_schema(
    "",
    to={"type": "string", "enum": ["earliest", "latest", "timestamp"]},
    timestamp={**INTEGER, "description": "Milliseconds since 1970, with to=timestamp"},
    topics={**array(STRING), "description": "Without it, all topics of the group"},
    offsets={**array(RESET_OFFSET), "description": "Instead of to: exactly these offsets"},
    validate_only=BOOLEAN,
)

# -- consumers of v2 --------------------------------------------------------------------------------------------------

_TEXT_OR_INTEGER = _one_of(STRING, INTEGER)
CONSUMER_V2 = body_schema(
    "",
    **{
        "name": TEXT_OR_NULL,
        "format": {"type": "string", "enum": ["binary", "json", "avro", "jsonschema", "protobuf"]},
        "auto.offset.reset": {"type": "string", "enum": ["earliest", "latest", "none"]},
        "auto.commit.enable": _one_of({"type": "string", "enum": ["true", "false"]}, BOOLEAN),
        "isolation.level": {"type": "string", "enum": ["read_committed", "read_uncommitted"]},
        "fetch.min.bytes": _TEXT_OR_INTEGER,
        "consumer.request.timeout.ms": _TEXT_OR_INTEGER,
        "id": {**TEXT_OR_NULL, "description": "Another name of name"},
        "responseMinBytes": {**_TEXT_OR_INTEGER, "description": "Another name of fetch.min.bytes"},
        "requestWaitMs": {**_TEXT_OR_INTEGER, "description": "Another name of consumer.request.timeout.ms"},
        "isolation_level": {**STRING, "description": "Another name of isolation.level"},
    },
)
SUBSCRIPTION_V2 = body_schema("", topics=_or_null(array(STRING)), topic_pattern=TEXT_OR_NULL)
_AT_V2 = {"topic": STRING, "partition": INTEGER}
PARTITION_V2 = body_schema("topic partition", **_AT_V2)
OFFSET_V2 = body_schema("topic partition offset", **_AT_V2, offset=INTEGER, metadata=TEXT_OR_NULL)
TIMESTAMP_V2 = body_schema("topic partition timestamp", **_AT_V2, timestamp={"type": "string", "format": "date-time"})
PARTITIONS_V2 = body_schema("partitions", partitions=array(PARTITION_V2))
COMMIT_V2 = body_schema("", offsets=array(OFFSET_V2))
POSITIONS_V2 = body_schema("", offsets=array(OFFSET_V2), timestamps=array(TIMESTAMP_V2))

# -- topics and settings of v3 ----------------------------------------------------------------------------------------

_CONFIG_TEXT = _one_of(TEXT_OR_NULL, NUMBER, BOOLEAN)
CONFIG = body_schema("name", name=STRING, value=_CONFIG_TEXT)
TOPIC_CREATION = body_schema(
    "topic_name",
    topic_name=STRING,
    partitions_count=_or_null(INTEGER),
    replication_factor=_or_null(INTEGER),
    replicas_assignments={"type": "object", "additionalProperties": array(INTEGER), "nullable": True},
    configs=_or_null(array(CONFIG)),
    validate_only=BOOLEAN,
)
TOPIC_GROWTH = body_schema("partitions_count", partitions_count=INTEGER, validate_only=BOOLEAN)
CONFIG_VALUE = body_schema("value", value=_one_of(STRING, NUMBER, BOOLEAN))
CONFIG_CHANGE = body_schema(
    "name",
    name=STRING,
    value={**_CONFIG_TEXT, "description": "Required, unless operation is DELETE"},
    operation=_or_null({"type": "string", "enum": ["SET", "DELETE"]}),
)
CONFIG_CHANGES = body_schema("data", data=array(CONFIG_CHANGE), validate_only=BOOLEAN)

# -- schema registry --------------------------------------------------------------------------------------------------

_KEPT: Schema = {"type": "object", "nullable": True, "additionalProperties": True}
SCHEMA_REFERENCE = body_schema("name subject version", name=STRING, subject=STRING, version=INTEGER)
REGISTERED_SCHEMA = body_schema(
    "schema",
    schema=STRING,
    schemaType=_or_null({"type": "string", "enum": ["AVRO", "JSON", "PROTOBUF"]}),
    references=_or_null(array(SCHEMA_REFERENCE)),
    id={**_or_null(INTEGER), "description": "In mode IMPORT: the id of the schema"},
    version={**_or_null(INTEGER), "description": "In mode IMPORT: its version"},
    metadata={**_KEPT, "description": "Kept, without effect"},
    ruleSet={**_KEPT, "description": "Kept, without effect"},
)
REGISTRY_LEVEL = body_schema("compatibility", compatibility=STRING, normalize=_or_null(BOOLEAN))
REGISTRY_MODE = body_schema("mode", mode={"type": "string", "enum": ["READWRITE", "READONLY", "IMPORT"]})

BODIES: dict[str, Schema] = {
    "Acl": ACL,
    "BatchV3": BATCH_V3,
    "Compaction": COMPACTION,
    "ConfigChanges": CONFIG_CHANGES,
    "ConfigValue": CONFIG_VALUE,
    "ConsumerV2": CONSUMER_V2,
    "OffsetsToCommitV2": COMMIT_V2,
    "Election": ELECTION,
    "Nothing": NOTHING,
    "OffsetsReset": OFFSETS_RESET,
    "PartitionsV2": PARTITIONS_V2,
    "PositionsV2": POSITIONS_V2,
    "ProduceV2": PRODUCE_V2,
    "Reassignment": REASSIGNMENT,
    "QuotaChange": QUOTA_CHANGE,
    "RecordV3": RECORD_V3,
    "RecordsDeletion": RECORDS_DELETION,
    "RegisteredSchema": REGISTERED_SCHEMA,
    "RegistryLevel": REGISTRY_LEVEL,
    "RegistryMode": REGISTRY_MODE,
    "SubscriptionV2": SUBSCRIPTION_V2,
    "TopicCreation": TOPIC_CREATION,
    "TopicGrowth": TOPIC_GROWTH,
    "Transaction": TRANSACTION,
    "TransactionAbort": TRANSACTION_ABORT,
    "UserPassword": USER_PASSWORD,
}
"""The bodies by their names in `/openapi.json`."""
