"""Tests of causes: troubles come first, and each says what mends it."""

from __future__ import annotations

from tiered_api.explanation.cause import LISTED_MAX, Cause, describe_causes, describe_rest, format_nodes, plural


def test_troubles_come_first_and_end_with_what_mends_them() -> None:
    found = describe_causes(
        [Cause("leader", "broker 1 leads", {"leader": 1}), Cause("disk", "the disk is full", {}, "give it room")]
    )
    assert found["sentences"] == ["The disk is full. Give it room.", "Broker 1 leads."]
    assert [(each["code"], each["trouble"], each["mend"]) for each in found["facts"]] == [
        ("disk", True, "give it room"),
        ("leader", False, None),
    ]
    assert found["facts"][1]["values"] == {"leader": 1}


def test_rest_of_a_long_list_is_counted() -> None:
    assert list(describe_rest("lag", range(LISTED_MAX), "partitions")) == []
    [rest] = describe_rest("lag", range(LISTED_MAX + 3), "partitions")
    assert rest.sentence == "and 3 more partitions" and rest.values == {"more": 3}


def test_brokers_are_named_by_number() -> None:
    assert (plural(1, "record"), plural(0, "record")) == ("1 record", "0 records")
    assert format_nodes([1]) == "broker 1" and format_nodes([1, 2, 3], "or") == "brokers 1, 2 or 3"
