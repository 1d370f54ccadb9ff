"""The metadata log entry by entry, and the brokers that were controller."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tiered.metadata.changes import ControllerElected
from tiered.metadata.entry_history import LoggedEntry, find_elections, read_page
from tiered.metadata.image import Image
from tiered.metadata.shown_changes import show_change
from tiered.system.turns import each_of
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response

PAGE, PAGE_MAX = 20, 100
CHANGES_MAX = 100
"""Most changes of an entry that are shown."""
ELECTIONS_LOOKED_AT = 100
"""Slots that a list of controllers looks at, or more if they are in memory."""


async def get_metadata_log(request: HttpRequest) -> web.StreamResponse:
    """Lists entries of the metadata log, newest first, with their changes and when the bucket got them."""
    broker = request.context.broker
    image, recent = broker.image, broker.cluster.loader.recent_entries
    end = request.query_integer("to", image.slot, 0, max(image.slot, 0))
    most = request.query_integer("limit", PAGE, 1, PAGE_MAX)
    entries, older = await read_page(broker.world.store, recent, end, most)
    return json_response(
        {
            "slot": image.slot,
            "controller": image.controller,
            "controller_epoch": image.controller_epoch,
            "entries": [_describe_entry(each, image) async for each in each_of(entries)],
            "next_to": older,
        }
    )


def _describe_entry(logged: LoggedEntry, image: Image) -> dict[str, Any]:
    entry = logged.entry
    return {
        "slot": entry.slot,
        "controller_epoch": entry.epoch,
        "written_ms": logged.written_ms if logged.written_ms >= 0 else None,
        "bytes": logged.size or None,
        "changes": [show_change(each, image) for each in entry.changes[:CHANGES_MAX]],
        "changes_left_out": max(0, len(entry.changes) - CHANGES_MAX),
    }


async def list_controllers(request: HttpRequest) -> web.StreamResponse:
    """Lists the controllers of the last slots, newest first: broker, controller epoch, and from when to when."""
    broker = request.context.broker
    recent, slot = broker.cluster.loader.recent_entries, broker.image.slot
    elections, since = await find_elections(broker.world.store, recent, slot, ELECTIONS_LOOKED_AT)
    rows: list[dict[str, Any]] = []
    until_ms: int | None = None
    for each in elections:
        [elected] = [change for change in each.entry.changes if isinstance(change, ControllerElected)]
        from_ms = each.written_ms if each.written_ms >= 0 else None
        rows.append(
            {
                "node_id": elected.node_id,
                "controller_epoch": elected.epoch,
                "slot": each.entry.slot,
                "from_ms": from_ms,
                "to_ms": until_ms,
            }
        )
        until_ms = from_ms
    return json_response({"controllers": rows, "since_slot": since})
