"""The HTTP interface as data: all operations. `/openapi.json` is made from this table."""

from __future__ import annotations

from aiohttp import web

from tiered_api.http.console.pages import FILE_TYPES
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.partitions.records import READ_TYPES
from tiered_api.http.server.openapi import openapi_document
from tiered_api.http.server.router import Query, Route, RouteTable

CLUSTER = "/v3/clusters/{cluster}"
TOPIC = f"{CLUSTER}/topics/{{topic}}"
PARTITION = f"{TOPIC}/partitions/{{partition}}"
GROUP = f"{CLUSTER}/consumer-groups/{{group}}"
JSON = (media_types.JSON,)
V2_ANSWERS = (media_types.V2, media_types.JSON)
V2_BODIES = tuple(media_types.V2_FORMS)
V2_CONSUMER_BODIES = (media_types.V2, media_types.JSON, media_types.V2_JSON, media_types.V2_BINARY)

READ = (
    Query("offset", "string", 'First offset to give, or "earliest" (without it) or "latest"'),
    Query("timestamp", "integer", "Instead of offset: milliseconds; begin at the first record at or after them"),
    Query(
        "before",
        "string",
        'Instead of offset: the last records before this offset, or before the end with "latest", the last one first. '
        "For application/json; the next read is before next_before",
    ),
    Query("max_bytes", "integer", "Bytes of record batches at most; at least one batch is given"),
    Query("timeout", "integer", "Milliseconds to wait for the first record"),
    Query(
        "isolation_level",
        "string",
        "read_committed (without it) or read_uncommitted: without or with records of open and aborted transactions",
    ),
    Query("control_records", "boolean", "true: commits and aborts too, as records with control. Not with a filter"),
    Query(
        "contains",
        "string",
        "Only records with this text in key, value or a header; a to z stand for A to Z too. This and the next three "
        "are for application/json and text/event-stream",
    ),
    Query("key", "string", "Only records with exactly this key"),
    Query("header", "string", "Only records with a header of this name, or NAME:TEXT: with the text in its value"),
    Query("json", "string", 'Only records whose value is JSON that fits: $.status == "failed", $.items[*].price > 10'),
    Query("limit", "integer", "With one of these, or before: records of a JSON reply at most, 1,000 (without it)"),
    Query("topic_id", "string", "The topic id that the reader means: a topic created again under its name is refused"),
    Query(
        "format", "string", "string (without it), json or binary: how application/json and events show key and value"
    ),
)


def _get(path: str, handler: str, response: str = "", query: tuple[Query, ...] = ()) -> Route:
    return Route("GET", path, handler, query=query, response_schema=response)


def _send(method: str, path: str, handler: str, body: str, response: str = "", status: int = 200) -> Route:
    return Route(
        method, path, handler, status=status, request_types=JSON, request_schema=body, response_schema=response
    )


def _v2(method: str, path: str, handler: str, response: str) -> Route:
    if method == "GET":
        return Route(method, path, handler, response_types=V2_ANSWERS, response_schema=response)
    return Route(
        method,
        path,
        handler,
        request_types=V2_BODIES,
        request_schema="ProduceV2",
        response_types=V2_ANSWERS,
        response_schema=response,
    )


OPERATIONS = (
    _get("/healthz", "operations:healthz", "Health"),
    Route("GET", "/metrics", "operations:metrics", response_types=(media_types.TEXT, media_types.OPENMETRICS)),
    _get("/tiered/v1/node", "operations:get_node", "Node"),
    _get("/tiered/v1/topics/{topic}/partitions/{partition}", "operations:get_partition_state", "PartitionState"),
)

RECORDS = (
    Route(
        "GET",
        "/topics/{topic}/partitions/{partition}/records",
        "partitions.records:read_records",
        query=READ,
        response_types=READ_TYPES,
        response_schema="Records",
    ),
    Route(
        "POST",
        "/topics/{topic}/partitions/{partition}/records",
        "partitions.records:write_batches",
        request_types=(media_types.BINARY,),
        response_schema="Appended",
    ),
)

