"""Tests of settings in the metadata log: every broker reads one normal form, whatever an earlier release stored."""

from __future__ import annotations

import pytest

from tiered.metadata.stored_configs import find_row, normalize_broker_configs, normalize_topic_configs, stored_rows


@pytest.mark.parametrize(
    ("name", "stored", "normal"),
    [
        ("retention.ms", "1_000", "1000"),
        ("retention.ms", " 1000 ", "1000"),
        ("cleanup.policy", "compact,", "compact"),
        ("remote.storage.enable", "TRUE", "true"),
        ("segment.bytes", "1", "1048576"),
    ],
    ids=["digits in groups", "spaces", "an empty word", "capitals", "smaller than the least of today"],
)
def test_stored_text_is_read_in_its_normal_form(name: str, stored: str, normal: str) -> None:
    assert normalize_topic_configs({name: stored}) == {name: normal}


@pytest.mark.parametrize("stored", ["soon", ""])
def test_text_without_a_value_and_unknown_names_stay_as_they_are(stored: str) -> None:
    configs = {"retention.ms": stored, "of.a.later.release": stored}
    assert normalize_topic_configs(configs) == configs


def test_broker_has_rows_of_listeners_and_settings_without_effect() -> None:
    of_listener = find_row("listener.name.clients.max.connections", stored_rows())
    assert of_listener is not None and of_listener.normalize_stored("1_0") == "10"
    assert find_row("of.a.later.release", stored_rows()) is None
    assert normalize_broker_configs({"log.retention.ms": "1_000"}) == {"log.retention.ms": "1000"}
