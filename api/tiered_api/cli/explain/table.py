"""`tiered explain table`: by a broker that knows the warehouse, or by the warehouse itself."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import closing
from typing import Any
from urllib.parse import quote

from tiered.errors import Code, Refused
from tiered_api.cli.explain.commands import print_explanation, topic_path
from tiered_api.cli.explain.http_client import BrokersHttp, open_http
from tiered_api.cli.lake.commands import describe_missing_native, report_missing
from tiered_api.explanation.cause import describe_causes
from tiered_api.explanation.table import LoadedPartition, TableFacts
from tiered_api.explanation.table import explain_table as explain


def explain_table(args: Namespace) -> int:
    """Prints why records are not in a table."""
    http = open_http(args)
    if args.warehouse is None:
        return print_explanation(http.get_json(f"/tiered/v1/tables/{quote(args.table, safe='')}/explain"), args.format)
    if lack := describe_missing_native():
        return report_missing(lack)
    table = _read_table(args.warehouse, args.table)
    storage = _fetch_storage(http, args.table if table is None else str(table.get("topic") or args.table))
    is_there = storage is not None and (table is None or storage["topic_id"] == table.get("topic_id"))
    if table is None and not is_there:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is neither a table nor a topic {args.table!r}")
    rows = {each["partition"]: each for each in storage["partitions"]} if storage is not None and is_there else {}
    loaded = {int(number): end for number, end in ((table or {}).get("offsets") or {}).items()}
    facts = TableFacts(
        args.table,
        args.warehouse,
        table,
        [
            LoadedPartition(
                number, loaded.get(number, 0), rows.get(number, {}).get("high_watermark"),
                rows.get(number, {}).get("cold_end_offset"),
            )
            for number in sorted({*rows, *loaded})
        ],
        is_there,
        time.time_ns() // 1_000_000,
    )  # fmt: skip
    return print_explanation({"table": args.table} | describe_causes(explain(facts)), args.format)


def _read_table(place: str, name: str) -> dict[str, Any] | None:
    """Returns the report on a table; None if the warehouse has none of that name."""
    from pyspark_tiered.delta.warehouse import Warehouse
    from pyspark_tiered.query.warehouse_report import describe, guarded

    with closing(Warehouse(place)) as warehouse:
        found = guarded(lambda: describe(warehouse, name, 1))
    return None if found.get("is_absent") else found


def _fetch_storage(http: BrokersHttp, topic: str) -> dict[str, Any] | None:
    """Returns the tiers of a topic; None if there is none."""
    try:
        found: dict[str, Any] = http.get_json(f"{topic_path(topic)}/storage")
    except Refused as refused:
        if refused.code is Code.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise
    return found
