"""Registration: versions and ids, imports, references, and decisions on a state that has changed (I37)."""

from __future__ import annotations

import pytest

from tests.unit.registry.registry import Registry
from tiered.registry import registration
from tiered.registry.records import MODE, write_rule, write_version
from tiered.registry.refusals import INCOMPATIBLE, INVALID_SCHEMA, NOT_PERMITTED, RegistryRefused
from tiered.registry.registration import Registration, decide, pin_references, plan, resolve
from tiered.registry.schema import Reference, Schema


def place(registry: Registry, subject: str, text: str) -> tuple[int, int]:
    written = registry.register(subject, text)
    return written.version, written.id


def test_equal_schemas_of_a_context_have_one_id() -> None:
    registry = Registry()
    assert place(registry, "a", "x") == (1, 1)
    assert place(registry, "a", "y") == (2, 2)
    assert place(registry, "b", "x") == (1, 1)
    assert place(registry, "a", "x") == (1, 1), "nothing is registered twice"
    assert len(registry.log) == 3
    assert place(registry, ":.other:a", "y") == (1, 1), "each context counts its own ids"


def test_soft_deleted_schema_gets_a_new_version_and_its_old_id() -> None:
    registry = Registry()
    place(registry, "a", "x")
    registry.delete("a")
    assert place(registry, "a", "x") == (2, 1)
    assert [each.version for each in registry.state.live_versions("a", deleted=True)] == [2]


def test_decision_is_none_after_another_registration_in_its_subject() -> None:
    registry = Registry()
    place(registry, "a", "x")
    wanted = Registration("a", Schema("z", "JSON"))
    made = plan(registry.state, wanted)
    place(registry, "a", "y")
    assert decide(registry.state, wanted, made, []) is None
    assert decide(registry.state, wanted, plan(registry.state, wanted), []) is not None


def test_decision_returns_the_version_that_another_broker_registered() -> None:
    registry = Registry()
    wanted = Registration("a", Schema("x", "JSON"))
    made = plan(registry.state, wanted)
    place(registry, "a", "x")
    done = decide(registry.state, wanted, made, ["differs"])
    assert done is not None and (done.written.id, done.records) == (1, ())


def test_incompatible_schema_is_refused_with_the_reason() -> None:
    registry = Registry()
    place(registry, "a", "x")
    wanted = Registration("a", Schema("y", "JSON"))
    with pytest.raises(RegistryRefused, match="lacks a default") as refused:
        decide(registry.state, wanted, plan(registry.state, wanted), ["field b lacks a default"])
    assert refused.value.error_code == INCOMPATIBLE


def test_import_keeps_ids_and_versions_and_refuses_a_taken_id() -> None:
    registry = Registry([write_rule(MODE, "", {"mode": "IMPORT"})])
    assert registry.register("a", "x", id=40, version=7)[1:3] == (7, 40)
    assert registry.register("b", "x", id=41, version=2)[1:3] == (2, 41), "an import may have two ids of one schema"
    with pytest.raises(RegistryRefused, match="Overwrite new schema with id 40") as refused:
        registry.register("a", "y", id=40, version=8)
    assert refused.value.error_code == NOT_PERMITTED
    registry.append([write_rule(MODE, "", None)])
    assert registry.register("a", "z")[1:3] == (8, 42)
    with pytest.raises(RegistryRefused, match="not in import mode"):
        registry.register("a", "w", id=50)


@pytest.mark.parametrize("scope", ["", "a"])
def test_read_only_subject_takes_no_schema_and_shows_what_it_has(scope: str) -> None:
    registry = Registry()
    place(registry, "a", "x")
    registry.append([write_rule(MODE, scope, {"mode": "READONLY"})])
    assert place(registry, "a", "x") == (1, 1)
    with pytest.raises(RegistryRefused, match="read-only"):
        place(registry, "a", "y")
    with pytest.raises(RegistryRefused, match="read-only"):
        registry.delete("a")