MARKS = (Query("marks", "integer", "Pairs of offset and time for each partition at most: 0 (without it) to 64"),)
SEGMENTS = (
    Query("from", "integer", "Offset: begin with the segment that holds it"),
    Query("limit", "integer", "Segments at most: 200 (without it) to 1,000"),
)

METADATA = (
    Query("to", "integer", "Newest slot of the reply; without it, the end of the log"),
    Query("limit", "integer", "Entries at most: 20 (without it) to 100"),
)

OVERVIEW = (
    _get("/tiered/v1/cluster", "overview.cluster:get_cluster_health", "ClusterHealth"),
    _get(
        "/tiered/v1/costs",
        "overview.costs:get_costs",
        "Costs",
        (Query("days", "integer", "Days until today: 8 (without it) to 31"),),
    ),
    _get("/tiered/v1/metadata/log", "overview.metadata:get_metadata_log", "MetadataLog", METADATA),
    _get("/tiered/v1/metadata/controllers", "overview.metadata:list_controllers", "Controllers"),
    _get(
        "/tiered/v1/traces",
        "request_traces:list_traces",
        "Traces",
        (
            Query("seconds", "integer", "Trace all requests for so long before the reply, 10 at most"),
            Query("limit", "integer", "Requests of the reply at most: 20 (without it) to 500"),
        ),
    ),
    _get("/tiered/v1/topics", "overview.topics:list_topic_summaries", "TopicSummaries"),
    _get("/tiered/v1/topics/{topic}/storage", "overview.storage:get_topic_storage", "TopicStorage", MARKS),
    _get(
        "/tiered/v1/topics/{topic}/partitions/{partition}/segments",
        "overview.segments:get_partition_segments",
        "Segments",
        SEGMENTS,
    ),
    _get("/tiered/v1/topics/{topic}/groups", "overview.groups:get_topic_groups", "TopicGroups"),
    _get("/tiered/v1/topics/{topic}/table", "overview.tables:get_topic_table", "TopicTable"),
    _get("/tiered/v1/tables", "overview.tables:list_tables", "Tables"),
    _get(
        "/tiered/v1/tables/{table}",
        "overview.tables:get_table",
        "Table",
        (Query("versions", "integer", "Newest versions at most: 20 (without it) to 100"),),
    ),
)

FETCH = (
    Query("offset", "integer", "The offset of the fetch (without it, the next record)"),
    Query("isolation_level", "string", "read_committed (without it) or read_uncommitted"),
    Query("user", "string", "The user whose quota holds (without it, the caller)"),
    Query("client_id", "string", "The client id whose quota holds"),
)
PARTITION_OF_KAFKA = "/tiered/v1/topics/{topic}/partitions/{partition}"
EXPLANATIONS = (
    _get("/tiered/v1/topics/{topic}/explain", "explanations.topics:explain_topic", "Explanation"),
    _get(f"{PARTITION_OF_KAFKA}/explain", "explanations.partitions:explain_partition", "Explanation"),
    _get(f"{PARTITION_OF_KAFKA}/segments/{{base}}/explain", "explanations.partitions:explain_segment", "Explanation"),
    _get(f"{PARTITION_OF_KAFKA}/fetch/explain", "explanations.partitions:explain_fetch", "Explanation", FETCH),
    _get("/tiered/v1/groups/{group}/explain", "explanations.groups:explain_group", "Explanation"),
    _get("/tiered/v1/tables/{table}/explain", "explanations.tables:explain_table", "Explanation"),
)

CONSOLE = (
    _get("/tiered/v1/console", "console.about:get_console", "Console"),
    Route("GET", "/console", "console.pages:redirect_to_console", status=303, response_types=(media_types.HTML,)),
    Route("GET", "/console/{page...}", "console.pages:get_console_page", response_types=(media_types.HTML,)),
    Route("GET", "/console/static/{file...}", "console.pages:get_console_file", response_types=FILE_TYPES),
)

