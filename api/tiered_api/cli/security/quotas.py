"""`tiered quota list|set|remove`: how much of each broker users, client ids and addresses may use (KIP-546)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping

from tiered.errors import Code, Refused
from tiered.quotas.entity import CLIENT_ID, IP, USER, Match, QuotaEntity, entity_text, make_entity
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.status import OK, format_status
from tiered_api.kafka.client.client import KafkaClient, only_result, to_refused
from tiered_api.kafka.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tiered_api.kafka.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

DEFAULT = "<default>"
COLUMNS = ("user", "client_id", "ip", "quota", "value")

Quotas = Mapping[QuotaEntity, Mapping[str, float]]


async def list_quotas(args: Namespace) -> int:
    """Lists the quotas of the entities that the options choose."""
    async with open_client(args) as client:
        known = await fetch_quotas(client, read_entity(args), is_exact=False)
    rows = [
        {**_row(entity), "quota": key, "value": _number(value)}
        for entity, values in sorted(known.items(), key=lambda each: entity_text(each[0]))
        for key, value in sorted(values.items())
    ]
    print_rows(rows, args.format, COLUMNS)
    return Exit.OK


async def set_quotas(args: Namespace) -> int:
    """Sets quotas of one entity."""
    quotas = dict(args.quotas)
    entity = _read_one_entity(args)
    async with open_client(args) as client:
        status = await _alter(client, entity, [OpData(*each) for each in quotas.items()], args.dry_run)
    return _print_outcome(args, entity, quotas, status)


async def remove_quotas(args: Namespace) -> int:
    """Removes quotas of one entity, all of them if none is named."""
    entity = _read_one_entity(args)
    async with open_client(args) as client:
        known = (await fetch_quotas(client, entity, is_exact=True)).get(entity, {})
        chosen = {key: value for key, value in known.items() if key in args.keys or not args.keys}
        missing = [key for key in args.keys if key not in known]
        if missing or not chosen:
            raise Refused(Code.RESOURCE_NOT_FOUND, f"{entity_text(entity)} has no quota {', '.join(missing)}".rstrip())
        status = await _alter(client, entity, [OpData(key, 0.0, True) for key in chosen], args.dry_run)
    return _print_outcome(args, entity, chosen, status)


def read_entity(args: Namespace) -> QuotaEntity:
    """Returns the entity that the options name; () if they name none."""
    named = (
        (USER, args.user, args.default_user),
        (CLIENT_ID, args.client_id, args.default_client_id),
        (IP, args.ip, args.default_ip),
    )
    return make_entity((kind, name) for kind, name, is_default in named if is_default or name is not None)


def _read_one_entity(args: Namespace) -> QuotaEntity:
    entity = read_entity(args)
    if not entity:
        why = "a quota needs an owner: --user, --client-id or --ip, or the same with --default-"
        raise Refused(Code.INVALID_REQUEST, why)
    return entity


async def fetch_quotas(client: KafkaClient, entity: QuotaEntity, *, is_exact: bool) -> Quotas:
    """Fetches the quotas of an entity, or of all entities that have its parts."""
    components = [ComponentData(kind, Match.DEFAULT if name is None else Match.EXACT, name) for kind, name in entity]
    got = await client.send(DescribeClientQuotasRequest(components, is_exact), DescribeClientQuotasResponse)
    if got.error_code:
        raise to_refused(got.error_code, "quotas are not shown", got.error_message)
    return {
        make_entity((part.entity_type, part.entity_name) for part in each.entity): {
            value.key: value.value for value in each.values
        }
        for each in got.entries or ()
    }


async def remove_all_quotas(client: KafkaClient, entity: QuotaEntity, keys: Iterable[str], *, is_dry: bool) -> str:
    """Removes quotas of one entity. Returns the status."""
    return await _alter(client, entity, [OpData(key, 0.0, True) for key in keys], is_dry)


async def _alter(client: KafkaClient, entity: QuotaEntity, ops: list[OpData], is_dry: bool) -> str:
    """Changes quotas of one entity: all of them or none. Returns the status."""
    entry = EntryData([EntityData(*part) for part in entity], ops)
    got = await client.send_to_controller(AlterClientQuotasRequest([entry], is_dry), AlterClientQuotasResponse)
    result = only_result(got.entries)
    return format_status(result.error_code, result.error_message, dry_run=is_dry)


def _print_outcome(args: Namespace, entity: QuotaEntity, quotas: Mapping[str, float], status: str) -> int:
    rows = [{**_row(entity), "quota": key, "value": _number(value), "status": status} for key, value in quotas.items()]
    print_rows(rows, args.format)
    return Exit.OK if status.startswith(OK) else Exit.FAILED


def _row(entity: Iterable[tuple[str, str | None]]) -> Row:
    names = {kind: DEFAULT if name is None else name for kind, name in entity}
    return {"user": names.get(USER), "client_id": names.get(CLIENT_ID), "ip": names.get(IP)}


def _number(value: float) -> float:
    return int(value) if value == int(value) else value
