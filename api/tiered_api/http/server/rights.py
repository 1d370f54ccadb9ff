"""The table of rights over HTTP: the operations that each route needs, on the resources that its path names.

Keeps I29. The rights are those of the Kafka protocol. A refusal comes before any look-up: a resource that exists and
one that does not look the same to a caller without rights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tiered.access.authorization import Authorization
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered.security.principal import Caller
from tiered_api.http.exchange.errors import NOT_AUTHORIZED, HttpError
from tiered_api.http.transactions.commit import TRANSACTIONAL_ID


class RouteNeed(NamedTuple):
    """An operation on the resource that an argument of the path names; without one, on the cluster."""

    operation: Operation
    kind: ResourceType
    argument: str = ""


class RouteRule(NamedTuple):
    """The rights that a route needs. The note says what the route checks besides, by the names in a body."""

    needs: tuple[RouteNeed, ...] = ()
    note: str = ""


def _topic(*operations: Operation) -> RouteRule:
    return RouteRule(tuple(RouteNeed(each, ResourceType.TOPIC, "topic") for each in operations))


def _group(*operations: Operation) -> RouteRule:
    return RouteRule(tuple(RouteNeed(each, ResourceType.GROUP, "group") for each in operations))


def _cluster(*operations: Operation) -> RouteRule:
    return RouteRule(tuple(RouteNeed(each, ResourceType.CLUSTER) for each in operations))


_NOTHING = RouteRule()
_FILTERED = RouteRule(note="what the caller may not describe is left out")
_DESCRIBE_TOPIC, _WRITE_TOPIC = _topic(Operation.DESCRIBE), _topic(Operation.WRITE)
_DESCRIBE_GROUP = _group(Operation.DESCRIBE)
_CONSUMER = _group(Operation.READ)
_READ_TOPICS = _CONSUMER._replace(note="READ on each TOPIC too")
_LAGS = _DESCRIBE_GROUP._replace(note="topics without DESCRIBE are left out")
_DESCRIBE_CLUSTER = _cluster(Operation.DESCRIBE)
_SEE_CONFIGS, _SET_CONFIGS = _topic(Operation.DESCRIBE_CONFIGS), _topic(Operation.ALTER_CONFIGS)
_SEE_CLUSTER_CONFIGS, _SET_CLUSTER_CONFIGS = _cluster(Operation.DESCRIBE_CONFIGS), _cluster(Operation.ALTER_CONFIGS)


def _subject(operation: str) -> RouteRule:
    return RouteRule(note=f"{operation} on the TOPIC of the subject, or on TOPIC _schemas")


_SEE_SUBJECT = _subject("DESCRIBE")
_SUBJECTS = RouteRule(note="subjects without DESCRIBE on their TOPIC are left out, but for DESCRIBE on TOPIC _schemas")
_SEE_ID = RouteRule(note="DESCRIBE on the TOPIC of a subject with the schema, or on TOPIC _schemas")
_SEE_REGISTRY = RouteRule(note="DESCRIBE_CONFIGS on TOPIC _schemas")
_SET_REGISTRY = RouteRule(note="ALTER_CONFIGS on TOPIC _schemas")

ROUTE_RULES: dict[str, RouteRule] = {
    "healthz": RouteRule(note="its problems and details need DESCRIBE on CLUSTER"),
    "metrics": _DESCRIBE_CLUSTER,
    "get_node": _NOTHING,
    "openapi": _NOTHING,
    "redirect_to_console": _NOTHING,
    "get_console": _NOTHING._replace(note="the topic of the audit log needs DESCRIBE on it"),
    "get_console_page": _NOTHING,
    "get_console_file": _NOTHING,
    "get_cluster_health": _FILTERED._replace(
        note="topics without DESCRIBE are left out; problems need DESCRIBE on CLUSTER"
    ),
    "list_topic_summaries": _FILTERED,
    "get_topic_storage": _DESCRIBE_TOPIC,
    "get_costs": _DESCRIBE_CLUSTER,
    "get_metadata_log": _DESCRIBE_CLUSTER,
    "list_controllers": _DESCRIBE_CLUSTER,
    "list_traces": _DESCRIBE_CLUSTER,
    "get_partition_segments": _DESCRIBE_TOPIC,
    "get_topic_table": _DESCRIBE_TOPIC,
    "list_tables": RouteRule(note="tables of topics without READ are left out, but for DESCRIBE on CLUSTER"),
    "get_catalog_config": _NOTHING,
    "list_namespaces": _NOTHING,
    "get_namespace": _NOTHING,
    "list_iceberg_tables": RouteRule(note="tables of topics without READ are left out, but for DESCRIBE on CLUSTER"),
    "load_iceberg_table": RouteRule(note="READ on the TOPIC of the table, or DESCRIBE on CLUSTER"),
    "get_table": RouteRule(note="READ on the TOPIC of the table, or DESCRIBE on CLUSTER"),
    "get_topic_groups": _DESCRIBE_TOPIC._replace(note="groups without DESCRIBE are left out"),
    "explain_topic": _DESCRIBE_TOPIC,
    "explain_partition": _DESCRIBE_TOPIC,
    "explain_segment": _DESCRIBE_TOPIC,
    "explain_fetch": _DESCRIBE_TOPIC._replace(note="DESCRIBE_CONFIGS on CLUSTER for the quota of another user"),
    "explain_group": _LAGS,
    "explain_table": RouteRule(note="READ on the TOPIC of the table, or DESCRIBE on CLUSTER"),
    "delete_records": _topic(Operation.DELETE),
    "compact_topic": _topic(Operation.ALTER),
    "elect_leaders": _cluster(Operation.ALTER),
    "reassign_partitions": _cluster(Operation.ALTER),
    "list_transactions": RouteRule(note="ids without DESCRIBE are left out, and topics without it"),
    "abort_transactional_id": RouteRule(
        (RouteNeed(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id"),)
    ),
    "list_open_transactions": _topic(Operation.READ),
    "abort_open_transaction": _topic(Operation.READ)._replace(note="ALTER or CLUSTER_ACTION on CLUSTER too"),
    "list_users": _DESCRIBE_CLUSTER,
    "set_user_password": _cluster(Operation.ALTER),
    "delete_user": _cluster(Operation.ALTER)._replace(note="DESCRIBE on CLUSTER too"),
    "list_quotas": _SEE_CLUSTER_CONFIGS,
    "alter_quotas": _SET_CLUSTER_CONFIGS,
    "list_group_lags": RouteRule(note="groups without DESCRIBE are left out, but for DESCRIBE on CLUSTER; and topics"),
    "get_group_lag": _LAGS,
    "reset_group_offsets": _group(Operation.READ)._replace(note="READ on each TOPIC too"),
    "delete_group": _group(Operation.DELETE),
    "get_partition_state": _DESCRIBE_TOPIC,
    "read_records": _topic(Operation.READ),
    "write_batches": _WRITE_TOPIC,
    "commit_transaction": RouteRule(
        note=f"WRITE on TRANSACTIONAL_ID {TRANSACTIONAL_ID} and on each TOPIC; for offsets, READ on GROUP and TOPIC"
    ),
    "v2_root": _NOTHING,
    "v2_list_brokers": _NOTHING,
    "v2_list_topics": _FILTERED,
    "v2_get_topic": _topic(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
    "v2_produce_to_topic": _WRITE_TOPIC,
    "v2_list_partitions": _DESCRIBE_TOPIC,
    "v2_get_partition": _DESCRIBE_TOPIC,
    "v2_produce_to_partition": _WRITE_TOPIC,
    "v2_get_offsets": _DESCRIBE_TOPIC,
    "v2_create_consumer": _CONSUMER,
    "v2_delete_consumer": _CONSUMER,
    "v2_subscribe": _CONSUMER._replace(note="READ on each TOPIC too; a pattern leaves out topics without it"),
    "v2_get_subscription": _CONSUMER,
    "v2_unsubscribe": _CONSUMER,
    "v2_assign": _READ_TOPICS,
    "v2_get_assignments": _CONSUMER,
    "v2_read_consumer": _READ_TOPICS,
    "v2_commit": _READ_TOPICS,
    "v2_get_committed": _CONSUMER._replace(note="DESCRIBE on each TOPIC too"),
    "v2_seek": _READ_TOPICS,
    "v2_seek_to_beginning": _READ_TOPICS,
    "v2_seek_to_end": _READ_TOPICS,
    "v3_list_clusters": _NOTHING,
    "v3_get_cluster": _NOTHING,
    "v3_list_acls": _DESCRIBE_CLUSTER,
    "v3_create_acl": _cluster(Operation.ALTER),
    "v3_delete_acls": _cluster(Operation.ALTER),
    "v3_list_brokers": _NOTHING,
    "v3_get_broker": _NOTHING,
    "v3_list_broker_replicas": _DESCRIBE_CLUSTER,
    "v3_list_topics": _FILTERED,
    "v3_create_topic": RouteRule(note="CREATE on CLUSTER or on the TOPIC"),
    "v3_get_topic": _DESCRIBE_TOPIC,
    "v3_grow_topic": _topic(Operation.ALTER),
    "v3_delete_topic": _topic(Operation.DELETE),
    "v3_list_partitions": _DESCRIBE_TOPIC,
    "v3_get_partition": _DESCRIBE_TOPIC,
    "v3_get_partition_offset": _DESCRIBE_TOPIC,
    "v3_list_all_reassignments": _DESCRIBE_CLUSTER,
    "v3_list_reassignments": _DESCRIBE_CLUSTER,
    "v3_get_reassignment": _DESCRIBE_CLUSTER,
    "v3_list_replicas": _DESCRIBE_TOPIC,
    "v3_get_replica": _DESCRIBE_TOPIC,
    "v3_produce_records": _WRITE_TOPIC,
    "v3_produce_batch": _WRITE_TOPIC,
    "v3_list_topic_configs": _SEE_CONFIGS,
    "v3_get_topic_config": _SEE_CONFIGS,
    "v3_set_topic_config": _SET_CONFIGS,
    "v3_reset_topic_config": _SET_CONFIGS,
    "v3_alter_topic_configs": _SET_CONFIGS,
    "v3_list_all_topic_configs": RouteRule(note="topics without DESCRIBE_CONFIGS are left out"),
    "v3_list_broker_configs": _SEE_CLUSTER_CONFIGS,
    "v3_get_broker_config": _SEE_CLUSTER_CONFIGS,
    "v3_set_broker_config": _SET_CLUSTER_CONFIGS,
    "v3_reset_broker_config": _SET_CLUSTER_CONFIGS,
    "v3_alter_broker_configs": _SET_CLUSTER_CONFIGS,
    "v3_list_all_broker_configs": _SEE_CLUSTER_CONFIGS,
    "v3_list_cluster_configs": _SEE_CLUSTER_CONFIGS,
    "v3_get_cluster_config": _SEE_CLUSTER_CONFIGS,
    "v3_set_cluster_config": _SET_CLUSTER_CONFIGS,
    "v3_reset_cluster_config": _SET_CLUSTER_CONFIGS,
    "v3_alter_cluster_configs": _SET_CLUSTER_CONFIGS,
    "v3_list_consumer_groups": RouteRule(note="groups without DESCRIBE are left out, but for DESCRIBE on CLUSTER"),
    "v3_get_consumer_group": _DESCRIBE_GROUP,
    "v3_list_consumers": _DESCRIBE_GROUP,
    "v3_get_consumer": _DESCRIBE_GROUP,
    "v3_list_assignments": _DESCRIBE_GROUP,
    "v3_get_assignment": _DESCRIBE_GROUP,
    "v3_list_lags": _LAGS,
    "v3_get_lag": _LAGS,
    "v3_get_lag_summary": _LAGS,
    "list_subjects": _SUBJECTS,
    "find_schema_version": _SEE_SUBJECT,
    "delete_subject": _subject("DELETE"),
    "list_subject_versions": _SEE_SUBJECT,
    "register_schema": _subject("WRITE"),
    "find_by_metadata": _SEE_SUBJECT,
    "get_subject_version": _SEE_SUBJECT,
    "delete_version": _subject("DELETE"),
    "get_version_text": _SEE_SUBJECT,
    "list_referrers": _SEE_SUBJECT,
    "list_schemas": _SUBJECTS,
    "list_schema_types": _NOTHING,
    "get_schema": _SEE_ID,
    "get_schema_by_guid": _SEE_ID,
    "get_schema_text": _SEE_ID,
    "list_schema_subjects": _SEE_ID,
    "list_schema_versions": _SEE_ID,
    "list_contexts": _SUBJECTS,
    "get_global_level": _SEE_REGISTRY,
    "set_global_level": _SET_REGISTRY,
    "reset_global_level": _SET_REGISTRY,
    "get_subject_level": _subject("DESCRIBE_CONFIGS"),
    "set_subject_level": _subject("ALTER_CONFIGS"),
    "reset_subject_level": _subject("ALTER_CONFIGS"),
    "get_global_mode": _SEE_REGISTRY,
    "set_global_mode": _SET_REGISTRY,
    "reset_global_mode": _SET_REGISTRY,
    "get_subject_mode": _subject("DESCRIBE_CONFIGS"),
    "set_subject_mode": _subject("ALTER_CONFIGS"),
    "reset_subject_mode": _subject("ALTER_CONFIGS"),
    "check_with_versions": _SEE_SUBJECT,
    "check_with_version": _SEE_SUBJECT,
}
"""The rule of each route, by the name of its operation."""


def check_route(authorization: Authorization, caller: Caller, operation: str, arguments: Mapping[str, str]) -> None:
    """Raises `HttpError` 403 if the caller lacks a right that a route needs."""
    authorizer = authorization.authorizer
    if authorizer is None or authorizer.is_super(caller):
        return
    rule = ROUTE_RULES[operation]
    for need in rule.needs:
        name = arguments[need.argument] if need.argument else CLUSTER_NAME
        if not authorization.authorize(caller, need.operation, need.kind, name):
            what = f"{need.kind.name} {name[:249]!r}" if need.argument else "the cluster"
            raise HttpError(NOT_AUTHORIZED, f"{caller.principal} has no right to {need.operation.name} on {what}")
