"""Entities and values that Kafka 4.2 refuses, in its words, and filters over entities."""

from __future__ import annotations

import pytest

from tiered.errors import Code, Refused
from tiered.quotas.entity import CLIENT_ID, IP, USER, EntityFilter, QuotaEntity, QuotaFilter, entity_text
from tiered.quotas.validation import find_entity_fault, find_value_fault, read_ip


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((), "Invalid empty client quota entity"),
        (((USER, "a"), (USER, "b")), "Invalid client quota entity, duplicate entity entry user"),
        ((("group", "g"),), "Unhandled client quota entity type: group"),
        (((CLIENT_ID, ""),), "Empty client-id not supported"),
        (((USER, "u" * 256),), "The name of a user has 255 characters at most"),
        (
            ((IP, "10.0.0.1"), (USER, "a")),
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        (((IP, "10.0.0"),), "10.0.0 is not a valid IP: names of hosts have no quotas"),
        (((USER, None), (CLIENT_ID, None)), None),
        (((IP, None),), None),
        (((IP, "::1"),), None),
    ],
)
def test_entity_is_refused_in_the_words_of_kafka(parts: QuotaEntity, why: str | None) -> None:
    fault = find_entity_fault(parts)
    assert (fault and fault.why) == why
    assert fault is None or fault.code is Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("kind", "key", "value", "why"),
    [
        (USER, "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        (USER, "request_percentage", -1.0, "Quota request_percentage must be greater than 0"),
        (USER, "request_percentage", float("nan"), "Quota request_percentage must be greater than 0"),
        (USER, "request_percentage", float("inf"), "Quota request_percentage must be finite"),
        (USER, "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        (USER, "consumer_byte_rate", 1e19, "Proposed value for consumer_byte_rate is too large for a LONG."),
        (USER, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (IP, "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (
            IP,
            "connection_creation_rate",
            2.0**31,
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
        (IP, "connection_creation_rate", 10.0, None),
        (CLIENT_ID, "controller_mutation_rate", 0.5, None),
    ],
)
def test_value_is_refused_in_the_words_of_kafka(kind: str, key: str, value: float, why: str | None) -> None:
    fault = find_value_fault([kind], key, value)
    assert (fault and fault.why) == why


def test_address_has_one_spelling() -> None:
    assert [read_ip(text) for text in ("0:0::1", "10.1.2.3", "host", "10.0.0.0/8")] == ["::1", "10.1.2.3", None, None]


ALICE, ALICE_APP, ANY_USER, APP = (
    ((USER, "alice"),),
    ((CLIENT_ID, "app"), (USER, "alice")),
    ((USER, None),),
    ((CLIENT_ID, "app"),),
)
ALL = (ALICE, ALICE_APP, ANY_USER, APP, ((IP, "::1"),))


@pytest.mark.parametrize(
    ("filters", "strict", "chosen"),
    [
        ((), False, ALL),
        ((), True, ()),
        ((EntityFilter(USER, 0, "alice"),), False, (ALICE, ALICE_APP)),
        ((EntityFilter(USER, 0, "alice"),), True, (ALICE,)),
        ((EntityFilter(USER, 1),), False, (ANY_USER,)),
        ((EntityFilter(USER, 2),), False, (ALICE, ALICE_APP, ANY_USER)),
        ((EntityFilter(USER, 2), EntityFilter(CLIENT_ID, 0, "app")), True, (ALICE_APP,)),
    ],
)
def test_filter_chooses_as_kafka_does(
    filters: tuple[EntityFilter, ...], strict: bool, chosen: tuple[QuotaEntity, ...]
) -> None:
    wanted = QuotaFilter(filters, strict=strict)
    assert tuple(filter(wanted.chooses, ALL)) == chosen


@pytest.mark.parametrize(
    ("filters", "why"),
    [
        ((EntityFilter("", 0, "a"),), "Invalid empty entity type."),
        ((EntityFilter("group", 0, "a"),), "Unsupported entity type group"),
        ((EntityFilter(USER, 3),), "Unknown match type 3"),
        ((EntityFilter(USER, 0),), "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ((EntityFilter(USER, 1, "a"),), "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ((EntityFilter(USER, 2, "a"),), "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        (
            (EntityFilter(USER, 2), EntityFilter(USER, 1)),
            "Entity type user cannot appear more than once in the filter.",
        ),
        (
            (EntityFilter(USER, 2), EntityFilter(IP, 1)),
            "Invalid entity filter component combination. "
            "IP filter component should not be used with user or clientId filter component.",
        ),
    ],
)
def test_filter_is_refused_in_the_words_of_kafka(filters: tuple[EntityFilter, ...], why: str) -> None:
    with pytest.raises(Refused) as refused:
        QuotaFilter(filters, strict=False)
    assert refused.value.why == why


def test_entity_reads_as_words() -> None:
    assert entity_text(ALICE_APP) == "client-id app, user alice"
    assert entity_text(ANY_USER) == "user (default)"