TOPIC_ACTS = (
    _send(
        "POST", "/tiered/v1/topics/{topic}/records:delete", "admin.topics:delete_records", "RecordsDeletion", "TopicAct"
    ),
    _send("POST", "/tiered/v1/topics/{topic}/compaction", "admin.topics:compact_topic", "Compaction", "TopicAct"),
    _send("POST", "/tiered/v1/topics/{topic}/elections", "admin.topics:elect_leaders", "Election", "TopicAct"),
    _send(
        "POST",
        "/tiered/v1/topics/{topic}/reassignments",
        "admin.topics:reassign_partitions",
        "Reassignment",
        "TopicAct",
    ),
)

GROUP_OF_KAFKA = "/tiered/v1/groups/{group}"
GROUPS = (
    _get(
        "/tiered/v1/groups",
        "overview.group_lag:list_group_lags",
        "GroupLags",
        (Query("contains", "string", "Only groups with this text in their names"),),
    ),
    _get(GROUP_OF_KAFKA, "overview.group_lag:get_group_lag", "GroupLag"),
    _send("POST", f"{GROUP_OF_KAFKA}/offsets", "admin.groups:reset_group_offsets", "OffsetsReset", "ResetOffsets"),
    Route("DELETE", GROUP_OF_KAFKA, "admin.groups:delete_group", status=204),
)

TRANSACTIONS = (
    _send(
        "POST",
        "/tiered/v1/transactions",
        "transactions.commit:commit_transaction",
        "Transaction",
        "CommittedTransaction",
    ),
    _get("/tiered/v1/transactions", "admin.transactions:list_transactions", "Transactions"),
    _send(
        "POST",
        "/tiered/v1/transactions/{transactional_id}/abort",
        "admin.transactions:abort_transactional_id",
        "Nothing",
        status=204,
    ),
    _get("/tiered/v1/topics/{topic}/transactions", "admin.transactions:list_open_transactions", "OpenTransactions"),
    _send(
        "POST",
        "/tiered/v1/topics/{topic}/partitions/{partition}/transactions:abort",
        "admin.transactions:abort_open_transaction",
        "TransactionAbort",
        status=204,
    ),
)

FORCE = (Query("force", "boolean", "true: do it even if nobody may change ACLs and users any more"),)
ACCESS = (
    _get("/tiered/v1/users", "admin.users:list_users", "Users"),
    _send("PUT", "/tiered/v1/users/{user}", "admin.users:set_user_password", "UserPassword", status=204),
    Route(
        "DELETE",
        "/tiered/v1/users/{user}",
        "admin.users:delete_user",
        status=204,
        query=(Query("mechanism", "string", "Only the password of this mechanism"), *FORCE),
    ),
    _get("/tiered/v1/quotas", "admin.quotas:list_quotas", "Quotas"),
    _send("POST", "/tiered/v1/quotas", "admin.quotas:alter_quotas", "QuotaChange", status=204),
)

V2 = (
    _v2("GET", "/", "v2.topics:root", "Object"),
    _v2("GET", "/brokers", "v2.topics:list_brokers", "Object"),
    _v2("GET", "/topics", "v2.topics:list_topics", "Names"),
    _v2("GET", "/topics/{topic}", "v2.topics:get_topic", "Object"),
    _v2("POST", "/topics/{topic}", "v2.produce:produce_to_topic", "OffsetsV2"),
    _v2("GET", "/topics/{topic}/partitions", "v2.topics:list_partitions", "Array"),
    _v2("GET", "/topics/{topic}/partitions/{partition}", "v2.topics:get_partition", "Object"),
    _v2("POST", "/topics/{topic}/partitions/{partition}", "v2.produce:produce_to_partition", "OffsetsV2"),
    _v2("GET", "/topics/{topic}/partitions/{partition}/offsets", "v2.topics:get_offsets", "Object"),
)

CONSUMER = "/consumers/{group}/instances/{instance}"


