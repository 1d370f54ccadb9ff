"""`tiered table ls`, `describe`, `history`, `diff` and `vacuum`: what Delta's log says of tables, without a JVM."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tiered.errors import Code, Corrupt, Refused
from tiered_api.cli.exits import Exit
from tiered_api.cli.lake.commands import describe_missing_native, report_missing
from tiered_api.cli.lake.http_place import HttpPlace, find_http_place
from tiered_api.cli.output import format_size, print_error, print_json, print_lines, print_rows
from tiered_api.cli.progress import show_progress

if TYPE_CHECKING:
    from pyspark_tiered.delta.warehouse import Warehouse
    from pyspark_tiered.proof.last_verify import LastVerify
    from pyspark_tiered.query.table_report import HistoryEntry, TableSummary

LISTED_PARTITIONS = 4
"""Partitions whose offsets a line of text names."""
LS_COLUMNS = ("table", "kind", "rows", "files", "size", "version", "loaded", "newest_record", "lag", "dead", "verified")
FACTS = (
    *("table", "kind", "topic", "topic_id", "version", "rows", "files", "bytes", "loaded_ms", "newest_ms", "lag"),
    *("dead_letters", "verified", "partitions"),
)
"""Names of the facts of a table."""
HISTORY_COLUMNS = ("version", "time", "operation", "rows", "files_added", "files_removed", "offsets")

Ends = Callable[[str, str], Mapping[int, int] | None]
"""Returns the end of each partition of a topic with this name and id; None if there is no such topic."""


def ls(args: Namespace) -> int:
    """Lists the tables of a warehouse. A table that cannot be read hides no other one: its row says so."""
    if lack := describe_missing_native():
        return report_missing(lack)
    rows = []
    code = Exit.OK
    with _open(args) as (warehouse, read_ends):
        shown = None if read_ends is None else _allowed_ends(read_ends)
        for name in warehouse.names():
            try:
                facts = _facts(warehouse, name, shown)
            except (Refused, Corrupt) as fault:
                print_error(f"{name}: {fault}")
                facts = dict.fromkeys(FACTS) | {"table": name, "kind": "unreadable", "why": str(fault)}
                code = Exit.FAILED if isinstance(fault, Corrupt) else code
            rows.append(_ls_row(facts, args.format))
            warehouse.forget(name)
    print_rows(rows, args.format, LS_COLUMNS)
    return code


def describe(args: Namespace) -> int:
    """Describes one table."""
    if lack := describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.query.table_report import columns_of

    with _open(args) as (warehouse, read_ends):
        state = warehouse.read(args.topic)
        facts = _facts(warehouse, args.topic, read_ends)
        columns, properties, url = columns_of(state), state.properties(), warehouse.log(args.topic).url
    if args.format == "json":
        print_json(facts | {"url": url, "columns": columns, "properties": properties})
        return Exit.OK
    of = f" of topic {facts['topic']} ({facts['topic_id']})" if facts["topic"] else ""
    print_lines(
        [
            f"{args.topic}: {facts['kind']} table{of} at {url}",
            f"version {facts['version']}: {_count(facts['rows'])} rows in {facts['files']:,} files, "
            f"{format_size(facts['bytes'])}",
            f"loaded {_time(facts['loaded_ms'])}, newest record {_time(facts['newest_ms'])}, "
            f"lag {_count(facts['lag'])}, dead letters {_count(facts['dead_letters'])}, "
            f"verified {_verified_text(facts['verified'])}",
            *(f"{name} = {value}" for name, value in sorted(properties.items())),
            "",
        ]
    )
    print_rows([{"column": name, "type": kind} for name, kind in columns.items()], "text")
    if facts["partitions"]:
        print_lines([""])
        print_rows(facts["partitions"], "text")
    return Exit.OK


def history(args: Namespace) -> int:
    """Lists the commits of a table, the newest first."""
    if lack := describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.delta.delta_state import parse_actions
    from pyspark_tiered.query.table_report import history_entry

    rows = []
    with _open(args) as (warehouse, _):
        warehouse.read(args.topic)
        log = warehouse.log(args.topic)
        for version in log.versions()[: -args.max - 1 : -1]:
            text = log.read_commit(version)
            if text is not None:
                entry = history_entry(version, parse_actions(text, f"{log.url} version {version}"))
                rows.append(_history_row(entry, args.format))
    print_rows(rows, args.format, HISTORY_COLUMNS)
    return Exit.OK


def diff(args: Namespace) -> int:
    """Prints what changed between two versions of a table."""
    if lack := describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.query.table_report import compare_states

    with _open(args) as (warehouse, _):
        after = warehouse.read(args.topic, args.new)
        before = warehouse.read(args.topic, args.old)
        found = compare_states(before, after)
    ends = _offset_ranges(found.offsets)
    if args.format == "json":
        print_json(
            {"table": args.topic, "from": before.version, "to": after.version} | found._asdict() | {"offsets": ends}
        )
        return Exit.OK
    print_lines(
        [
            f"{args.topic}: version {before.version} to {after.version}",
            f"rows {_format_change(found.rows)}, files +{found.files_added:,} -{found.files_removed:,}, "
            f"bytes {_format_change(found.bytes)}",
            *(f"partition {number}: offsets {low} to {high}" for number, (low, high) in found.offsets.items()),
            *(f"column {name}: {_change(*each)}" for name, each in found.columns.items()),
            *(f"property {name}: {_change(*each)}" for name, each in found.properties.items()),
        ]
    )
    return Exit.OK


def vacuum(args: Namespace) -> int:
    """Removes the files of a table that no version within its retention needs, or says how much they are."""
    if lack := describe_missing_native():
        return report_missing(lack)
    from pyspark_tiered.delta.vacuum import vacuum as run

    with show_progress(args, f"vacuum {args.topic}") as shown, _open(args) as (warehouse, _):
        warehouse.read(args.topic)
        log = warehouse.log(args.topic)
        found = run(log, dry_run=args.dry_run, on_files=lambda done, total: shown.report(done, total, "files"))
    if args.format == "json":
        print_json({"table": args.topic, **found._asdict(), "dry_run": args.dry_run})
        return Exit.OK
    what = f"{found.files:,} files ({format_size(found.bytes)}) and {found.log_files:,} files of the log"
    print_lines([f"dry run: {what} would be removed, and nothing was" if args.dry_run else f"{what} were removed"])
    return Exit.OK


@contextmanager
def _open(args: Namespace) -> Iterator[tuple[Warehouse, Ends | None]]:
    """Yields the warehouse, and how to read the ends of a log if the command names one."""
    from pyspark_tiered.delta.warehouse import Warehouse

    with closing(Warehouse(args.warehouse)) as warehouse:
        place = find_http_place(args) if hasattr(args, "bootstrap") else None
        if place is not None:
            with place.named():
                yield warehouse, _broker_ends(place)
        elif getattr(args, "store", None):
            from pyspark_tiered.log.bucket import ColdTopicReader

            with closing(ColdTopicReader(args.store)) as reader:
                yield warehouse, lambda name, topic_id: _known_ends(lambda: _cold_ends(reader, name, topic_id))
        else:
            yield warehouse, None


def _cold_ends(reader: Any, name: str, topic_id: str) -> Mapping[int, int] | None:
    topic = reader.read(name, {})
    if topic.topic_id != topic_id:
        return None
    return {each.partition: each.readable_end_offset for each in topic.partitions}


def _broker_ends(place: HttpPlace) -> Ends:
    from pyspark_tiered.log.broker import BrokerClient

    client = BrokerClient(place.address, login=place.login)

    def read(name: str, topic_id: str) -> Mapping[int, int] | None:
        topic = client.topic(name)
        return {each.partition: each.end for each in topic.partitions} if topic.topic_id == topic_id else None

    return lambda name, topic_id: _known_ends(lambda: read(name, topic_id))


def _known_ends(read: Callable[[], Mapping[int, int] | None]) -> Mapping[int, int] | None:
    try:
        return read()
    except Refused as refused:
        if refused.code is Code.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise


def _allowed_ends(read_ends: Ends) -> Ends:
    """Returns a reader of ends that knows nothing of topics which the login may not see: the list has others too."""

    def read(name: str, topic_id: str) -> Mapping[int, int] | None:
        try:
            return read_ends(name, topic_id)
        except Refused as refused:
            if refused.code is Code.TOPIC_AUTHORIZATION_FAILED:
                return None
            raise

    return read


def _facts(warehouse: Warehouse, name: str, read_ends: Ends | None) -> dict[str, Any]:
    """Returns what is known of a table, as one JSON object."""
    from pyspark_tiered.query.table_facts import count_letters, read_facts

    found, verified = read_facts(warehouse, name)
    ends = read_ends(found.topic, found.topic_id) if read_ends is not None and found.topic else None
    return {
        "table": name,
        "kind": found.kind,
        "topic": found.topic,
        "topic_id": found.topic_id,
        "version": found.version,
        "rows": found.rows,
        "files": found.files,
        "bytes": found.bytes,
        "loaded_ms": found.loaded_ms,
        "newest_ms": found.newest_ms,
        "lag": None if ends is None else sum(max(end - found.offsets.get(each, 0), 0) for each, end in ends.items()),
        "dead_letters": count_letters(warehouse, found),
        "verified": _verify_facts(verified),
        "partitions": _partitions(found, ends),
    }


def _partitions(found: TableSummary, ends: Mapping[int, int] | None) -> list[dict[str, Any]]:
    numbers = sorted(found.offsets.keys() | (ends or {}).keys())
    rows = []
    for number in numbers:
        row: dict[str, Any] = {"partition": number, "next_offset": found.offsets.get(number, 0)}
        if ends is not None:
            row["log_end"] = ends.get(number)
            row["lag"] = max(ends.get(number, 0) - row["next_offset"], 0)
        rows.append(row)
    return rows


def _verify_facts(result: LastVerify | None) -> dict[str, Any] | None:
    return None if result is None else {"ok": not result.faults} | result._asdict()


def _ls_row(facts: dict[str, Any], form: str) -> dict[str, Any]:
    if form == "json":
        return {key: value for key, value in facts.items() if key != "partitions"}
    return {
        "table": facts["table"],
        "kind": facts["kind"],
        "rows": facts["rows"],
        "files": facts["files"],
        "size": None if facts["bytes"] is None else format_size(facts["bytes"]),
        "version": facts["version"],
        "loaded": _time(facts["loaded_ms"]),
        "newest_record": _time(facts["newest_ms"]),
        "lag": facts["lag"],
        "dead": facts["dead_letters"],
        "verified": _verified_text(facts["verified"]),
    }


def _history_row(entry: HistoryEntry, form: str) -> dict[str, Any]:
    from pyspark_tiered.query.table_report import rows_of_entry

    rows = rows_of_entry(entry)
    if form == "json":
        return entry._asdict() | {"rows": rows, "offsets": _offset_ranges(entry.offsets)}
    parts = [f"{number}: {low}-{high}" for number, (low, high) in list(entry.offsets.items())[:LISTED_PARTITIONS]]
    more = len(entry.offsets) - len(parts)
    return {
        "version": entry.version,
        "time": _time(entry.time_ms or None),
        "operation": entry.operation,
        "rows": rows,
        "files_added": entry.files_added,
        "files_removed": entry.files_removed,
        "offsets": "; ".join([*parts, *([f"{more} more"] if more > 0 else [])]) or "-",
    }


def _offset_ranges(offsets: Mapping[int, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {str(number): each for number, each in offsets.items()}


def _verified_text(verified: Mapping[str, Any] | None) -> str:
    if verified is None:
        return "-"
    at = f"version {verified['table_version']} {_time(verified['at_ms'])}"
    return at if verified["ok"] else f"{at}, {verified['faults']:,} faults"


def _time(ms: int | None) -> str:
    if ms is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _format_change(value: int | None) -> str:
    return "-" if value is None else f"{value:+,}"


def _change(before: str | None, after: str | None) -> str:
    if before is None:
        return f"added, {after}"
    return f"removed, {before}" if after is None else f"{before} is now {after}"
