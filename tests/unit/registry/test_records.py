"""The records of `_schemas`: Confluent's bytes, and records that nobody understands."""

from __future__ import annotations

import pytest

from tests.unit.registry.registry import Registry
from tiered.registry.records import (
    LEVEL,
    MODE,
    RuleSet,
    SubjectDeleted,
    VersionErased,
    delete_subject,
    erase_version,
    read_record,
    write_rule,
    write_version,
)
from tiered.registry.schema import Reference, Schema

EXPORT = (
    ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
    ('{"keytype":"NOOP","magic":0}', None),
    (
        '{"keytype":"SCHEMA","subject":"base-value","version":1,"magic":1}',
        '{"subject":"base-value","version":1,"id":7,"md5":"abc=","schema":"\\"int\\"","deleted":false}',
    ),
    (
        '{"keytype":"SCHEMA","subject":"top-value","version":2,"magic":1}',
        '{"subject":"top-value","version":2,"id":9,"schemaType":"JSON","references":[{"name":"base.json","subject":'
        '"base-value","version":1}],"schema":"{}","deleted":false}',
    ),
    ('{"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}', '{"tenant":"default","context":".c"}'),
    (
        '{"keytype":"SCHEMA","subject":":.c:s","version":1,"magic":1}',
        '{"subject":":.c:s","version":1,"id":1,"schema":"\\"long\\"","deleted":true}',
    ),
    ('{"keytype":"MODE","subject":"top-value","magic":0}', '{"subject":"top-value","mode":"READONLY"}'),
    ('{"keytype":"DELETE_SUBJECT","subject":"base-value","magic":0}', '{"subject":"base-value","version":1}'),
)
"""Records as Confluent's registry writes them."""


def test_export_of_another_registry_is_read() -> None:
    registry = Registry()
    for key, value in EXPORT:
        fact = read_record(key.encode(), None if value is None else value.encode())
        if fact is not None:
            registry.state.apply(fact)
    state = registry.state
    assert state.list_subjects(":*:", deleted=True) == [":.c:s", "base-value", "top-value"]
    assert state.list_subjects(":*:") == ["top-value"]
    assert state.find_schema(".", 9) == Schema("{}", "JSON", (Reference("base.json", "base-value", 1),))
    assert (state.next_id("."), state.next_id(".c")) == (10, 2)
    assert state.rules == {
        (LEVEL, ""): {"compatibilityLevel": "FULL"},
        (MODE, "top-value"): {"subject": "top-value", "mode": "READONLY"},
    }


def test_keys_have_the_bytes_of_confluent() -> None:
    schema = Schema('"int"')
    keys = [
        write_version("s", 1, 5, schema).key,
        delete_subject("s", 1).key,
        write_rule(LEVEL, "", {}).key,
        write_rule(MODE, "s", None).key,
    ]
    assert keys == [
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
        b'{"keytype":"CONFIG","subject":null,"magic":0}',
        b'{"keytype":"MODE","subject":"s","magic":0}',
    ]
    assert write_version("s", 1, 5, schema).value == (
        b'{"subject":"s","version":1,"id":5,"schema":"\\"int\\"","deleted":false}'
    )


def test_record_that_is_written_is_read_again() -> None:
    schema = Schema("{}", "JSON", (Reference("n", "s", 3),), '{"metadata":{"a":"b"}}')
    written = read_record(*write_version(":.c:s", 1, 5, schema, is_deleted=True))
    assert written == (":.c:s", 1, 5, schema, True)
    assert read_record(*erase_version("s", 4)) == VersionErased("s", 4)
    assert read_record(*delete_subject("s", 4)) == SubjectDeleted("s", 4)
    assert read_record(*write_rule(LEVEL, "s", None)) == RuleSet(LEVEL, "s", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"", None),
        (b"\xff", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"OTHER"}', b"{}"),
        (b'{"keytype":"NOOP","magic":0}', b'{"highestIds":[1]}'),
        (b'{"keytype":"NOOP","magic":0}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"","version":1}', b'{"id":1,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":-1,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":true,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1,"schema":"x","schemaType":"XML"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1,"schema":"x","references":[1]}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b"[1]"),
        (b'{"keytype":"CONFIG","subject":"s"}', b'"x"'),
    ],
)
def test_record_that_is_not_understood_says_nothing(key: bytes | None, value: bytes | None) -> None:
    assert read_record(key, value) is None