def test_full_registry_refuses_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    place(registry, "a", "x")
    monkeypatch.setattr(registration, "BYTES_MAX", 10)
    with pytest.raises(RegistryRefused, match="The registry is full"):
        place(registry, "a", "y" * 10)
    monkeypatch.setattr(registration, "VERSIONS_MAX", 1)
    with pytest.raises(RegistryRefused, match="The registry is full"):
        place(registry, "a", "z")


def test_versions_of_a_subject_and_of_a_comparison_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.set_level("FULL_TRANSITIVE")
    for text in ("a" * 10, "b" * 10, "c" * 10):
        registry.register("s", text)
    monkeypatch.setattr(registration, "COMPARED_BYTES_MAX", 29)
    with pytest.raises(RegistryRefused, match="Level FULL_TRANSITIVE compares 3 versions"):
        registry.register("s", "d")
    monkeypatch.setattr(registration, "COMPARED_BYTES_MAX", 30)
    monkeypatch.setattr(registration, "COMPARED_VERSIONS_MAX", 2)
    with pytest.raises(RegistryRefused, match="Level FULL_TRANSITIVE compares 3 versions"):
        registry.register("s", "d")
    registry.set_level("FULL")
    assert registry.register("s", "d").version == 4
    monkeypatch.setattr(registration, "SUBJECT_VERSIONS_MAX", 4)
    with pytest.raises(RegistryRefused, match="Subject s has 4 versions") as refused:
        registry.register("s", "e")
    assert refused.value.error_code == NOT_PERMITTED
    assert registry.register("s", "d").version == 4 and registry.register("t", "e").version == 1


def test_references_are_resolved_before_those_that_need_them() -> None:
    registry = Registry()
    registry.register("base", "b1")
    registry.register("middle", "m1", Reference("base.json", "base", 1))
    registry.register("base", "b2")
    top = Schema("t", "JSON", (Reference("m.json", "middle", 1), Reference("latest.json", "base", -1)))
    pinned = pin_references(registry.state, "top", top)
    assert [each.version for each in pinned.references] == [1, 2]
    found = resolve(registry.state, "top", pinned).references
    assert [(name, each.text) for name, each in found] == [("base.json", "b1"), ("m.json", "m1"), ("latest.json", "b2")]


def test_reference_that_leads_nowhere_is_refused() -> None:
    wanted = Schema("t", "JSON", (Reference("x", "absent", 3),))
    with pytest.raises(RegistryRefused, match='subject "absent" and version 3') as refused:
        resolve(Registry().state, "top", wanted)
    assert refused.value.error_code == INVALID_SCHEMA


def test_references_in_a_circle_are_refused() -> None:
    """No registration can make a circle; records that somebody writes can."""
    registry = Registry(
        [
            write_version("a", 1, 1, Schema("a", "JSON", (Reference("b", "b", 1),))),
            write_version("b", 1, 2, Schema("b", "JSON", (Reference("a", "a", 1),))),
        ]
    )
    with pytest.raises(RegistryRefused, match="in a circle"):
        resolve(registry.state, "top", Schema("t", "JSON", (Reference("a", "a", 1),)))


def test_long_chain_of_references_ends_at_its_bound() -> None:
    registry = Registry()
    registry.register("s0", "0")
    for n in range(1, registration.REFERENCES_MAX + 1):
        registry.register(f"s{n}", str(n), Reference("r", f"s{n - 1}", 1))
    last = registration.REFERENCES_MAX
    assert (
        len(resolve(registry.state, "t", Schema("t", "JSON", (Reference("r", f"s{last - 1}", 1),))).references) == last
    )
    with pytest.raises(RegistryRefused, match="too many schemas"):
        resolve(registry.state, "t", Schema("t", "JSON", (Reference("r", f"s{last}", 1),)))


def test_reference_means_a_subject_of_the_context_of_its_referrer() -> None:
    registry = Registry()
    registry.register("base", "outer")
    registry.register(":.c:base", "inner")
    schema = Schema("t", "JSON", (Reference("r", "base", 1),))
    assert resolve(registry.state, ":.c:top", schema).references[0][1].text == "inner"
    assert resolve(registry.state, "top", schema).references[0][1].text == "outer"
