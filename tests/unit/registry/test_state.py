"""The fold of `_schemas`: bookkeeping of ids under random histories, and look-ups."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.registry.registry import Registry
from tiered.registry.refusals import INVALID_VERSION, RegistryRefused
from tiered.registry.state import LATEST, parse_version
from tiered.registry.subjects import context_of

SUBJECTS = ("a", "b", ":.c:a")
ACTS = st.tuples(
    st.sampled_from(["register", "register", "delete", "erase", "delete one", "erase one"]),
    st.sampled_from(SUBJECTS),
    st.sampled_from("xyz"),
    st.integers(1, 4),
)


@given(st.lists(ACTS, max_size=30))
def test_ids_of_any_history_stand_for_one_schema_each(acts: list[tuple[str, str, str, int]]) -> None:
    registry, ever = Registry(), dict[tuple[str, int], str]()
    for act, subject, text, version in acts:
        if act == "register":
            written = registry.register(subject, text)
            place = (context_of(subject), written.id)
            assert ever.setdefault(place, text) == text, "an id stands for one schema for ever"
        else:
            with suppress(RegistryRefused):
                registry.delete(subject, version if "one" in act else None, permanent="erase" in act)
        state, again = registry.state, registry.compact().state
        assert again.subjects == state.subjects and again.highest_ids() == state.highest_ids()
        versions = [each for subject in state.subjects.values() for each in subject.values()]
        texts = {(context_of(each.subject), each.id): each.schema for each in versions}
        assert state.versions == len(versions)
        assert state.bytes == sum(each.size for each in texts.values())
        for (context, id), schema in texts.items():
            assert (state.find_schema(context, id), state.find_id(context, schema)) == (schema, id)
            uses = state.find_uses(context, id, deleted=True)
            assert uses == sorted(
                (each.subject, each.version)
                for each in versions
                if (context_of(each.subject), each.id) == (context, id)
            )


def test_subjects_are_listed_by_context_and_prefix() -> None:
    registry = Registry()
    for subject in ("orders-value", "users-value", ":.c:orders-value"):
        registry.register(subject, "x")
    state = registry.state
    assert state.list_subjects(":*:") == [":.c:orders-value", "orders-value", "users-value"]
    assert state.list_subjects("") == ["orders-value", "users-value"]
    assert state.list_subjects(":.c:") == [":.c:orders-value"]
    assert state.list_subjects(":*:or") == [":.c:orders-value", "orders-value"]
    assert state.contexts() == [".", ".c"]


@pytest.mark.parametrize("text", ["0", "-2", "x", "", "99999999999", "1.0", "²"])
def test_version_of_a_path_is_a_number_or_latest(text: str) -> None:
    assert (parse_version("latest"), parse_version("-1"), parse_version("7")) == (LATEST, LATEST, 7)
    with pytest.raises(RegistryRefused) as refused:
        parse_version(text)
    assert refused.value.error_code == INVALID_VERSION
