"""Decisions about settings of groups: Kafka's bounds, the level of the feature, and the bound on groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tiered.config.settings import Settings
from tiered.controller import group_configs
from tiered.controller.decision import ControllerResult
from tiered.controller.group_configs import alter_configs
from tiered.controller.requests import AlterGroupConfigs
from tiered.errors import Code, Refused
from tiered.metadata.changes import Change, FeatureLevelSet, GroupConfigChanged, ListEdit
from tiered.metadata.features import GROUP_CONFIGS, METADATA_VERSION
from tiered.metadata.image import Image

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SETTINGS = Settings()
IMAGE = Image().apply([FeatureLevelSet(METADATA_VERSION, GROUP_CONFIGS)])


def alter(
    configs: Mapping[str, str | ListEdit | None],
    image: Image = IMAGE,
    group: str = "g",
    validate_only: bool = False,
    replace: bool = False,
) -> ControllerResult[dict[str, str]]:
    return alter_configs(image, SETTINGS, AlterGroupConfigs(group, configs, validate_only, replace))


def test_settings_of_a_group_are_set_and_reset_in_their_normal_form() -> None:
    made = alter({SESSION: " +50000"})
    assert made.changes == (GroupConfigChanged("g", {SESSION: "50000"}),)
    image = IMAGE.apply(made.changes)
    assert made.reply == image.group_configs["g"] == {SESSION: "50000"}
    assert alter({SESSION: "50000"}, image).changes == ()
    assert alter({HEARTBEAT: "6000"}, image, validate_only=True).changes == ()
    both = image.apply(alter({HEARTBEAT: "6000"}, image).changes)
    assert both.group_configs == {"g": {SESSION: "50000", HEARTBEAT: "6000"}}
    assert both.apply(alter({HEARTBEAT: "7000"}, both, replace=True).changes).group_configs["g"] == {HEARTBEAT: "7000"}
    assert both.apply(alter({SESSION: None, HEARTBEAT: None}, both).changes).group_configs == {}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (SESSION, "60001", "at most group.consumer.max.session.timeout.ms=60000"),
        (SESSION, "44999", "at least group.consumer.min.session.timeout.ms=45000"),
        (HEARTBEAT, "15001", "at most group.consumer.max.heartbeat.interval.ms=15000"),
        (HEARTBEAT, "4999", "at least group.consumer.min.heartbeat.interval.ms=5000"),
        (SESSION, "soon", "an integer"),
        ("share.session.timeout.ms", "50000", "of share groups, and there are none"),
        ("consumer.sesion.timeout.ms", "50000", "did you mean consumer.session.timeout.ms"),
    ],
)
def test_value_out_of_bounds_and_unknown_name_are_refused(name: str, text: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        alter({HEARTBEAT: "6000", name: text})
    assert refused.value.code is Code.INVALID_CONFIG


def test_session_has_to_be_longer_than_a_heartbeat_interval() -> None:
    narrow = replace(SETTINGS, group_consumer_min_session_timeout_ms=1_000)
    with pytest.raises(Refused, match=f"{SESSION}=5000: it must be greater than {HEARTBEAT}=5000"):
        alter_configs(IMAGE, narrow, AlterGroupConfigs("g", {SESSION: "5000"}))


def test_settings_of_groups_wait_for_brokers_of_an_earlier_program() -> None:
    older = Image().apply([FeatureLevelSet(METADATA_VERSION, GROUP_CONFIGS - 1)])
    with pytest.raises(Refused, match=rf"set them from tiered.metadata.version={GROUP_CONFIGS} on"):
        alter({SESSION: "50000"}, older)


@pytest.mark.parametrize("group", ["", "g" * 1_025])
def test_name_of_a_group_has_a_bound(group: str) -> None:
    with pytest.raises(Refused) as refused:
        alter({SESSION: "50000"}, group=group)
    assert refused.value.code is Code.INVALID_REQUEST


def test_number_of_groups_with_settings_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_configs, "GROUPS_MAX", 2)
    changes: list[Change] = [GroupConfigChanged(each, {SESSION: "50000"}) for each in ("g", "h")]
    image = IMAGE.apply(changes)
    with pytest.raises(Refused) as refused:
        alter({SESSION: "50000"}, image, "i")
    assert refused.value.code is Code.POLICY_VIOLATION
    assert alter({SESSION: "55000"}, image).changes and alter({SESSION: None}, image).changes
