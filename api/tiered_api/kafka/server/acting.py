"""TieredActFor (20006): a broker sends requests of HTTP for a client, and this broker judges the client.

Only a broker may name another caller. It proves itself by the credential in the request, or by its login. The principal
of the connection stays the same. The next TieredActFor is judged by this principal, and not by the caller that the
broker acts for.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

from tiered.errors import Code, Refused
from tiered.security.acls import TEXT_MAX
from tiered.security.principal import Caller, Principal
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import RequestHeader, decode_request_header, encode_response_header
from tiered_api.kafka.protocol.messages.tiered_act_for import TieredActForRequest, TieredActForResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.login import LoginConnection
from tiered_api.kafka.server.rights.inter_broker_auth import authorize_call, refusal_text
from tiered_api.kafka.server.slots.socket_writer import Part

TIERED_ACT_FOR = 20006
_SIZE = Struct(">i")


class ActingConnection(LoginConnection, Protocol):
    """A connection whose requests may come from other callers than the one that it has proved."""

    caller: Caller
    is_acting: bool
    """True if a broker sends requests of its HTTP clients."""

    def act_for(self, caller: Caller) -> None:
        """Serves the requests that follow as those of this caller."""


def handle_act_for(context: KafkaContext, connection: ActingConnection, frame: memoryview) -> Sequence[Part] | None:
    """Changes the caller of a broker's connection. A refusal changes nothing."""
    header = decode_request_header(frame)
    if header.api is None:
        connection.refuse("unsupported", f"api {header.key} version {header.version}")
        return None
    context.requests[header.key] += 1
    request = decode(TieredActForRequest, header.version, frame, header.position)
    proven = connection.caller if connection.login is None else _proven_caller(connection)
    call = Call(
        request, header.version, header.correlation_id, header.client_id or "", connection.peer, connection.listener,
        proven, connection.on_credential,
    )  # fmt: skip
    try:
        authorize_call(context, call, request.cluster_id, request.credential)
        connection.act_for(_read_caller(request))
        connection.is_acting = True
    except Refused as refused:
        return _encode(header, TieredActForResponse(refused.code.number, refusal_text(refused)))
    return _encode(header, TieredActForResponse())


def _proven_caller(connection: ActingConnection) -> Caller:
    """Returns the caller that has logged in on the connection."""
    login = connection.login
    assert login is not None and login.principal is not None
    return Caller(login.principal, connection.peer.rpartition(":")[0])


def _read_caller(request: TieredActForRequest) -> Caller:
    texts = (request.principal_type, request.principal_name, request.client_host, request.holder, request.client_id)
    if not all(texts[:2]) or max(map(len, texts)) > TEXT_MAX:
        raise Refused(Code.INVALID_REQUEST, "the request names no principal")
    return Caller(Principal(*texts[:2]), request.client_host, shares_of=request.holder, client_id=request.client_id)


def _encode(header: RequestHeader, response: TieredActForResponse) -> Sequence[Part]:
    head = encode_response_header(header.key, header.version, header.correlation_id)
    body = encode(response, header.version)
    return [b"".join((_SIZE.pack(len(head) + len(body)), head, body))]
