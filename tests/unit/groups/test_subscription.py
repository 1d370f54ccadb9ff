"""The topics of a subscription, of any client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.groups.rig import subscription
from tiered.errors import Corrupt
from tiered.groups.subscription import compute_subscribed_topics, parse_topics


@given(st.lists(st.text(max_size=20), max_size=5), st.binary(max_size=10))
def test_topics_are_read_with_any_bytes_behind_them(topics: list[str], rest: bytes) -> None:
    assert parse_topics(subscription(*topics) + rest) == frozenset(topics)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_subscription_raise_corrupt_only(raw: bytes) -> None:
    try:
        assert isinstance(parse_topics(raw), frozenset)
    except Corrupt:
        assert compute_subscribed_topics("consumer", [subscription("t"), raw]) is None


def test_first_version_is_read() -> None:
    assert parse_topics(bytes.fromhex("0000 00000001 0001 74 ffffffff")) == {"t"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff",
    ],
)
def test_invalid_lengths_are_corrupt(raw: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_topics(raw)


def test_group_subscribes_to_the_topics_of_all_members() -> None:
    both = [subscription("a", "b"), subscription("b", "c")]
    assert compute_subscribed_topics("consumer", both) == frozenset("abc")
    assert compute_subscribed_topics("consumer", []) == frozenset()
    assert compute_subscribed_topics("connect", both) is None
    assert compute_subscribed_topics(None, []) is None
