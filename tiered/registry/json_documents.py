"""JSON Schema: documents, and what the references in them name."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import unquote

from tiered.registry.refusals import invalid_schema

STEPS_MAX = 60
_OPAQUE = ("http://json-schema.org/", "https://json-schema.org/")
"""References to the schemas of JSON Schema itself: they permit whatever they permit, on both sides."""


class Document(NamedTuple):
    """A parsed schema, and those that it refers to, by the names of the references."""

    root: Any
    others: dict[str, Any]


class Place(NamedTuple):
    """A schema inside a document. `root` is the document that its references begin at."""

    schema: Any
    root: Any


def check_references(document: Document, base: Any) -> None:
    """Raises `RegistryRefused` if a reference in a document leads nowhere."""
    left = [base]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            named = each.get("$ref")
            if isinstance(named, str):
                resolve(document, Place(each, base))
            left += each.values()
        elif isinstance(each, list):
            left += each


def resolve(document: Document, place: Place) -> Place:
    """Returns what the `$ref` of a schema names, through further references. Raises `RegistryRefused`."""
    for _ in range(STEPS_MAX):
        named = place.schema.get("$ref") if isinstance(place.schema, dict) else None
        if not isinstance(named, str) or named.startswith(_OPAQUE):
            return place
        place = _follow(document, place, named)
    raise invalid_schema("a $ref leads in a circle")


def _follow(document: Document, place: Place, named: str) -> Place:
    name, _, pointer = named.partition("#")
    root = place.root
    own = root.get("$id") if isinstance(root, dict) else None
    if name and name != own:
        if name not in document.others:
            raise invalid_schema(f"$ref {named[:100]!r} leads nowhere: the schema has no reference of that name")
        root = document.others[name]
    found = root
    if pointer and not pointer.startswith("/"):
        return Place(_find_anchor(root, pointer, named), root)
    for raw in pointer.split("/")[1:]:
        step = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isascii() and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        else:
            raise invalid_schema(f"$ref {named[:100]!r} leads nowhere")
    return Place(found, root)


def _find_anchor(root: Any, anchor: str, named: str) -> Any:
    left = [root]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if each.get("$anchor") == anchor or each.get("$id") == f"#{anchor}":
                return each
            left += each.values()
        elif isinstance(each, list):
            left += each
    raise invalid_schema(f"$ref {named[:100]!r} leads nowhere")