def _consumer(method: str, path: str, handler: str, body: str = "", response: str = "", status: int = 204) -> Route:
    # GET .../offsets has a body, as in the REST Proxy.
    return Route(
        method,
        path,
        handler,
        status=status,
        request_types=V2_CONSUMER_BODIES if body else (),
        request_schema=body,
        response_types=V2_ANSWERS,
        response_schema=response,
    )


V2_CONSUMERS = (
    _consumer("POST", "/consumers/{group}", "v2.consumers:create_consumer", "ConsumerV2", "Object", 200),
    _consumer("DELETE", CONSUMER, "v2.consumers:delete_consumer"),
    _consumer("POST", f"{CONSUMER}/subscription", "v2.consumers:subscribe", "SubscriptionV2"),
    _consumer("GET", f"{CONSUMER}/subscription", "v2.consumers:get_subscription", "", "Object", 200),
    _consumer("DELETE", f"{CONSUMER}/subscription", "v2.consumers:unsubscribe"),
    _consumer("POST", f"{CONSUMER}/assignments", "v2.consumers:assign", "PartitionsV2"),
    _consumer("GET", f"{CONSUMER}/assignments", "v2.consumers:get_assignments", "", "Object", 200),
    Route(
        "GET",
        f"{CONSUMER}/records",
        "v2.consumers:read_consumer",
        query=(
            Query("timeout", "integer", "Milliseconds to wait for records, at most what the consumer was made with"),
            Query("max_bytes", "integer", "Bytes of record batches at most; at least one batch is given"),
        ),
        response_types=(media_types.V2_BINARY, media_types.V2_JSON, *media_types.V2_WITH_SCHEMAS),
        response_schema="Array",
    ),
    _consumer("POST", f"{CONSUMER}/offsets", "v2.consumers:commit", "OffsetsToCommitV2", "Array", 200),
    _consumer("GET", f"{CONSUMER}/offsets", "v2.consumers:get_committed", "PartitionsV2", "Object", 200),
    _consumer("POST", f"{CONSUMER}/positions", "v2.consumers:seek", "PositionsV2"),
    _consumer("POST", f"{CONSUMER}/positions/beginning", "v2.consumers:seek_to_beginning", "PartitionsV2"),
    _consumer("POST", f"{CONSUMER}/positions/end", "v2.consumers:seek_to_end", "PartitionsV2"),
)

ACL_FILTER = (
    Query("resource_type", "string", "TOPIC, GROUP, CLUSTER, ... or ANY"),
    Query("resource_name", "string", "The name of the resource"),
    Query("pattern_type", "string", "LITERAL, PREFIXED, MATCH or ANY"),
    Query("principal", "string", "The principal, such as User:alice"),
    Query("host", "string", "The address of the client, or *"),
    Query("operation", "string", "READ, WRITE, ... or ANY"),
    Query("permission", "string", "ALLOW, DENY or ANY"),
)

V3_CLUSTER = (
    _get("/v3/clusters", "v3.clusters:list_clusters", "List"),
    _get(CLUSTER, "v3.clusters:get_cluster", "Object"),
    _get(f"{CLUSTER}/acls", "v3.acls:list_acls", "List", ACL_FILTER),
    Route("POST", f"{CLUSTER}/acls", "v3.acls:create_acl", 201, FORCE, JSON, "Acl", response_schema="Object"),
    Route("DELETE", f"{CLUSTER}/acls", "v3.acls:delete_acls", query=(*ACL_FILTER, *FORCE), response_schema="List"),
    _get(f"{CLUSTER}/brokers", "v3.clusters:list_brokers", "List"),
    _get(f"{CLUSTER}/brokers/{{broker}}", "v3.clusters:get_broker", "Object"),
    _get(f"{CLUSTER}/brokers/{{broker}}/partition-replicas", "v3.clusters:list_broker_replicas", "List"),
)

