"""Tests of Kafka's settings that are none here: each name is known, and told apart from ours and from unknown ones."""

from __future__ import annotations

import pytest

from tiered.config.kafka_aliases import LARGER_UNITS, SAME_MEANING
from tiered.config.setting import text_of
from tiered.config.settings import Settings, broker_rows, topic_rows
from tiered.config.unserved import CHANGEABLE, ONLY_OF_LISTENERS, READ_AT_START, is_known_to_kafka, is_of_one_broker
from tiered.errors import Refused


def test_no_name_is_in_two_tables() -> None:
    ours = {*broker_rows(), *LARGER_UNITS, *SAME_MEANING}
    theirs = {*CHANGEABLE, *READ_AT_START, ONLY_OF_LISTENERS}
    assert not ours & theirs
    assert len(theirs) == len(CHANGEABLE) + len(READ_AT_START) + 1 == 173
    assert not theirs & topic_rows().keys()


def test_each_default_is_a_value_that_is_taken() -> None:
    for row in CHANGEABLE.values():
        if not row.choices or row.default:
            assert row.normalize(text_of(row.default)) == text_of(row.default), row.name
        assert row.dynamic


def test_start_tells_kafkas_settings_from_unknown_ones() -> None:
    with pytest.raises(Refused, match=r"replica.socket.timeout.ms: it is a setting of Kafka that has no effect here"):
        Settings.from_strings({"replica.socket.timeout.ms": "1"})
    with pytest.raises(Refused, match=r"replica.fetch.wait.max.msx: unknown broker setting; did you mean"):
        Settings.from_strings({"replica.fetch.wait.max.msx": "1"})
    assert is_known_to_kafka("num.io.threads") and not is_known_to_kafka("node.id")
    assert is_of_one_broker("ssl.protocol") and not is_of_one_broker("num.io.threads")
