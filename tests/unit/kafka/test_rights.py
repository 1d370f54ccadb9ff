"""Tests of the table of rights: each API in each version, with each right that it needs and without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import combinations
from typing import Any

import pytest

from tests.scenario import run_alone, run_by
from tiered.access.audit_log import AuditLog
from tiered.access.authorization import Authorization
from tiered.config.settings import STANDARD_AUTHORIZER, Settings
from tiered.errors import Code
from tiered.ids import TopicId
from tiered.metadata.changes import AclAdded, TopicCreated
from tiered.metadata.image import Image
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered.security.principal import Caller, Principal
from tiered.system.clock import SystemClock
from tiered.system.turns import Turns
from tiered_api.kafka.protocol.apis import ALL_APIS, Api
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tiered_api.kafka.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tiered_api.kafka.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from tiered_api.kafka.protocol.messages.describe_transactions import TransactionState as DescribedState
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest
from tiered_api.kafka.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopics,
)
from tiered_api.kafka.protocol.messages.tiered_compact import CompactedTopic, TieredCompactRequest
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.requests.config_resources import ConfigResourceType
from tiered_api.kafka.server.rights.cluster import check_describe_configs
from tiered_api.kafka.server.rights.groups import (
    check_add_partitions,
    check_describe_transactions,
    check_init_producer_id,
    check_list_groups,
    check_list_transactions,
    check_offset_fetch,
)
from tiered_api.kafka.server.rights.operations import API_RULES, Need, Rule
from tiered_api.kafka.server.rights.rights import Rights
from tiered_api.kafka.server.rights.topics import check_compact, check_delete_topics, check_topic_pages
from tiered_api.kafka.server.rights.verdict import ALLOWED, Verdict, run_without_pause

ALICE = Caller(Principal("User", "alice"), "10.0.0.1")
TOPIC_ID = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
NAMES = {ResourceType.TOPIC: "t", ResourceType.GROUP: "g", ResourceType.TRANSACTIONAL_ID: "x"}
CODES = {29, 30, 31, 53, 100}
"""The codes that refuse for want of rights."""
IN_HANDLERS = {"Produce", "Fetch", "Metadata", "CreateDelegationToken", "DescribeDelegationToken"}
FREE = {
    "ApiVersions",
    "SaslHandshake",
    "SaslAuthenticate",
    "DescribeCluster",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "TieredFollow",
    "TieredSubmit",
    "TieredHeard",
    "TieredActFor",
    "TieredQuotaUse",
    "TieredAppendAt",
}
LISTS = {"ListGroups", "ListTransactions"}
"""Requests that are never refused: parts of their replies are left out."""
ONE_IS_ENOUGH = {"ListGroups", "CreateTopics", "WriteTxnMarkers"}


def make_rights(*needs: Need, turns: Turns | None = None) -> Rights:
    """Returns the rights of a caller with these operations on all resources of the sample requests."""
    acls = [
        AclAdded(
            need.kind.name,
            "LITERAL",
            NAMES.get(need.kind, CLUSTER_NAME),
            "User:alice",
            "*",
            need.operation.name,
            "ALLOW",
        )
        for need in needs
    ]
    image = Image().apply([TopicCreated("t", TOPIC_ID, ((1,),), {}, 0), *acls])
    authorization = Authorization(Settings(authorizer_class_name=STANDARD_AUTHORIZER), AuditLog(SystemClock()))
    authorization.apply_image(image)
    return Rights(authorization, ALICE, image, turns)


def fill(kind: type[Any], name: str = "") -> Any:
    """Returns a message whose lists have one item, and whose names are those of the sample resources."""
    made = kind()
    for each in fields(kind):
        hint, value = str(each.type), getattr(made, each.name)
        if each.name in ("group_id", "group_ids", "groups_names"):
            text = "g"
        elif "transactional_id" in each.name:
            text = "x"
        else:
            text = {"groups": "g", "coordinator_keys": "g", "key": "g"}.get(each.name, "t")
        if hint.startswith("list[str]"):
            setattr(made, each.name, [text])
        elif hint.startswith("list[int]"):
            setattr(made, each.name, [0])
        elif hint.startswith("list["):
            inner = hint[len("list[") :].partition("]")[0]
            item = getattr(__import__(kind.__module__, fromlist=[inner]), inner)
            setattr(made, each.name, [fill(item)])
        elif hint.startswith("str") and each.name == "topic_id":
            setattr(made, each.name, TOPIC_ID)
        elif hint.startswith("str"):
            setattr(made, each.name, text)
        elif each.name in ("resource_type", "resource_type_filter"):
            setattr(made, each.name, 2)
        del value
    return made


def sample(api: Api, version: int) -> Any:
    """Returns a request as it arrives in a version."""
    request = fill(api.request_type)
    if api.name == "DeleteTopics":
        for topic in request.topics:
            topic.topic_id = "AAAAAAAAAAAAAAAAAAAAAA"
    if api.name == "DescribeTopicPartitions":
        request.cursor = None
    if api.name == "WriteTxnMarkers" or "ShareGroupState" in api.name:
        request.credential = b""
    return decode(api.request_type, version, memoryview(encode(request, version)), 0)


def codes_of(value: Any) -> Iterator[int]:
    """Returns all error codes inside a message."""
    if isinstance(value, list):
        for each in value:
            yield from codes_of(each)
    elif is_dataclass(value):
        for each in fields(value):
            inner = getattr(value, each.name)
            if "error_code" in each.name:
                yield inner
            else:
                yield from codes_of(inner)


def refusals(api: Api, version: int, rights: Rights) -> set[int]:
    """Returns the codes of refusals in the reply to the sample request, which a handler answers with an empty reply."""
    request = sample(api, version)
    verdict = run_without_pause(API_RULES[api.name].guard(rights, request, version))
    response: Any = verdict.response if verdict.response is not None else api.response_type()
    if api.name == "OffsetFetch" and version >= 8 and verdict.response is None:
        response.groups = [OffsetFetchResponseGroup("g")]
    if verdict.response is None and verdict.finish is not None:
        run_without_pause(verdict.finish(response))
    decoded = decode(api.response_type, version, memoryview(encode(response, version)), 0)
    return CODES & set(codes_of(decoded))


def relevant_needs(api: Api, rule: Rule) -> tuple[Need, ...]:
    """Returns the needs of the sample request, which names topics and groups, and no transactional id as a key."""
    if api.name in ("FindCoordinator", "DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"):
        kind = ResourceType.GROUP if api.name == "FindCoordinator" else ResourceType.TOPIC
        return tuple(need for need in rule.needs if need.kind is kind)
    if api.name == "InitProducerId":
        return rule.needs[:1]
    if api.name in ("TieredCompact", "DescribeTransactions"):
        return rule.needs[:1]
    return rule.needs


def test_each_api_has_a_rule_and_each_rule_an_api() -> None:
    assert API_RULES.keys() == {api.name for api in ALL_APIS.values()}


CASES = [
    (api, version)
    for api in ALL_APIS.values()
    if api.name not in IN_HANDLERS | FREE | LISTS
    for version in api.served_versions
    if not (api.name == "AddPartitionsToTxn" and version >= 4)
    if not (api.name == "DescribeLogDirs" and version < 3)  # an empty reply, as in Kafka
]


@pytest.mark.parametrize(("api", "version"), CASES, ids=lambda each: getattr(each, "name", each))
def test_request_is_refused_unless_its_caller_has_each_right_of_the_table(api: Api, version: int) -> None:
    needs = relevant_needs(api, API_RULES[api.name])
    assert needs
    assert refusals(api, version, make_rights()), "nothing is allowed"
    assert not refusals(api, version, make_rights(*needs)), "all that the table names is enough"
    if api.name in ONE_IS_ENOUGH:
        for need in needs:
            assert not {29, 30, 31, 53} & refusals(api, version, make_rights(need))
    else:
        for some in combinations(needs, len(needs) - 1):
            assert refusals(api, version, make_rights(*some)), f"{some} is not enough"


def response_of(check: Coroutine[Any, Any, Verdict]) -> Any:
    """Returns the response that ends a request, None if the request goes on to its handler."""
    return run_without_pause(check).response


@pytest.mark.parametrize("kind", list(ConfigResourceType))
def test_settings_need_a_right_on_their_own_resource(kind: ConfigResourceType) -> None:
    owner = {ConfigResourceType.TOPIC: ResourceType.TOPIC, ConfigResourceType.GROUP: ResourceType.GROUP}
    needed = owner.get(kind, ResourceType.CLUSTER)
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, NAMES.get(needed, "1"), None)])

    def codes(*needs: Need) -> list[int]:
        response = response_of(check_describe_configs(make_rights(*needs), request, 4))
        return [each.error_code for each in response.results] if response is not None else []

    all_needs = [Need(Operation.DESCRIBE_CONFIGS, each) for each in (*NAMES, ResourceType.CLUSTER)]
    assert codes(*(each for each in all_needs if each.kind is not needed)) in ([29], [30], [31])
    assert codes(*(each for each in all_needs if each.kind is needed)) == []


def test_lists_leave_out_what_a_caller_may_not_describe() -> None:
    rights = make_rights(*(Need(Operation.DESCRIBE, each) for each in NAMES))
    groups = ListGroupsResponse(groups=[ListedGroup(group_id=name) for name in ("g", "hidden")])
    states = ListTransactionsResponse(
        transaction_states=[TransactionState(transactional_id=name) for name in ("hidden", "x")]
    )
    topics = DescribedState(transactional_id="x", topics=[TopicData(topic=name) for name in ("hidden", "t")])
    described = DescribeTransactionsResponse(transaction_states=[topics])
    cases: list[tuple[Callable[..., Coroutine[Any, Any, Verdict]], Message, Message]] = [
        (check_list_groups, ListGroupsRequest(), groups),
        (check_list_transactions, ListTransactionsRequest(), states),
        (check_describe_transactions, DescribeTransactionsRequest(["x"]), described),
    ]
    for check, request, response in cases:
        verdict = run_without_pause(check(rights, request, 0))
        assert verdict.finish is not None
        run_without_pause(verdict.finish(response))
    assert [each.group_id for each in groups.groups] == ["g"]
    assert [each.transactional_id for each in states.transaction_states] == ["x"]
    assert [each.topic for each in topics.topics] == ["t"]


def test_offsets_of_all_topics_are_those_that_a_caller_may_describe() -> None:
    rights = make_rights(*(Need(Operation.DESCRIBE, each) for each in NAMES))
    group = OffsetFetchResponseGroup("g", [OffsetFetchResponseTopics(name) for name in ("hidden", "t")])
    response = OffsetFetchResponse(groups=[group])
    verdict = run_without_pause(
        check_offset_fetch(rights, OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g")]), 8)
    )
    assert verdict.finish is not None
    run_without_pause(verdict.finish(response))
    assert [each.name for each in group.topics] == ["t"]


def test_producer_id_alone_needs_a_right_to_write_anywhere() -> None:
    def code(*needs: Need) -> int:
        response = response_of(check_init_producer_id(make_rights(*needs), InitProducerIdRequest(None), 4))
        return response.error_code if response is not None else 0

    assert code(Need(Operation.DESCRIBE, ResourceType.TOPIC)) == 31
    assert code(Need(Operation.WRITE, ResourceType.TOPIC)) == 0
    assert code(Need(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)) == 0


def test_partitions_beside_a_refused_topic_do_not_join_a_transaction() -> None:
    rights = make_rights(
        Need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID), Need(Operation.WRITE, ResourceType.TOPIC)
    )
    topics = [AddPartitionsToTxnTopic(name, [0]) for name in ("hidden", "t")]
    request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="x", v3_and_below_topics=topics)
    response = response_of(check_add_partitions(rights, request, 3))
    codes = {
        each.name: [found.partition_error_code for found in each.results_by_partition]
        for each in response.results_by_topic_v3_and_below
    }
    assert codes == {"hidden": [29], "t": [Code.OPERATION_NOT_ATTEMPTED.number]}


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_of_many_transactions_need_a_right_on_the_cluster(version: int) -> None:
    request = AddPartitionsToTxnRequest([AddPartitionsToTxnTransaction("x", 1, 0, False, [])])
    writes = [Need(Operation.WRITE, each) for each in (ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC)]
    refused = response_of(check_add_partitions(make_rights(*writes), request, version))
    assert (refused.error_code, refused.results_by_transaction) == (Code.CLUSTER_AUTHORIZATION_FAILED.number, [])
    acts = make_rights(Need(Operation.CLUSTER_ACTION, ResourceType.CLUSTER))
    assert run_without_pause(check_add_partitions(acts, request, version)) is ALLOWED
    request.credential = b"credential"
    assert run_without_pause(check_add_partitions(make_rights(), request, version)) is ALLOWED


def test_list_for_a_broker_is_not_filtered() -> None:
    request = ListTransactionsRequest(credential=b"credential")
    assert run_without_pause(check_list_transactions(make_rights(), request, 0)) is ALLOWED


def test_topics_are_neither_deleted_by_id_nor_paged_without_a_right() -> None:
    rights = make_rights(Need(Operation.DELETE, ResourceType.GROUP))
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(None, TOPIC_ID)])
    assert [each.error_code for each in response_of(check_delete_topics(rights, by_id, 6)).responses] == [100]
    page = DescribeTopicPartitionsRequest([])
    assert response_of(check_topic_pages(rights, page, 0)).topics == [] == page.topics


def test_unknown_id_looks_like_a_hidden_one() -> None:
    rights = make_rights(Need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER))
    assert not rights.on_topic_id(Operation.READ, "AAAAAAAAAAAAAAAAAAAAAw")
    assert not rights.on_topic_id(Operation.READ, TOPIC_ID)
    assert rights.cluster_mask() == 0
    assert make_rights(Need(Operation.DESCRIBE, ResourceType.CLUSTER)).cluster_mask() == 1 << Operation.DESCRIBE


def test_clean_needs_more_than_a_look_at_it() -> None:
    rights = make_rights(Need(Operation.DESCRIBE, ResourceType.TOPIC))
    for clean in (False, True):
        request = TieredCompactRequest([CompactedTopic("t")], clean)
        response = response_of(check_compact(rights, request, 0))
        assert [each.error_code for each in response.partitions] == [29] if clean else response is None


def test_audit_log_leaves_out_what_a_caller_may_not_describe() -> None:
    rights = make_rights()
    lines: list[str] = []
    rights._authorization.audit.subscribe(lines.append)
    assert not rights.on_topic(Operation.DESCRIBE, "hidden") and not rights.on_topic(Operation.READ, "t")
    rights.record_refusals()
    assert len(lines) == 1 and "hidden" not in lines[0]


class CountedName(str):
    """A name that counts how often any of them is hashed or compared."""

    looks = 0

    def __hash__(self) -> int:
        CountedName.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedName.looks += 1
        return super().__eq__(other)


def name_topics(names: Sequence[str]) -> Iterator[tuple[str, Any, int]]:
    """Yields requests that name many topics, whose checks are written out: API, request, version."""
    yield "DescribeTopicPartitions", DescribeTopicPartitionsRequest([TopicRequest(each) for each in names]), 0
    topics = [OffsetFetchRequestTopics(each, partition_indexes=[0]) for each in names]
    yield "OffsetFetch", OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)]), 8
    yield "DeleteTopics", DeleteTopicsRequest(topic_names=list(names)), 5


def test_check_of_many_topics_looks_at_each_name_a_few_times() -> None:
    """A check that compares each topic with the others would hold the event loop for minutes."""
    for api, request, version in name_topics([CountedName(f"t{number}") for number in range(200)]):
        rights = make_rights(Need(Operation.DESCRIBE, ResourceType.GROUP))
        CountedName.looks = 0
        run_without_pause(API_RULES[api].guard(rights, request, version))
        assert 0 < CountedName.looks <= 200 * 10, api


@run_by(run_alone)
async def test_check_of_many_topics_leaves_turns_to_others(*, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.system.turns.PIECE_SECONDS", 0.0)
    for api, request, version in name_topics([f"t{number}" for number in range(100)]):
        turns, others = Turns(SystemClock()), [0]
        rights = make_rights(Need(Operation.DESCRIBE, ResourceType.GROUP), turns=turns)

        async def take_turns(turns: Turns = turns, others: list[int] = others) -> None:
            while True:
                await turns.wait_next_turn()
                others[0] += 1

        other = asyncio.create_task(take_turns())
        await asyncio.sleep(0)
        await API_RULES[api].guard(rights, request, version)
        other.cancel()
        assert others[0] >= 2, api
