"""`Idempotency-Key`: a produce request that is sent again writes nothing (IETF draft httpapi-idempotency-key).

The key becomes the producer id of the batches that the request writes, and a hash of the request becomes their epoch
and first sequence. So the proof that the key was used is in the log with the records: the leader finds the batch as it
finds a batch that an idempotent producer sends again. docs/internals/decisions has the reasons.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tiered.ids import KEYED_FROM, TopicId
from tiered.producers.entry import SEQUENCE_MAX
from tiered.replication.leader_replica import LeaderReplica
from tiered.security.principal import ANONYMOUS, Principal
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import KEY_IN_USE, KEY_REUSED, HttpError
from tiered_api.http.exchange.request import HttpRequest

HEADER = "Idempotency-Key"
KEY_CHARACTERS = 255
EPOCH_MAX = (1 << 15) - 1
_NUMBER, _EPOCH_AND_SEQUENCE = struct.Struct(">Q"), struct.Struct(">HI")
USED_MAX = 10_000
"""Keys that this broker remembers beside the log, to refuse another request before it writes anything."""


class IdempotencyKey(NamedTuple):
    """The key of one request, as the producer of its batches."""

    topic_id: TopicId
    producer_id: int
    producer_epoch: int
    base_sequence: int


class IdempotencyKeys:
    """The keys that requests of this broker use now, and those that they used last."""

    def __init__(self, context: HttpContext) -> None:
        self._mono_ns = context.clock.mono_ns
        self._broker = context.broker
        self._in_use: set[tuple[TopicId, int]] = set()
        self._used: OrderedDict[tuple[TopicId, int], tuple[IdempotencyKey, int]] = OrderedDict()
        """The last request of each key with the time of its write, the oldest one first."""

    @contextmanager
    def use(self, key: IdempotencyKey) -> Iterator[None]:
        """Reserves the key for one request, after `check`."""
        self.check(key)
        place = key[:2]
        self._in_use.add(place)
        try:
            yield
        finally:
            self._in_use.discard(place)

    def check(self, key: IdempotencyKey) -> None:
        """Raises `HttpError` 409 if a request with this key is under way here, 422 if another request has used the key
        here."""
        place = key[:2]
        if place in self._in_use:
            why = "a request with this Idempotency-Key is still under way"
            raise HttpError(KEY_IN_USE, why, (("Retry-After", "1"),))
        known = self._used.get(place)
        if known is not None and known[0] != key:
            age_ms = (self._mono_ns() - known[1]) / 1e6
            if age_ms < self._broker.settings.producer_id_expiration_ms:
                raise reused_error()

    def mark_used(self, key: IdempotencyKey) -> None:
        """Notes that records with this key were written."""
        used, place = self._used, key[:2]
        used[place] = key, self._mono_ns()
        used.move_to_end(place)
        if len(used) > USED_MAX:
            used.popitem(last=False)


def reused_error() -> HttpError:
    """Returns the 422 of a request whose key another request has used."""
    return HttpError(KEY_REUSED, "this Idempotency-Key was used for another request: use a new key for each request")


def find_use(replica: LeaderReplica, key: IdempotencyKey) -> IdempotencyKey | None:
    """Returns the request that used the key in this partition, by its log. None if there is none."""
    producer = replica.log.producers.get(key.producer_id)
    if producer is None:
        return None
    sequence = producer.batches[-1].first_sequence if producer.batches else -1
    return key._replace(producer_epoch=producer.epoch, base_sequence=sequence)


def has_key(request: HttpRequest) -> bool:
    """True if the request has an idempotency key."""
    return HEADER in request.headers


async def find_key(request: HttpRequest, topic_id: TopicId, body: bytes | bytearray) -> IdempotencyKey | None:
    """Returns the key of a request, or None without one. Raises `HttpError` 400 if it is malformed."""
    values = request.headers.getall(HEADER, [])
    if not values:
        return None
    if len(values) > 1:
        raise HttpError(400, f"{HEADER} is repeated")
    name = key_owner(request.caller.principal) + parse_key(values[0])
    return await request.run_job(len(body), make_key, topic_id, name, address_of(request), body)


def key_owner(principal: Principal) -> str:
    """Returns the start of each key of a principal: keys of one mean nothing to others. No key has a NUL."""
    return f"{principal}\0" if principal != ANONYMOUS else ""


def address_of(request: HttpRequest) -> str:
    """Returns what a request means beside its body: the address and the type of the body."""
    return f"{request.target} {request.headers.get('Content-Type', '')}"


def parse_key(text: str) -> str:
    """Returns the key in a header: a quoted string, as the draft says, or the bare key."""
    name = text.strip()
    if name.startswith('"'):
        name = _unquote(name)
    if not 0 < len(name) <= KEY_CHARACTERS or not (name.isascii() and name.isprintable()):
        raise HttpError(400, f"{HEADER} has to be 1 to {KEY_CHARACTERS} printable ASCII characters")
    return name


def _unquote(text: str) -> str:
    inner, out, at = text[1:-1], [], 0
    if len(text) < 2 or not text.endswith('"'):
        raise HttpError(400, f"{HEADER} begins with a quote and does not end with one")
    if '"' not in inner and "\\" not in inner:
        return inner
    while at < len(inner):
        if inner[at] == "\\":
            at += 1
            if inner[at : at + 1] not in ('"', "\\"):
                raise HttpError(400, f"{HEADER} has a backslash that stands before neither quote nor backslash")
        elif inner[at] == '"':
            raise HttpError(400, f"{HEADER} is not one quoted string")
        out.append(inner[at])
        at += 1
    return "".join(out)


def make_key(topic_id: TopicId, name: str, address: str, body: bytes | bytearray) -> IdempotencyKey:
    """Returns the key `name` of a request."""
    (number,) = _NUMBER.unpack_from(hashlib.sha256(b"key\0" + name.encode()).digest())
    content = hashlib.sha256(b"request\0" + address.encode() + b"\0")
    content.update(body)
    epoch, sequence = _EPOCH_AND_SEQUENCE.unpack_from(content.digest())
    return IdempotencyKey(topic_id, KEYED_FROM | number & (KEYED_FROM - 1), epoch & EPOCH_MAX, sequence & SEQUENCE_MAX)
