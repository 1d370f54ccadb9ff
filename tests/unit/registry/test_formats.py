"""The formats by their names: checks of one schema against others, and libraries that are missing."""

from __future__ import annotations

import sys

import pytest

from tiered.registry.compatibility import plan_comparison
from tiered.registry.formats import check, find_format, make_canonical
from tiered.registry.refusals import INVALID_SCHEMA, RegistryRefused
from tiered.registry.registration import Plan, Resolved
from tiered.registry.schema import AVRO, JSON, Schema


def test_schema_is_checked_against_the_versions_of_a_plan() -> None:
    new, old = Resolved(Schema('"int"')), Resolved(Schema('"string"'))
    made = Plan(None, ((4, old),), plan_comparison("BACKWARD", 1))
    assert check(new, made) == [
        "new schema cannot read version 4: type_mismatch at /: reader type: int not compatible with writer type: string"
    ]
    assert check(old, made) == []
    assert check(Resolved(Schema("{}", JSON)), made) == ["version 4 has another schema type"]


def test_reference_of_another_format_is_refused() -> None:
    with pytest.raises(RegistryRefused, match="its reference 'x' has another schema type"):
        check(Resolved(Schema('"int"'), (("x", Schema("{}", JSON)),)), Plan(None))


def test_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RegistryRefused, match="there are AVRO, JSON, PROTOBUF"):
        find_format("XML")


@pytest.mark.parametrize("kind", [AVRO, JSON])
def test_format_without_its_library_says_what_to_install(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, library = {AVRO: ("avro", "avro.compatibility"), JSON: ("json_schema", "jsonschema.exceptions")}[kind]
    monkeypatch.delitem(sys.modules, f"tiered.registry.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(RegistryRefused, match=r"pip install 'tiered\[registry\]'") as refused:
        make_canonical(Schema("{}", kind), normalize=False)
    assert refused.value.error_code == INVALID_SCHEMA
