"""The error codes of brokers in words, for people: what happened, and what to do.

Many replies have no field for a message, and a code alone helps nobody who does not know Kafka's table.
"""

from __future__ import annotations

from tiered.errors import Code, code_name

_AGAIN = "try again later"
_BUG = "the client has a fault: report it"
_LOG = "see the log of the broker"
_VERSION = "compare the versions of client and brokers"
_RIGHT = "an administrator gives rights with `tiered acl add`"
_TOKENS = "see the settings `delegation.token.*` of the brokers"

SENTENCES: dict[Code, str] = {
    Code.UNKNOWN_SERVER_ERROR: f"the broker failed with an unexpected error; {_LOG}",
    Code.NONE: "there was no error",
    Code.OFFSET_OUT_OF_RANGE: "the partition has no such offset; `tiered topic describe -p` shows its first and last",
    Code.CORRUPT_MESSAGE: "records arrived damaged, or without a key in a compacted topic; or they are damaged or"
    " missing where they are stored: see `tiered cluster health`",
    Code.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition, or no right to it; see `tiered topic list`",
    Code.INVALID_FETCH_SIZE: f"the size of the fetch is not possible; {_BUG}",
    Code.LEADER_NOT_AVAILABLE: f"the partition has no leader now; {_AGAIN}, `tiered cluster health` shows why",
    Code.NOT_LEADER_OR_FOLLOWER: f"the leader of the partition has just changed; {_AGAIN}",
    Code.REQUEST_TIMED_OUT: "the broker was not done in time; it may still do it, so look before you try again",
    Code.BROKER_NOT_AVAILABLE: "the broker is not reachable; `tiered cluster health` shows which brokers are live",
    Code.REPLICA_NOT_AVAILABLE: f"the broker has no replica of the partition now; {_AGAIN}",
    Code.MESSAGE_TOO_LARGE: "the batch is larger than max.message.bytes of the topic; send less at once, or raise it",
    Code.STALE_CONTROLLER_EPOCH: f"another controller has taken over; {_AGAIN}",
    Code.OFFSET_METADATA_TOO_LARGE: "the metadata of the offset is too long; shorten it",
    Code.NETWORK_EXCEPTION: f"the connection ended before the reply; look if it was done, then {_AGAIN}",
    Code.COORDINATOR_LOAD_IN_PROGRESS: f"the coordinator is still loading; {_AGAIN}",
    Code.COORDINATOR_NOT_AVAILABLE: f"there is no coordinator now; {_AGAIN}, `tiered cluster health` shows why",
    Code.NOT_COORDINATOR: f"the coordinator has just moved to another broker; {_AGAIN}",
    Code.INVALID_TOPIC_EXCEPTION: "the name of the topic is not allowed; use letters, digits, dot, _ and -",
    Code.RECORD_LIST_TOO_LARGE: "the batch is larger than a segment; send less at once, or raise segment.bytes",
    Code.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas; `tiered cluster health` shows them",
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "the record was written, but on fewer replicas than min.insync.replicas; it may be lost, or come twice"
    ),
    Code.INVALID_REQUIRED_ACKS: "acks has no such value; use 0, 1 or all",
    Code.ILLEGAL_GENERATION: "the group has been rebalanced meanwhile; read its assignment again",
    Code.INCONSISTENT_GROUP_PROTOCOL: "the members of the group share no assignor; give all of them the same one",
    Code.INVALID_GROUP_ID: "the name of the group is not allowed; give another one",
    Code.UNKNOWN_MEMBER_ID: "the group does not have this member; stop the members that it has, or join again",
    Code.INVALID_SESSION_TIMEOUT: (
        "the session timeout is out of bounds; see group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
    Code.REBALANCE_IN_PROGRESS: f"the group is being rebalanced; {_AGAIN}",
    Code.INVALID_COMMIT_OFFSET_SIZE: "the offsets are too many for one commit; commit fewer at once",
    Code.TOPIC_AUTHORIZATION_FAILED: f"the user has no right to the topic; {_RIGHT}",
    Code.GROUP_AUTHORIZATION_FAILED: f"the user has no right to the group; {_RIGHT}",
    Code.CLUSTER_AUTHORIZATION_FAILED: f"the user has no right to the cluster; {_RIGHT}",
    Code.INVALID_TIMESTAMP: "a timestamp is out of bounds; see message.timestamp.before.max.ms and .after.max.ms",
    Code.UNSUPPORTED_SASL_MECHANISM: "the broker does not offer this SASL mechanism; choose another sasl.mechanism",
    Code.ILLEGAL_SASL_STATE: "the listener has no login, or the login is done; check security.protocol",
    Code.UNSUPPORTED_VERSION: f"the broker does not know this request in this version; {_VERSION}",
    Code.TOPIC_ALREADY_EXISTS: "there is a topic of that name; choose another, or give --if-not-exists",
    Code.INVALID_PARTITIONS: "the number of partitions is not possible; it is at least 1, and only grows",
    Code.INVALID_REPLICATION_FACTOR: "there are fewer live brokers than replicas; `tiered cluster health` shows them",
    Code.INVALID_REPLICA_ASSIGNMENT: "the replicas are not possible; name each live broker at most once",
    Code.INVALID_CONFIG: "a setting has an unknown name or a value that is not allowed; see docs/reference/settings.md",
    Code.NOT_CONTROLLER: f"the controller has just changed; {_AGAIN}",
    Code.INVALID_REQUEST: "the broker does not accept the request; check the options of the command",
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the format of the records lacks that; write with a newer client",
    Code.POLICY_VIOLATION: "a setting of the topic or of the cluster forbids it; `tiered topic describe -c` shows them",
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: "the broker lacks earlier records of this producer; start the producer again",
    Code.DUPLICATE_SEQUENCE_NUMBER: "the broker has these records of the producer already; nothing is to be done",
    Code.INVALID_PRODUCER_EPOCH: "a newer producer has the same transactional id; stop one of them",
    Code.INVALID_TXN_STATE: "the transaction is in another state; `tiered transaction describe` shows it",
    Code.INVALID_PRODUCER_ID_MAPPING: "the transactional id has another producer by now; start the producer again",
    Code.INVALID_TRANSACTION_TIMEOUT: "the timeout is above transaction.max.timeout.ms; shorten it, or raise that",
    Code.CONCURRENT_TRANSACTIONS: f"the earlier transaction of this id is still ending; {_AGAIN}",
    Code.TRANSACTION_COORDINATOR_FENCED: f"another coordinator has taken over; {_AGAIN}",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"the user has no right to the transactional id; {_RIGHT}",
    Code.SECURITY_DISABLED: "the broker has no authorizer, so no rule is in force; set authorizer.class.name",
    Code.OPERATION_NOT_ATTEMPTED: "it was not tried, because another part of the request failed; mend that first",
    Code.KAFKA_STORAGE_ERROR: f"the disk of the broker or the bucket failed; {_LOG}, and `tiered cluster health`",
    Code.LOG_DIR_NOT_FOUND: "the broker has no such directory; `tiered topic describe-storage` shows what it has",
    Code.SASL_AUTHENTICATION_FAILED: "the login failed; check user, password or token",
    Code.UNKNOWN_PRODUCER_ID: "the broker does not know the producer any more; start the producer again",
    Code.REASSIGNMENT_IN_PROGRESS: "the partition is being moved; `tiered cluster reassign` shows it, wait for its end",
    Code.DELEGATION_TOKEN_AUTH_DISABLED: f"delegation tokens are switched off; {_TOKENS}",
    Code.DELEGATION_TOKEN_NOT_FOUND: f"there is no such delegation token; {_TOKENS}",
    Code.DELEGATION_TOKEN_OWNER_MISMATCH: "the delegation token belongs to another user; its owner has to do it",
    Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "this connection may not ask for delegation tokens; log in by password",
    Code.DELEGATION_TOKEN_AUTHORIZATION_FAILED: f"the user has no right to the delegation token; {_RIGHT}",
    Code.DELEGATION_TOKEN_EXPIRED: "the delegation token has expired; get a new one",
    Code.INVALID_PRINCIPAL_TYPE: "the principal has an unknown type; it is User:NAME",
    Code.NON_EMPTY_GROUP: "the group has members; stop them first",
    Code.GROUP_ID_NOT_FOUND: "there is no such group; see `tiered group list`",
    Code.FETCH_SESSION_ID_NOT_FOUND: f"the broker has forgotten the session of the reader; {_AGAIN}",
    Code.INVALID_FETCH_SESSION_EPOCH: f"the broker has another state of the session; {_AGAIN}",
    Code.LISTENER_NOT_FOUND: "the leader has no listener of that name; give all brokers the same listeners",
    Code.TOPIC_DELETION_DISABLED: "topics cannot be deleted here; set delete.topic.enable",
    Code.FENCED_LEADER_EPOCH: f"the partition has a newer leader; {_AGAIN}",
    Code.UNKNOWN_LEADER_EPOCH: f"the broker has not yet heard of the newest leader; {_AGAIN}",
    Code.UNSUPPORTED_COMPRESSION_TYPE: "the broker cannot handle this compression; choose another one",
    Code.STALE_BROKER_EPOCH: "the broker has been started again meanwhile; nothing is to be done",
    Code.OFFSET_NOT_AVAILABLE: f"the new leader does not yet know how far it may be read; {_AGAIN}",
    Code.MEMBER_ID_REQUIRED: f"the group wants a second request of a new member; {_BUG}",
    Code.PREFERRED_LEADER_NOT_AVAILABLE: "the first replica of the partition is not in sync; wait until it is",
    Code.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.max.size allows; stop one, or raise it",
    Code.FENCED_INSTANCE_ID: "another member has the same group.instance.id; stop one of them",
    Code.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no replica may lead; start its brokers, `tiered cluster health` names them",
    Code.ELECTION_NOT_NEEDED: "the partition has the right leader already; nothing is to be done",
    Code.NO_REASSIGNMENT_IN_PROGRESS: "the partition is not being moved; `tiered cluster reassign` shows which are",
    Code.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group read the topic; stop them first",
    Code.INVALID_RECORD: "the broker does not accept a record; check key, value and timestamp",
    Code.UNSTABLE_OFFSET_COMMIT: f"an open transaction will still change the offset; {_AGAIN}",
    Code.THROTTLING_QUOTA_EXCEEDED: f"the client is above its quota; {_AGAIN}, `tiered quota list` shows it",
    Code.PRODUCER_FENCED: "a newer producer has the same transactional id; stop one of them",
    Code.RESOURCE_NOT_FOUND: "there is no such thing; check the name",
    Code.DUPLICATE_RESOURCE: "it exists already, or is named twice; name it once",
    Code.UNACCEPTABLE_CREDENTIAL: "the broker does not accept the password; choose another one",
    Code.INCONSISTENT_VOTER_SET: f"the voters of the metadata differ; {_VERSION}",
    Code.INVALID_UPDATE_VERSION: f"the version of the feature is not possible; {_VERSION}",
    Code.FEATURE_UPDATE_FAILED: f"the feature could not be changed; {_LOG}",
    Code.PRINCIPAL_DESERIALIZATION_FAILURE: f"a broker could not read who sent the request; {_VERSION}",
    Code.SNAPSHOT_NOT_FOUND: f"the broker has no such snapshot any more; {_AGAIN}",
    Code.POSITION_OUT_OF_RANGE: f"the snapshot has no such position; {_BUG}",
    Code.UNKNOWN_TOPIC_ID: "the topic was deleted or created again meanwhile; start again",
    Code.DUPLICATE_BROKER_REGISTRATION: "another broker with this node.id is live; give each its own",
    Code.BROKER_ID_NOT_REGISTERED: "there is no broker with this number; `tiered cluster health` lists them",
    Code.INCONSISTENT_TOPIC_ID: "the topic was created again meanwhile; start again",
    Code.INCONSISTENT_CLUSTER_ID: "the broker belongs to another cluster; check the addresses",
    Code.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id; see `tiered transaction list`",
    Code.FETCH_SESSION_TOPIC_ID_ERROR: f"the session of the reader mixes two forms of topics; {_AGAIN}",
    Code.INELIGIBLE_REPLICA: "the broker may not hold replicas in sync now; `tiered cluster health` shows why",
    Code.NEW_LEADER_ELECTED: f"the partition got another leader by the change; {_AGAIN}",
    Code.OFFSET_MOVED_TO_TIERED_STORAGE: "the records are in the bucket by now; read them from there",
    Code.FENCED_MEMBER_EPOCH: "the group has removed the member; join again",
    Code.UNRELEASED_INSTANCE_ID: "another member still has the same group.instance.id; stop it, or wait for its end",
    Code.UNSUPPORTED_ASSIGNOR: "the broker does not have that assignor; choose another one",
    Code.STALE_MEMBER_EPOCH: "the group has been rebalanced meanwhile; read its assignment again",
    Code.MISMATCHED_ENDPOINT_TYPE: "the address is one of a controller, not of a broker; check the addresses",
    Code.UNSUPPORTED_ENDPOINT_TYPE: f"the broker does not know this kind of address; {_VERSION}",
    Code.UNKNOWN_CONTROLLER_ID: f"there is no controller with this number; {_AGAIN}",
    Code.UNKNOWN_SUBSCRIPTION_ID: f"the broker has another subscription for metrics of clients; {_AGAIN}",
    Code.TELEMETRY_TOO_LARGE: "the metrics of the client are too large; send fewer",
    Code.INVALID_REGISTRATION: f"the controller does not accept the broker; {_LOG}",
    Code.TRANSACTION_ABORTABLE: "the transaction cannot be committed; abort it, and start again",
    Code.INVALID_RECORD_STATE: "the record is in another state of its share group; start again",
    Code.SHARE_SESSION_NOT_FOUND: f"the broker has forgotten the session of the reader; {_AGAIN}",
    Code.INVALID_SHARE_SESSION_EPOCH: f"the broker has another state of the session; {_AGAIN}",
    Code.FENCED_STATE_EPOCH: f"another coordinator of the share group has taken over; {_AGAIN}",
    Code.INVALID_VOTER_KEY: f"the voter has another directory; {_VERSION}",
    Code.DUPLICATE_VOTER: "the voter is one already; nothing is to be done",
    Code.VOTER_NOT_FOUND: "there is no such voter; check its number",
    Code.INVALID_REGULAR_EXPRESSION: "the pattern is not a regular expression; check it",
    Code.REBOOTSTRAP_REQUIRED: "the brokers that the client knows are gone; start again with their new addresses",
    Code.STREAMS_INVALID_TOPOLOGY: "the broker does not accept the topology of the application; check its topics",
    Code.STREAMS_INVALID_TOPOLOGY_EPOCH: "the application has another topology than its group; restart all of it",
    Code.STREAMS_TOPOLOGY_FENCED: "the group has a newer topology; restart this part of the application",
    Code.SHARE_SESSION_LIMIT_REACHED: f"the broker has no room for another session of a share group; {_AGAIN}",
}
_UNKNOWN = f"the broker refused it for a reason that this version does not know; {_LOG}"
_BY_NUMBER = {code.number: sentence for code, sentence in SENTENCES.items()}


def explain_error(number: int, message: str | None = None) -> str:
    """Returns an error of a broker as a sentence with the code in brackets: the broker's own message if there is one,
    else what the code means and what to do."""
    name = code_name(number)
    said = (message or "").strip().removesuffix(".")
    if said in ("", name):
        said = _BY_NUMBER.get(number, _UNKNOWN)
    return f"{said} ({name})"
