"""Requests to the controller and its replies as bytes, sent from one broker to another.

JSON; every value that is not plain names its kind. Both sides are strict. An unknown kind, a missing or extra field or
a value of another type is `Corrupt`. So a message of another version is refused as a whole and never understood in
part. Fields above the level of `tiered.metadata.version` are left out, so that brokers of an earlier program understand
the message. Such a field may be missing, and is 0 or empty then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from tiered.controller import requests
from tiered.controller.requests import Request
from tiered.errors import Code, Corrupt, Refused
from tiered.metadata.changes import (
    AclAdded,
    AclRemoved,
    DelegationTokenSet,
    ListEdit,
    ProducerIdsAllocated,
    ScramCredentialSet,
)
from tiered.metadata.features import FIELDS_SINCE, HIGHEST_METADATA_VERSION, PROCESSES
from tiered.metadata.parts.topics import DeletedTopic, End, Loss, PartitionImage, TopicImage

DEPTH_MAX = 16
_PLAIN = (str, int, float, bool, type(None))
"""Numbers with fractions are finite: JSON has no others."""
_NESTED = (
    ListEdit,
    requests.ReplicaEnd,
    requests.AdoptedReplicas,
    requests.AwaitedEnd,
    requests.InSync,
    requests.IsrChange,
    requests.Move,
    requests.StoredEnd,
    requests.FeatureUpdate,
    requests.AclChoice,
    AclAdded,
    requests.ScramDeletion,
    ScramCredentialSet,
    requests.QuotaAlteration,
)
_REPLIES = (
    TopicImage,
    PartitionImage,
    Loss,
    End,
    DeletedTopic,
    ProducerIdsAllocated,
    AclRemoved,
    DelegationTokenSet,
    requests.QuorumObserver,
    requests.Quorum,
)
_OLD_NAMES: dict[type[Any], str] = {requests.IsrChange: "IsrWish"}
"""Classes with a new name. Messages between brokers of all versions have the old one."""
KINDS: dict[str, type[Any]] = {
    _OLD_NAMES.get(kind, kind.__name__): kind for kind in (*get_args(Request), *_NESTED, *_REPLIES)
}


def encode_request(request: Request, level: int = HIGHEST_METADATA_VERSION) -> bytes:
    """Returns a request as bytes for `decode_request`, with the fields of a level.

    The registration of a process names its machine at each level: a controller that does not know it must refuse it,
    and a new cluster has no level yet.
    """
    if isinstance(request, requests.RegisterBroker) and (request.process or request.adopted):
        level = max(level, PROCESSES)
    return orjson.dumps(_to_plain(request, level))


def decode_request(body: bytes) -> Request:
    """Returns the request in `body`, with lists as tuples. Raises `Corrupt` if this version knows no such request."""
    decoded = _decode(body)
    if not isinstance(decoded, get_args(Request)):
        raise Corrupt(f"{type(decoded).__name__} is no request")
    known: Request = decoded
    return known


def encode_reply(reply: object, level: int = HIGHEST_METADATA_VERSION) -> bytes:
    """Returns the controller's reply as bytes for `decode_reply`, with the fields of a level."""
    return orjson.dumps(_to_plain(reply, level))


def decode_reply(body: bytes) -> Any:
    """Returns the reply in `body`, of the type that its request names. Raises `Corrupt` if it is no reply."""
    return _decode(body)


def _to_plain(value: object, level: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    kind_name = _OLD_NAMES.get(kind, kind.__name__)
    known: Any = KINDS.get(kind_name)
    if known == kind:
        since = FIELDS_SINCE.get(kind_name, {})
        named = (name for name in _field_checks(known) if since.get(name, 0) <= level)
        return {"kind": kind_name} | {name: _to_plain(getattr(value, name), level) for name in named}
    if isinstance(value, Code):
        return {"kind": "Code", "of": value.name}
    if isinstance(value, Refused):
        return {"kind": "Refused", "code": value.code.name, "why": value.why}
    if isinstance(value, Mapping):
        return {"kind": "map", "of": {name: _to_plain(each, level) for name, each in value.items()}}
    if isinstance(value, tuple | list):
        return [_to_plain(each, level) for each in value]
    raise TypeError(f"{kind.__name__} is not part of any message between brokers")


def _decode(body: bytes) -> Any:
    try:
        return _from_plain(orjson.loads(body), DEPTH_MAX)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"not a message between brokers: {error}") from None


def _from_plain(data: Any, depth: int) -> Any:
    if depth == 0:
        raise Corrupt(f"a message between brokers is nested deeper than {DEPTH_MAX}")
    if isinstance(data, list):
        return tuple(_from_plain(each, depth - 1) for each in data)
    if not isinstance(data, dict):
        if type(data) not in _PLAIN:
            raise Corrupt(f"a message between brokers holds {data!r}")
        return data
    name = data.pop("kind", None)
    match name, data:
        case "map", {"of": dict(of), **rest} if not rest:
            return {key: _from_plain(each, depth - 1) for key, each in of.items()}
        case "Code", {"of": str(code), **rest} if not rest:
            return _code(code)
        case "Refused", {"code": str(code), "why": str(why), **rest} if not rest:
            return Refused(_code(code), why)
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise Corrupt(f"unknown kind between brokers: {str(name)[:60]!r}")
    return _build(kind, {key: _from_plain(each, depth - 1) for key, each in data.items()})


def _build(kind: Any, given: dict[str, Any]) -> Any:
    fits = _field_checks(kind)
    empty = _empty_fields(kind)
    if not fits.keys() - empty.keys() <= given.keys() <= fits.keys():
        raise Corrupt(f"{kind.__name__} between brokers has the fields {sorted(given)}")
    for name, value in given.items():
        if not fits[name](value):
            raise Corrupt(f"{kind.__name__}.{name} between brokers is a {type(value).__name__} that does not fit")
    return kind(**{**empty, **given})


def _code(name: str) -> Code:
    if name not in Code.__members__:
        raise Corrupt(f"unknown error code between brokers: {name[:60]!r}")
    return Code[name]


@cache
def _empty_fields(kind: Any) -> dict[str, Any]:
    """Returns the values of the fields above level 0, as a program has them that does not know the fields."""
    hints = get_type_hints(kind)
    return {name: hints[name]() for name in FIELDS_SINCE.get(kind.__name__, ())}


@cache
def _field_checks(kind: Any) -> dict[str, Callable[[Any], bool]]:
    """Returns the fields of a kind, each with the check of its value."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else list(kind._fields)
    hints = get_type_hints(kind)
    return {name: _type_check(hints[name]) for name in names}


def _type_check(hint: Any) -> Callable[[Any], bool]:
    """Returns the check that a value has the annotated type. Knows only the annotations that occur here."""
    hint = getattr(hint, "__supertype__", hint)  # TopicId is a str
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        any_of = [_type_check(each) for each in inner]
        return lambda value: any(fits(value) for fits in any_of)
    if origin is Mapping:
        of = _type_check(inner[1])
        return lambda value: type(value) is dict and all(of(each) for each in value.values())
    if origin is Sequence or (origin is tuple and inner[-1] is ...):
        item = _type_check(inner[0])
        return lambda value: type(value) is tuple and all(item(each) for each in value)
    if origin is tuple:
        items = [_type_check(each) for each in inner]
        return lambda value: (
            type(value) is tuple
            and len(value) == len(items)
            and all(fits(each) for fits, each in zip(items, value, strict=True))
        )
    assert isinstance(hint, type) and origin is None, hint
    return lambda value: type(value) is hint  # True is no int here
