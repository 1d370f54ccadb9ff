"""A report on the tables of a warehouse as JSON lines: `python -m pyspark_tiered.query.warehouse_report`.

A broker runs it for its console, in a process of its own: memory and time that a table takes end with the process, and
it can be ended at any time. Standard input is the request, one JSON object. Each table is a line of the output when it
is read, so that a table that takes too long hides no other one.

A warehouse may have tables of strangers. A table that cannot be read, or has another form, is a line with its
`problem`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from pyspark_tiered.delta.data_files import read_stored_rows
from pyspark_tiered.delta.delta_state import TableState, file_path, parse_actions
from pyspark_tiered.delta.log_folder import TableFolder
from pyspark_tiered.delta.table_features import is_true
from pyspark_tiered.delta.table_form import TOPIC_ID, TOPIC_NAME
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.delta.warehouse import Warehouse
from pyspark_tiered.iceberg.export import read_newest
from pyspark_tiered.iceberg.metadata import ENABLED, locate
from pyspark_tiered.query.table_facts import TableFacts, find_letters, letters_name, read_facts
from pyspark_tiered.query.table_report import columns_of, count_rows, history_entry, rows_of_entry
from tiered.errors import Corrupt, Refused, Unavailable

Json = dict[str, Any]
Put = Callable[[Json], None]

MEMORY_BYTES = 1 << 30
"""Most memory of the process: a table that needs more is a line that says so."""
AT_ONCE = 4
"""Tables that are read at the same time."""
NICENESS = 10
PARTITIONS_MAX = 5_000
COLUMNS_MAX = 200
REASONS_MAX = 20
LETTERS_MAX = 20_000
"""Dead letters, the newest ones, whose reasons are counted."""
LETTER_FILE_BYTES = 64 << 20
"""A larger file of dead letters is not opened."""
TEXT_CHARACTERS = 300
FOREIGN = (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError)
"""Errors of a log whose JSON has another form than Delta's protocol gives it."""


class ReportRequest(NamedTuple):
    """A request for the tables of a warehouse, at most `most` of them, or the one with this name.

    With `versions`, the table comes with so many versions, its columns, and the reasons of its dead letters. With
    `iceberg` it comes only with its newest metadata of Iceberg.
    """

    warehouse: str
    table: str | None = None
    versions: int = 0
    most: int = 500
    seconds: int = 30
    iceberg: bool = False


def report(request: ReportRequest, put: Put) -> None:
    """Puts out a line when a table begins, one when it is read, and a last one with `done`."""
    try:
        with closing(Warehouse(request.warehouse)) as warehouse:
            if request.table is not None:
                _put_table(request.table, put, lambda: _describe(warehouse, request))
                put({"done": True, "has_more": False})
            else:
                put({"done": True, "has_more": _list(warehouse, request.most, put)})
    except (Refused, Unavailable, Corrupt) as fault:
        put({"problem": cut(str(fault))})


def _describe(warehouse: Warehouse, request: ReportRequest) -> Json:
    name = request.table or ""
    return describe_iceberg(warehouse, name) if request.iceberg else describe(warehouse, name, request.versions)


def _list(warehouse: Warehouse, most: int, put: Put) -> bool:
    """Reads the tables in the order of their names. Returns true if there are more."""

    def read(name: str) -> None:
        _put_table(name, put, lambda: table_facts(read_facts(warehouse, name), warehouse.log(name)))
        warehouse.forget(name)

    running: list[Future[None]] = []
    names = warehouse.names()
    with ThreadPoolExecutor(AT_ONCE) as workers:
        running += [workers.submit(read, name) for name in islice(names, most)]
    for each in running:
        each.result()
    return next(names, None) is not None


def _put_table(name: str, put: Put, read: Callable[[], Json]) -> None:
    """Puts out what is read of a table, or the reason why it was not."""
    put({"begun": name})
    put({"table": name} | guarded(read))


def guarded(read: Callable[[], Json]) -> Json:
    """Returns what was read, or the reason why it was not as `problem`."""
    try:
        return read()
    except (Refused, Unavailable, Corrupt) as fault:
        why = str(fault)
    except MemoryError:
        why = f"reading it takes more than {MEMORY_BYTES >> 20} MiB of memory"
    except OSError as fault:
        why = f"it cannot be read: {fault}"
    except FOREIGN as fault:
        why = f"its log has another form: {type(fault).__name__}: {fault}"
    return {"problem": cut(why)}


def table_facts(facts: TableFacts, log: TableLog) -> Json:
    """Returns what a list shows of a table."""
    found, verified = facts
    text = log.read_commit(found.version)
    newest = None if text is None else history_entry(found.version, parse_actions(text, log.url))
    return {
        "kind": found.kind,
        "topic": cut(found.topic),
        "topic_id": cut(found.topic_id),
        "version": found.version,
        "rows": found.rows,
        "files": found.files,
        "bytes": found.bytes,
        "committed_ms": None if newest is None else newest.time_ms or None,
        "loaded_ms": found.loaded_ms,
        "newest_ms": found.newest_ms,
        "has_iceberg": is_true(log.state.properties(), ENABLED),
        "verified": None if verified is None else {"ok": not verified.faults} | verified._asdict(),
        "offsets": {str(number): end for number, end in islice(sorted(found.offsets.items()), PARTITIONS_MAX)},
    }


