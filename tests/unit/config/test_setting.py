"""Tests of the normal form of settings: texts are read as Kafka reads them, and each value has one text."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.peer.setting_texts import OURS, TEXTS, SettingText
from tests.refusal import refuses
from tiered.config.setting import SettingRow, split_words, text_of
from tiered.config.settings import Settings, TopicConfig, broker_rows, topic_rows
from tiered.errors import Code, Refused
from tiered.security.secret import Secret


@pytest.mark.parametrize("each", [*TEXTS, *OURS], ids=lambda each: f"{each.name}={each.text[:40]!r}")
def test_text_has_the_normal_form_that_kafka_shows(each: SettingText) -> None:
    row = topic_rows().get(each.name)
    if each.shown is None:
        with refuses(Code.INVALID_CONFIG):
            TopicConfig.from_strings({each.name: each.text})
    else:
        assert row is not None and row.normalize(each.text) == each.shown
        assert TopicConfig.from_strings({each.name: each.text}).to_strings()[each.name] == each.shown


def test_normal_form_of_each_default_is_itself() -> None:
    for row in (*topic_rows().values(), *broker_rows().values()):
        if not row.secret:
            assert row.normalize(text_of(row.default)) == text_of(row.default), row.name


ROWS = [*topic_rows().values(), *broker_rows().values()]
TEXT_OF_ANY_KIND = st.one_of(
    st.text("+-_0123456789.eEfdxX, \u00a0\u0665", max_size=12),
    st.text("+-0123456789", min_size=1, max_size=20),
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.lists(st.sampled_from(["delete", "compact", " delete", "", "0:1", "*", "true", "None"]), max_size=4).map(
        ",".join
    ),
)


@given(st.sampled_from(ROWS), TEXT_OF_ANY_KIND)
def test_normal_form_is_stable_and_has_the_same_value(row: SettingRow, text: str) -> None:
    """A value that a broker stores is stored again unchanged by whoever copies it, and by a later start.

    Earlier releases cut more blanks from the ends: `test_secret_is_normalized_and_not_hidden`.
    """
    assume(text.strip() == text.strip("".join(map(chr, range(0x21)))))
    try:
        normal = row.normalize(text)
    except Refused:
        return
    assert row.parse(normal) == row.parse(text)
    assert row.normalize(normal) == row.normalize_stored(normal) == row.normalize_stored(text) == normal


def test_secret_is_normalized_and_not_hidden() -> None:
    row = broker_rows()["delegation.token.secret.key"]
    assert row.normalize(" s3cret\u00a0 ") == row.normalize_stored("s3cret\u00a0") + "\u00a0" == "s3cret\u00a0"
    assert row.parse(" s3cret ") == Secret("s3cret")


@pytest.mark.parametrize(
    ("name", "stored", "shown"),
    [
        ("retention.ms", "1_000", "1000"),
        ("retention.ms", "\u00a05000", "5000"),
        ("min.cleanable.dirty.ratio", "0_0.5", "0.5"),
        ("cleanup.policy", "compact,", "compact"),
        ("cleanup.policy", ",", ""),
        ("unclean.leader.election.enable", "\u00a0TRUE", "true"),
        ("retention.ms", "+1000", "1000"),
        ("segment.bytes", "12", "1048576"),
        ("segment.bytes", "much", "much"),
        ("max.message.bytes", "9" * 5000, "9" * 5000),
    ],
)
def test_stored_text_of_earlier_releases_is_read_as_they_read_it(name: str, stored: str, shown: str) -> None:
    """A text without a value stays: the topic that has it is refused where it is opened, as before. A number that was
    allowed once, and is too small now, counts as the least one."""
    assert topic_rows()[name].normalize_stored(stored) == shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b", ("a", "b")),
        (" a , b ", ("a", "b")),
        ("a,", ("a",)),
        (",", ()),
        ("", ("",)),
        (" ", ("",)),
        (",a", ("", "a")),
        ("a,,b", ("a", "", "b")),
    ],
)
def test_words_of_an_edit_are_split_as_by_java(text: str, words: tuple[str, ...]) -> None:
    assert split_words(text) == words


def test_numbers_have_javas_form() -> None:
    for number, text in ((1e7, "1.0E7"), (123.0, "123.0"), (2.0**63, "9.223372036854776E18"), (-2.5e-9, "-2.5E-9")):
        assert text_of(number) == text


def test_broker_settings_are_read_by_the_same_rule() -> None:
    settings = Settings.from_strings(
        {
            "log.cleanup.policy": "compact , delete,compact",
            "log.retention.hours": " +2 ",
            "log.preallocate": "TRUE",
            "max.connections.per.ip.overrides": "127.0.0.1:5,127.0.0.1:5,",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,",
        }
    )
    assert settings.log_cleanup_policy == ("compact", "delete") and settings.log_retention_ms == 7_200_000
    assert settings.log_preallocate and settings.max_connections_per_ip_overrides == ("127.0.0.1:5",)
    for name, text in (("log.retention.hours", "1_0"), ("listeners", "PLAINTEXT://:1,"), ("log.cleanup.policy", ",")):
        with pytest.raises(Refused):
            Settings.from_strings({name: text})


def test_refusal_of_an_empty_word_says_so() -> None:
    with pytest.raises(Refused, match=r"^cleanup.policy=compact,: no word between its commas may be empty$"):
        TopicConfig.from_strings({"cleanup.policy": "compact,"})


def test_row_of_free_words_keeps_their_order() -> None:
    assert SettingRow("words", (), "").normalize("b, a,b") == "b,a"
