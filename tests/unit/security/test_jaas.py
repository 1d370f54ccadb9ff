"""The value of `sasl.jaas.config`: Kafka's forms are read, and a refusal shows nothing of the value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Refused
from tiered.security.jaas import LoginModule, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required user_a="s3cret" user_bob="b,c;=";', {"user_a": "s3cret", "user_bob": "b,c;="}),
        (f"{PLAIN} REQUIRED\n  user=admin  // the user\n  password=a.b-c;", {"user": "admin", "password": "a.b-c"}),
        (f"{PLAIN} required /* none */ ;", {}),
        (f'{PLAIN} required p="a\\"b\\\\c";', {"p": 'a"b\\c'}),
        (f'{PLAIN} required "user_odd name"="x";', {"user_odd name": "x"}),
    ],
)
def test_login_module_is_read_with_its_options(text: str, options: dict[str, str]) -> None:
    module = parse_jaas(text)
    assert (module.name, module.short_name, module.options) == (PLAIN, "PlainLoginModule", options)
    assert "s3cret" not in repr(module) and "s3cret" not in f"{module}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        f"{PLAIN};",
        f'{PLAIN} password="s3cret";',
        f'{PLAIN} required password="s3cret"',
        f'{PLAIN} required password="s3cret;',
        f'{PLAIN} required password "s3cret";',
        f'{PLAIN} required password="s3cret" s3cret;',
        f'{PLAIN} required password="s3cret"; {PLAIN} required;',
        f"{PLAIN} required password=(s3cret);",
        f"{PLAIN} required s3cret==;",
    ],
)
def test_value_that_does_not_parse_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_jaas(text)
    assert refused.value.why.startswith("sasl.jaas.config: ") and "s3cret" not in refused.value.why


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=3))
def test_every_quoted_option_is_read_as_it_was_written(options: dict[str, str]) -> None:
    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    written = " ".join(f"{quote(key)}={quote(value)}" for key, value in options.items())
    assert parse_jaas(f"{PLAIN} required {written};") == LoginModule(PLAIN, options)