V3_CONFIGS = (
    _get(f"{TOPIC}/configs", "v3.configs:list_topic_configs", "List"),
    _get(f"{TOPIC}/configs/{{config}}", "v3.configs:get_topic_config", "Config"),
    _send("PUT", f"{TOPIC}/configs/{{config}}", "v3.configs:set_topic_config", "ConfigValue", status=204),
    Route("DELETE", f"{TOPIC}/configs/{{config}}", "v3.configs:reset_topic_config", status=204),
    _send("POST", f"{TOPIC}/configs:alter", "v3.configs:alter_topic_configs", "ConfigChanges", status=204),
    _get(f"{CLUSTER}/topics/-/configs", "v3.configs:list_all_topic_configs", "List"),
    _get(f"{CLUSTER}/brokers/{{broker}}/configs", "v3.configs:list_broker_configs", "List"),
    _get(f"{CLUSTER}/brokers/{{broker}}/configs/{{config}}", "v3.configs:get_broker_config", "Config"),
    _send(
        "PUT",
        f"{CLUSTER}/brokers/{{broker}}/configs/{{config}}",
        "v3.configs:set_broker_config",
        "ConfigValue",
        status=204,
    ),
    Route("DELETE", f"{CLUSTER}/brokers/{{broker}}/configs/{{config}}", "v3.configs:reset_broker_config", status=204),
    _send(
        "POST",
        f"{CLUSTER}/brokers/{{broker}}/configs:alter",
        "v3.configs:alter_broker_configs",
        "ConfigChanges",
        status=204,
    ),
    _get(f"{CLUSTER}/brokers/-/configs", "v3.configs:list_all_broker_configs", "List"),
    _get(f"{CLUSTER}/broker-configs", "v3.configs:list_cluster_configs", "List"),
    _get(f"{CLUSTER}/broker-configs/{{config}}", "v3.configs:get_cluster_config", "Config"),
    _send("PUT", f"{CLUSTER}/broker-configs/{{config}}", "v3.configs:set_cluster_config", "ConfigValue", status=204),
    Route("DELETE", f"{CLUSTER}/broker-configs/{{config}}", "v3.configs:reset_cluster_config", status=204),
    _send("POST", f"{CLUSTER}/broker-configs:alter", "v3.configs:alter_cluster_configs", "ConfigChanges", status=204),
)

V3_TOPICS = (
    _get(f"{CLUSTER}/topics", "v3.topics:list_topics", "List"),
    _send("POST", f"{CLUSTER}/topics", "v3.topics:create_topic", "TopicCreation", "Object", 201),
    _get(TOPIC, "v3.topics:get_topic", "Object"),
    _send("PATCH", TOPIC, "v3.topics:grow_topic", "TopicGrowth", "Object"),
    Route("DELETE", TOPIC, "v3.topics:delete_topic", status=204),
    _get(f"{TOPIC}/partitions", "v3.partitions:list_partitions", "List"),
    _get(PARTITION, "v3.partitions:get_partition", "Object"),
    _get(
        f"{PARTITION}/offset",
        "v3.partitions:get_partition_offset",
        "Object",
        (Query("offset_type", "string", "earliest or latest: only that one"),),
    ),
    _get(f"{CLUSTER}/topics/-/partitions/-/reassignment", "v3.partitions:list_all_reassignments", "List"),
    _get(f"{TOPIC}/partitions/-/reassignment", "v3.partitions:list_reassignments", "List"),
    _get(f"{PARTITION}/reassignment", "v3.partitions:get_reassignment", "Object"),
    _get(f"{PARTITION}/replicas", "v3.partitions:list_replicas", "List"),
    _get(f"{PARTITION}/replicas/{{broker}}", "v3.partitions:get_replica", "Object"),
    _send("POST", f"{TOPIC}/records", "v3.produce:produce_records", "RecordV3", "ReportV3"),
    _send("POST", f"{TOPIC}/records:batch", "v3.produce:produce_batch", "BatchV3", "BatchReportV3", 207),
)

