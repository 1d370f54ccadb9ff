"""Tests that no route with a JSON body is left out of the rules for fields, and of the tests of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.http_bodies import BODIES, Schema
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.schemas import BODIES as SCHEMAS
from tiered_api.http.exchange.schemas import CONSUMER_V2, names
from tiered_api.http.server.openapi import openapi_document
from tiered_api.http.server.routes import table
from tiered_api.http.v2.consumers import CONFIG_FIELDS, NAME_ALIASES

ROUTES = [route for route in table().routes if set(route.request_types) - {media_types.BINARY}]


def _objects(schema: Schema) -> Iterator[Schema]:
    """Yields the schemas of all objects of a body."""
    if schema.get("type") == "object":
        yield schema
    inside = [*schema.get("properties", {}).values(), *schema.get("oneOf", ())]
    for each in (*inside, *([schema["items"]] if "items" in schema else [])):
        yield from _objects(each)


def _fields(value: Any, schema: Schema, place: str = "") -> Iterator[str]:
    """Yields the places of the fields that a body has."""
    for name, each in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            yield f"{place}.{name}"
            yield from _fields(value[name], each, f"{place}.{name}")
    for each in value if isinstance(value, list) else ():
        yield from _fields(each, schema.get("items", {}), place)


def _all_fields(schema: Schema, place: str = "") -> Iterator[str]:
    for name, each in schema.get("properties", {}).items():
        yield f"{place}.{name}"
        yield from _all_fields(each.get("items", each), f"{place}.{name}")


def test_every_route_with_a_json_body_is_in_the_test_of_faulty_bodies() -> None:
    assert {(route.method, route.path) for route in ROUTES} == {(body.method, body.route) for body in BODIES}


@pytest.mark.parametrize("name", SCHEMAS)
def test_test_bodies_have_every_field_of_their_schema(name: str) -> None:
    paths = {(route.method, route.path) for route in ROUTES if route.request_schema == name}
    found = {
        place for each in BODIES if (each.method, each.route) in paths for place in _fields(each.body, SCHEMAS[name])
    }
    without_effect = {"key_schema", "key_schema_id", "value_schema", "value_schema_id"}
    without_effect |= {  # tests/e2e/test_http_schemas.py has them: not all of them go together
        f"{place}{part}.{each}"
        for place in ("", "entries.")
        for part in ("key", "value")
        for each in ("schema", "schema_id", "schema_version", "subject", "subject_name_strategy")
    }
    aliases = NAME_ALIASES if name == "ConsumerV2" else ()
    wanted = {place for place in _all_fields(SCHEMAS[name]) if place[1:] not in {*without_effect, *aliases}}
    assert found == wanted


def test_document_allows_no_other_fields_in_any_object_of_a_body() -> None:
    document = openapi_document(table().routes)
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        shapes = [each["schema"]["$ref"].rpartition("/")[2] for each in operation["requestBody"]["content"].values()]
        for shape in shapes:
            objects = list(_objects(document["components"]["schemas"][shape]))
            assert objects, (route.path, shape)
            for each in objects:
                assert each["additionalProperties"] is False or "properties" not in each, (route.path, each)


def test_settings_of_a_consumer_are_those_of_its_schema() -> None:
    assert set(names(CONSUMER_V2)) == {"name", *CONFIG_FIELDS, *NAME_ALIASES}
