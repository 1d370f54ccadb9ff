"""One schema: its text, its format, and the schemas that it refers to by subject and version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

import orjson

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
KINDS = (JSON, PROTOBUF, AVRO)


class Reference(NamedTuple):
    """A schema that another one refers to. `name` is what its text calls it: a type in Avro, a file in Protobuf."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema in its canonical text. `extra` is the JSON of its metadata and rule set, which the registry only
    keeps."""

    text: str
    kind: str = AVRO
    references: tuple[Reference, ...] = ()
    extra: str = ""

    @property
    def fingerprint(self) -> bytes:
        """Sixteen bytes that equal schemas have in common."""
        what = orjson.dumps([self.kind, self.text, [list(each) for each in self.references], self.extra])
        return hashlib.sha256(what).digest()[:16]

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties in its metadata that are texts."""
        metadata = orjson.loads(self.extra).get("metadata") if self.extra else None
        found = metadata.get("properties") if isinstance(metadata, dict) else None
        if not isinstance(found, dict):
            return {}
        return {name: value for name, value in found.items() if isinstance(value, str)}

    @property
    def guid(self) -> str:
        """The fingerprint as a UUID."""
        return str(UUID(bytes=self.fingerprint))

    @property
    def size(self) -> int:
        """Characters that the schema takes, about."""
        return len(self.text) + len(self.extra) + sum(len(each.name) + len(each.subject) for each in self.references)