V3_GROUPS = (
    _get(f"{CLUSTER}/consumer-groups", "v3.groups:list_consumer_groups", "List"),
    _get(GROUP, "v3.groups:get_consumer_group", "Object"),
    _get(f"{GROUP}/consumers", "v3.groups:list_consumers", "List"),
    _get(f"{GROUP}/consumers/{{consumer}}", "v3.groups:get_consumer", "Object"),
    _get(f"{GROUP}/consumers/{{consumer}}/assignments", "v3.groups:list_assignments", "List"),
    _get(
        f"{GROUP}/consumers/{{consumer}}/assignments/{{topic}}/partitions/{{partition}}",
        "v3.groups:get_assignment",
        "Object",
    ),
    _get(f"{GROUP}/lags", "v3.groups:list_lags", "List"),
    _get(f"{GROUP}/lags/{{topic}}/partitions/{{partition}}", "v3.groups:get_lag", "Object"),
    _get(f"{GROUP}/lag-summary", "v3.groups:get_lag_summary", "Object"),
)

REGISTRY_FLAGS = {
    "deleted": "true: also what is deleted softly",
    "deletedOnly": "true: only what is deleted softly",
    "permanent": "true: for ever, after a soft deletion",
    "normalize": "true: compare schemas in their normal form",
    "latestOnly": "true: only the latest version of each subject",
    "defaultToGlobal": "true: what is in force for the subject, whoever has set it",
    "force": "true: import although subjects exist",
    "verbose": "true: say why",
    "fetchMaxId": "true: also the highest id",
}
REGISTRY_TEXTS = {
    "subjectPrefix": "Only subjects that begin so; :.CONTEXT: stands for those of a context, :*: for all",
    "subject": "A subject of the context that the id belongs to",
    "format": "serialized: Protobuf as a base64 descriptor",
    "key": "Name of a property of the metadata; may be repeated, each with a value",
    "value": "Value of the property",
}
PAGE = (Query("offset", "integer", "Entries to leave out"), Query("limit", "integer", "Entries at most; -1 for all"))


def _registry(method: str, path: str, handler: str, *query: str, body: str = "", page: bool = False) -> Route:
    flags = tuple(Query(name, "boolean", REGISTRY_FLAGS[name]) for name in query if name in REGISTRY_FLAGS)
    texts = tuple(Query(name, "string", REGISTRY_TEXTS[name]) for name in query if name in REGISTRY_TEXTS)
    return Route(
        method,
        path,
        f"registry.{handler}",
        query=(*flags, *texts, *(PAGE if page else ())),
        request_types=media_types.REGISTRY if body else (),
        request_schema=body,
        response_types=media_types.REGISTRY,
    )