def describe(warehouse: Warehouse, name: str, versions: int) -> Json:
    """Returns the facts of a table; with `versions` also its columns, versions and dead letters.

    A table that is not there has only `is_absent`.
    """
    if warehouse.find(name) is None:
        return {"is_absent": True}
    facts = read_facts(warehouse, name)
    log = warehouse.log(name)
    found = table_facts(facts, log)
    if not versions:
        return found
    kept = [_version(log, number) for number in range(facts.summary.version, facts.summary.version - versions, -1)]
    columns = islice(columns_of(log.state).items(), COLUMNS_MAX)
    return found | {
        "columns": [{"name": cut(column), "type": cut(kind)} for column, kind in columns],
        "versions": [each for each in kept if each is not None],
        **_letters(warehouse, name, facts),
    }


def describe_iceberg(warehouse: Warehouse, name: str) -> Json:
    """Returns the newest metadata of Iceberg of a table, and the topic that they name.

    A table that is not there, or has none, has only `is_absent`.
    """
    folder = warehouse.log(name).folder
    found = read_newest(folder)
    if found is None:
        return {"is_absent": True}
    path, metadata = found
    properties = metadata["properties"]
    return {
        "topic": cut(str(properties.get(TOPIC_NAME, ""))),
        "topic_id": cut(str(properties.get(TOPIC_ID, ""))),
        "iceberg": {"location": f"{locate(folder.url)}/{path}", "metadata": metadata},
    }


def _version(log: TableLog, version: int) -> Json | None:
    """Returns a version; None if its commit is gone, or there never was one."""
    text = log.read_commit(version) if version >= 0 else None
    if text is None:
        return None
    entry = history_entry(version, parse_actions(text, f"{log.url} version {version}"))
    return {
        "version": version,
        "time_ms": entry.time_ms or None,
        "operation": cut(entry.operation),
        "rows": rows_of_entry(entry),
        "files_added": entry.files_added,
        "files_removed": entry.files_removed,
    }


def _letters(warehouse: Warehouse, name: str, facts: TableFacts) -> Json:
    """Returns the number of dead letters of a table's topic, and the reasons of the newest ones."""
    is_own = facts.summary.kind == "dead letters"
    letters = warehouse.log(name).state if is_own else find_letters(warehouse, facts.summary)
    if letters is None:
        return {"dead_letters": None, "reasons": []}
    folder = warehouse.log(name if is_own else letters_name(facts.summary)).folder
    read = guarded(lambda: read_reasons(folder, letters))
    return {
        "dead_letters": count_rows(letters),
        "reasons": read.get("reasons", []),
        "reasons_of": read.get("reasons_of", 0),
        "reasons_problem": read.get("problem"),
    }


def read_reasons(folder: TableFolder, letters: TableState) -> Json:
    """Counts the reasons of the newest dead letters. Each reason has the place of a record with it."""
    counts: Counter[str] = Counter()
    places: dict[str, tuple[int, int]] = {}
    for add in reversed(letters.files.values()):
        if counts.total() >= LETTERS_MAX:
            break
        if int(add.get("size") or 0) > LETTER_FILE_BYTES:
            continue
        file_path(add, folder.url)  # raises for a file outside of the table: no load makes one
        for batch, _ in read_stored_rows(folder, add, ["_partition", "_offset", "_error"]):
            for row in batch.to_pylist():
                why = cut(str(row.get("_error")))
                counts[why] += 1
                places.setdefault(why, (int(row.get("_partition") or 0), int(row.get("_offset") or 0)))
    return {
        "reasons": [
            {"why": why, "count": count, "partition": places[why][0], "offset": places[why][1]}
            for why, count in counts.most_common(REASONS_MAX)
        ],
        "reasons_of": counts.total(),
    }


def cut(text: str) -> str:
    """Returns a text of a bounded length."""
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 3]}..."


def encode_line(line: Json) -> bytes:
    """Returns a line. A name that is no UTF-8 gets question marks."""
    return f"{json.dumps(line, ensure_ascii=False)}\n".encode(errors="replace")


def main() -> int:
    """Serves the one request on standard input."""
    request = ReportRequest(**json.loads(sys.stdin.read()))
    signal.alarm(request.seconds)  # the end of a process whose broker is gone
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.nice(NICENESS)
    turn = Lock()

    def put(line: Json) -> None:
        with turn:
            sys.stdout.buffer.write(encode_line(line))
            sys.stdout.buffer.flush()

    report(request, put)
    return 0


if __name__ == "__main__":
    sys.exit(main())
