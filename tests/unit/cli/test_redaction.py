"""Tests of the secrets that no bundle has, wherever users put them."""

from __future__ import annotations

import pytest

from tiered.security.secret import HIDDEN
from tiered_api.cli.debug.redaction import hide_json, hide_text


@pytest.mark.parametrize(
    "line",
    [
        "login failed password=hunter2, host=x",
        "set ssl.key.password: hunter2",
        "client.secret='hunter2' and more",
        '{"sasl.jaas.config": "hunter2"}',
        "Authorization: Basic hunter2hunter2",
        "got header Bearer hunter2hunter2",
        "store https://user:hunter2@bucket.example/x",
        "AWS_SECRET_ACCESS_KEY=hunter2",
    ],
)
def test_values_whose_names_say_that_they_are_secret_are_hidden(line: str) -> None:
    found = hide_text(line)
    assert "hunter2" not in found and HIDDEN in found


@pytest.mark.parametrize(
    "line",
    [
        "INFO tiered.broker broker serves kafka=127.0.0.1:9092 partitions=3",
        "mend the bucket, its credentials or the network: uploads then go on by themselves",
        "store s3://bucket/prefix unreachable",
    ],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert hide_text(line) == line


def test_secret_settings_in_json_are_hidden_with_their_other_sources() -> None:
    row = {"name": "ssl.key.password", "value": "a", "synonyms": [{"name": "ssl.key.password", "value": "b"}]}
    assert hide_json([row]) == [
        {
            "name": "ssl.key.password",
            "value": HIDDEN,
            "synonyms": [{"name": "ssl.key.password", "value": HIDDEN}],
        }
    ]
    plain = {"name": "retention.ms", "value": "5", "lag": 3, "credential": None}
    assert hide_json(plain) == plain
    assert hide_json({"client_secret": {"a": 1}}) == {"client_secret": HIDDEN}