SUBJECT = "/subjects/{subject}"
VERSION = f"{SUBJECT}/versions/{{version}}"
BY_ID = "/schemas/ids/{id}"
CHECK = "/compatibility/subjects/{subject}/versions"
SCHEMA_BODY = "RegisteredSchema"
REGISTRY = (
    _registry("GET", "/subjects", "subjects:list_subjects", "deleted", "deletedOnly", "subjectPrefix", page=True),
    _registry("POST", SUBJECT, "subjects:find_schema_version", "deleted", "normalize", body=SCHEMA_BODY),
    _registry("DELETE", SUBJECT, "subjects:delete_subject", "permanent"),
    _registry("GET", f"{SUBJECT}/versions", "subjects:list_subject_versions", "deleted", "deletedOnly", page=True),
    _registry("POST", f"{SUBJECT}/versions", "subjects:register_schema", "normalize", body=SCHEMA_BODY),
    _registry("GET", f"{SUBJECT}/metadata", "subjects:find_by_metadata", "deleted", "format", "key", "value"),
    _registry("GET", VERSION, "subjects:get_subject_version", "deleted", "format"),
    _registry("DELETE", VERSION, "subjects:delete_version", "permanent"),
    _registry("GET", f"{VERSION}/schema", "subjects:get_version_text", "deleted", "format"),
    _registry("GET", f"{VERSION}/referencedby", "subjects:list_referrers", page=True),
    _registry("GET", "/schemas", "schemas:list_schemas", "deleted", "latestOnly", "subjectPrefix", page=True),
    _registry("GET", "/schemas/types", "schemas:list_schema_types"),
    _registry("GET", BY_ID, "schemas:get_schema", "subject", "format", "fetchMaxId"),
    _registry("GET", "/schemas/guids/{guid}", "schemas:get_schema_by_guid", "format"),
    _registry("GET", f"{BY_ID}/schema", "schemas:get_schema_text", "subject", "format"),
    _registry("GET", f"{BY_ID}/subjects", "schemas:list_schema_subjects", "subject", "deleted", page=True),
    _registry("GET", f"{BY_ID}/versions", "schemas:list_schema_versions", "subject", "deleted", page=True),
    _registry("GET", "/contexts", "schemas:list_contexts", page=True),
    _registry("GET", "/config", "rules:get_global_level"),
    _registry("PUT", "/config", "rules:set_global_level", body="RegistryLevel"),
    _registry("DELETE", "/config", "rules:reset_global_level"),
    _registry("GET", "/config/{subject}", "rules:get_subject_level", "defaultToGlobal"),
    _registry("PUT", "/config/{subject}", "rules:set_subject_level", body="RegistryLevel"),
    _registry("DELETE", "/config/{subject}", "rules:reset_subject_level"),
    _registry("GET", "/mode", "rules:get_global_mode"),
    _registry("PUT", "/mode", "rules:set_global_mode", "force", body="RegistryMode"),
    _registry("DELETE", "/mode", "rules:reset_global_mode"),
    _registry("GET", "/mode/{subject}", "rules:get_subject_mode", "defaultToGlobal"),
    _registry("PUT", "/mode/{subject}", "rules:set_subject_mode", "force", body="RegistryMode"),
    _registry("DELETE", "/mode/{subject}", "rules:reset_subject_mode"),
    _registry("POST", CHECK, "compatibility:check_with_versions", "normalize", "verbose", body=SCHEMA_BODY),
    _registry(
        "POST", f"{CHECK}/{{version}}", "compatibility:check_with_version", "normalize", "verbose", body=SCHEMA_BODY
    ),
)

CATALOGUE = "/iceberg/v1"
ICEBERG_PAGE = (
    Query("pageToken", "string", "Ignored: there is one page"),
    Query("pageSize", "integer", "Ignored: there is one page"),
)
ICEBERG = (
    _get(
        f"{CATALOGUE}/config",
        "iceberg.catalogue:get_catalog_config",
        query=(Query("warehouse", "string", "Ignored: there is one warehouse"),),
    ),
    _get(
        f"{CATALOGUE}/namespaces",
        "iceberg.catalogue:list_namespaces",
        query=(Query("parent", "string", "A namespace, which has none below it"), *ICEBERG_PAGE),
    ),
    _get(f"{CATALOGUE}/namespaces/{{namespace}}", "iceberg.catalogue:get_namespace"),
    _get(f"{CATALOGUE}/namespaces/{{namespace}}/tables", "iceberg.catalogue:list_iceberg_tables", query=ICEBERG_PAGE),
    _get(
        f"{CATALOGUE}/namespaces/{{namespace}}/tables/{{table}}",
        "iceberg.catalogue:load_iceberg_table",
        query=(Query("snapshots", "string", "Ignored: all snapshots that the metadata name are given"),),
    ),
)

ROUTES = (
    *OPERATIONS,
    *OVERVIEW,
    *EXPLANATIONS,
    *CONSOLE,
    *RECORDS,
    *TOPIC_ACTS,
    *GROUPS,
    *TRANSACTIONS,
    *ACCESS,
    *V2,
    *V2_CONSUMERS,
    *V3_CLUSTER,
    *V3_TOPICS,
    *V3_CONFIGS,
    *V3_GROUPS,
    *REGISTRY,
    *ICEBERG,
)


async def openapi(request: HttpRequest) -> web.StreamResponse:
    """Returns this OpenAPI document."""
    return json_response(openapi_document(table().routes))


def table() -> RouteTable:
    """Returns the table of all routes."""
    return _TABLE


_TABLE = RouteTable((*ROUTES, _get("/openapi.json", "server.routes:openapi", "Object")))
