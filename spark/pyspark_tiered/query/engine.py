"""A session of DuckDB over a warehouse: it opens the tables that a query names, and runs the query.

A query may come from somebody who may read the tables and nothing else. `statement` lets only SELECT through, without
functions that read files. DuckDB itself is locked: no extension is loaded, files outside of the warehouse cannot be
opened, and no setting can be changed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import chain, islice
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyspark_tiered.delta import delta_state, table_form
from pyspark_tiered.delta.data_files import read_vector
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.delta.table_log import explain_access
from pyspark_tiered.delta.warehouse import Warehouse
from pyspark_tiered.query import views
from pyspark_tiered.query.output import QueryResult, row_bytes
from pyspark_tiered.query.statement import (
    Edit,
    ParsedQuery,
    TableRef,
    apply_edits,
    check_query,
    find_edits,
    restore_names,
)
from pyspark_tiered.query.table_report import table_kind
from pyspark_tiered.query.text import RAW, Moment, prepare, quote_name, quote_text
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    import duckdb

    from pyspark_tiered.log.log_tail import LogTail, ReadableLog
    from pyspark_tiered.query.bucket_files import BucketFiles

T = TypeVar("T")

FETCH_ROWS = 200
FIRST_ROWS = 10
FETCH_BYTES = 16 << 20
"""Bytes of the rows that are fetched at once, by the size of the rows before them."""
LOOK_SECONDS = 0.1
"""Time between two looks for Ctrl-C while a query runs."""
INTERRUPTED = "Query interrupted"
"""Error of DuckDB for Ctrl-C during a call in the main thread."""
MEMORY = "1GB"
"""Memory of a session. A query that needs more writes to a temporary directory."""
SPILL = "20GB"
BUCKET_READS = 8
"""Threads of a session over a bucket at least: most of them wait for a request."""
TAIL = "tail"
"""Schema of the records that the tables do not have yet."""
DELETED = "deleted"
"""Schema of the rows that deletion vectors name."""
FILL_BYTES = 8 << 20
"""Bytes of newer records that are inserted at once."""
SUGGESTIONS_OF = 1000
"""Tables among which a similar name is looked for."""


class RunningQuery(NamedTuple):
    """The columns of a query, and its rows as they come. The next query of the session ends it.

    `notes` say in words what a reader of the answer should know.
    """

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    notes: tuple[str, ...] = ()

    def collect(self) -> QueryResult:
        """Returns all rows."""
        return QueryResult(self.columns, tuple(self.rows))


class _FilledTail(NamedTuple):
    """These offsets of a topic, in these columns, which a table of DuckDB holds."""

    topic_id: str
    columns: Mapping[str, Any]
    ranges: Mapping[int, Range]


class _Cut(NamedTuple):
    """A table at one version, and the offsets that the log has above its bounds."""

    state: TableState
    newer: Mapping[int, Range]


class _OpenTable(NamedTuple):
    """A table whose view exists: Delta's type of each column, at this version, with these newer offsets."""

    version: int
    metadata: Mapping[str, Any]
    newer: Mapping[int, Range]
    columns: Mapping[str, Any]


class SqlSession:
    """Runs queries over the tables of a warehouse, one after the other. It keeps what it knows of a table."""

    def __init__(self, warehouse: str, tail: LogTail | None = None) -> None:
        """`tail` has the newest records of the topics, which the rows of a raw table then end with. The session closes
        it."""
        try:
            self._warehouse = Warehouse(warehouse)
        except BaseException:
            if tail is not None:
                tail.close()
            raise
        self._tail = tail
        self.on_percent: Callable[[float], None] = lambda _: None
        """Called now and then while a query runs, with the part of it that is done."""
        self._filled: dict[str, _FilledTail] = {}
        self._accounted: dict[str, tuple[int, Mapping[str, Any]]] = {}
        """Version and metadata of the tables whose rows are all below their bounds."""
        self._folder = mkdtemp(prefix="tiered-sql-")
        self._worker = ThreadPoolExecutor(1, "tiered-sql")
        self._known: dict[TableRef, _OpenTable] = {}
        self._files: BucketFiles | None = None
        self._root, self._connection = self._connect()

    def __enter__(self) -> SqlSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session."""
        self._end_query()
        self._worker.shutdown()
        self._connection.close()
        self._warehouse.close()
        if self._tail is not None:
            self._tail.close()
        rmtree(self._folder, ignore_errors=True)

    def run(self, query: str) -> RunningQuery:
        """Starts a query. Raises `Refused` in words for one that is wrong, or that does more than read tables."""
        import duckdb

        self._end_query()
        edits: list[Edit] = []
        prepared = prepare(query)
        if not prepared.text.strip():
            raise _refuse("there is no query")
        if prepared.text.upper().split() == ["SHOW", "TABLES"]:
            return RunningQuery(("name",), ((name,) for name in self._warehouse.names()))
        moments = prepared.moments
        try:
            parsed = check_query(self._serialize(prepared.text), moments)
            columns = self._open_tables(parsed, moments)
            edits = find_edits(parsed, columns)
            self._call(self._connection.execute, apply_edits(prepared.text, edits))
            names = [str(each[0]) for each in self._connection.description or ()]
        except duckdb.Error as failure:
            found = self._to_error(failure)
            if edits and isinstance(found, Refused) and "VARCHAR" in found.why:
                first = edits[0]
                field = prepared.text.encode()[first.start : first.end].decode()
                raise _refuse(f"{found.why} A field of JSON is text: write {field}::DOUBLE or another type.") from None
            raise found from None
        except RuntimeError as failure:
            if str(failure) == INTERRUPTED:
                raise KeyboardInterrupt from None
            raise
        notes = (
            []
            if self._tail is None
            else [self._describe_loaded(ref.name) for ref in columns if not self._is_whole(ref)]
        )
        return RunningQuery(tuple(restore_names(names, prepared.text, edits)), self._rows(), tuple(notes))

    def interrupt(self) -> None:
        """Cancels the query that runs. Safe to call from a signal handler or another thread."""
        self._connection.interrupt()

    def tables(self) -> Generator[str, None, None]:
        """Yields the names of the tables of the warehouse."""
        self._end_query()
        yield from self._warehouse.names()

    def columns(self, name: str) -> list[str]:
        """Returns the columns of a table. Raises `Refused`."""
        return list(views.read_columns(self._read(name, Moment()), self._warehouse.log(name).url))

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Returns the result of a call of DuckDB, in a thread of its own: in the main thread it would delay Ctrl-C to
        its end. Ctrl-C cancels the query."""
        with _note_interrupts() as noted:
            running = self._worker.submit(function, *arguments)
            while not running.done():
                try:
                    wait([running], LOOK_SECONDS)  # a signal that another thread took is seen then
                    self.on_percent(max(self._connection.query_progress(), 0.0))
                except KeyboardInterrupt:  # by the handler of another program
                    noted.append(signal.SIGINT)
                if noted:
                    self._connection.interrupt()  # again and again: before the query begins it has no effect
        if noted:
            raise KeyboardInterrupt
        return running.result()

    def _end_query(self) -> None:
        """Drops the rest of the query before."""
        self._connection.abort()

    def _connect(self) -> tuple[str, duckdb.DuckDBPyConnection]:
        """Returns the root of the tables' files for DuckDB, and a locked connection."""
        import duckdb

        connection = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        root = self._warehouse.url.removeprefix("file:")
        if self._warehouse.connection is not None:
            from pyspark_tiered.query.bucket_files import PROTOCOL, BucketFiles

            self._files = BucketFiles(self._warehouse.connection)
            connection.register_filesystem(self._files)
            connection.execute(f"SET threads = {max(BUCKET_READS, os.cpu_count() or 1)}")
            root = f"{PROTOCOL}://{self._warehouse.prefix.rstrip('/')}"
        for setting in (
            "TimeZone = 'UTC'",
            "python_enable_replacements = false",
            "enable_progress_bar_print = false",
            "enable_progress_bar = true",
            "progress_bar_time = 0",
            "parquet_metadata_cache = true",
            f"memory_limit = '{MEMORY}'",
            f"temp_directory = {quote_text(self._folder)}",
            f"max_temp_directory_size = '{SPILL}'",
            f"allowed_directories = [{quote_text(root + '/')}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            connection.execute(f"SET {setting}")
        for schema in (RAW, TAIL, DELETED):
            connection.execute(f"CREATE SCHEMA {schema}")
        return root, connection

    def _serialize(self, text: str) -> str:
        found = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
        assert found is not None
        return str(found[0])

    def _open_tables(self, parsed: ParsedQuery, moments: Mapping[str, Moment]) -> dict[TableRef, dict[str, bool]]:
        """Makes a view of each table that the query names. Returns their columns, true for those that show bytes.

        A table that is named more than once has one version in the whole query.
        """
        found: dict[TableRef, dict[str, bool]] = {}
        cuts: dict[tuple[str, Moment], _Cut] = {}
        for ref in (*parsed.tables, *parsed.perhaps):
            moment = moments.get(ref.schema.removeprefix(RAW), Moment())
            if (ref.name, moment) not in cuts:
                if ref in parsed.perhaps and self._warehouse.find(ref.name) is None:
                    continue
                cuts[ref.name, moment] = self._cut(ref.name, moment)
            opened = self._open(ref, cuts[ref.name, moment])
            is_raw = ref.schema.startswith(RAW)
            found[ref] = {
                name.lower(): not is_raw and views.is_text_of_bytes(kind) for name, kind in opened.columns.items()
            }
        return found

    def _cut(self, name: str, moment: Moment) -> _Cut:
        """Returns a table as the query sees it. Its newer records are in a table of DuckDB then."""
        state = self._read(name, moment)
        if self._tail is None or moment != Moment() or table_kind(state) != "raw":
            return _Cut(state, {})
        state, newer = self._cut_log(name, state)
        newer = {number: each for number, each in newer.items() if each[0] < each[1]}
        topic_id, topic = state.held_topic()
        wanted = _FilledTail(topic_id, views.read_columns(state, self._warehouse.log(name).url), newer)
        if newer and self._filled.get(name) != wanted:
            self._filled.pop(name, None)
            self._fill(name, topic, wanted)
            self._filled[name] = wanted
        return _Cut(state, newer)

    def _cut_log(self, name: str, state: TableState) -> tuple[TableState, Mapping[int, Range]]:
        """Returns a raw table, and the offsets of each partition that its log has above the table's bounds."""
        from pyspark_tiered.delta.snapshot import Snapshot, check_columns
        from pyspark_tiered.delta.topic_table import check_accounted
        from pyspark_tiered.log.log_tail import cut_log  # imported late: most queries decode no log

        tail, opened = self._tail, self._warehouse.log(name)
        topic_id, topic = state.held_topic()
        assert tail is not None

        def look(reached: Mapping[int, int]) -> ReadableLog:
            found = tail.look(topic, topic_id, reached)
            if found.topic_id != topic_id:
                raise _refuse(
                    f"the table {name} holds another topic of that name: its id is {topic_id}, now {found.topic_id}"
                )
            return found

        def read() -> TableState:
            found = self._read(name, Moment())
            if found.held_topic() != (topic_id, topic):
                raise Unavailable(f"the table {name} was made again while it was read")
            return found

        def loaded(held: TableState) -> Mapping[int, int]:
            return table_form.loaded_offsets(held.versions(), topic_id)

        state, newer = cut_log(topic, state, look({}), loaded=loaded, read=read, look=look)
        if self._accounted.get(name) != (state.version, state.metadata):
            views.check_readable(state, opened.url)
            check_columns(str(state.metadata["schemaString"]), opened.url)
            with explain_access(opened.url):
                check_accounted(Snapshot(opened.folder, state, opened.recent, topic_id))
            self._accounted[name] = state.version, state.metadata
        return state, newer

    def _fill(self, name: str, topic: str, wanted: _FilledTail) -> None:
        """Copies the newer records of a topic to a table of DuckDB, which goes to the temporary directory if it is
        large."""
        import pyarrow as pa

        assert self._tail is not None
        target = _tail_table(name)
        self._connection.execute(f"CREATE OR REPLACE TABLE {target} ({views.column_types(wanted.columns)})")
        waiting: list[Any] = []
        for batch in chain(self._tail.batches(topic, wanted.ranges), [None]):
            if batch is not None:
                waiting.append(batch)
            if waiting and (batch is None or sum(each.nbytes for each in waiting) > FILL_BYTES):
                self._connection.register("newer_rows", pa.Table.from_batches(waiting))
                self._connection.execute(f"INSERT INTO {target} BY NAME SELECT * FROM newer_rows")
                self._connection.unregister("newer_rows")
                waiting = []

    def _fill_deleted(self, ref: TableRef, state: TableState, root: str) -> str:
        """Makes a table of DuckDB with the rows that deletion vectors name, and returns its name; "" without any."""
        marked = [add for add in state.files.values() if add.get("deletionVector")]
        if not marked:
            return ""
        import pyarrow as pa

        target = f"{DELETED}.{quote_name(f'{ref.schema}/{ref.name}')}"
        folder = self._warehouse.log(ref.name).folder
        self._connection.execute(f"CREATE OR REPLACE TABLE {target} (path VARCHAR, number BIGINT)")
        for add in marked:
            numbers = pa.array(memoryview(read_vector(folder, add) or b""), pa.int64())
            self._connection.register("deleted_rows", pa.table({"number": numbers}))
            path = quote_text(views.file_url(root, delta_state.file_path(add, root)))
            self._connection.execute(f"INSERT INTO {target} SELECT {path}, number FROM deleted_rows")
            self._connection.unregister("deleted_rows")
        return target

    def _is_whole(self, ref: TableRef) -> bool:
        """True if a table holds all records of its topic, or is asked for at a point in time."""
        return ref.schema not in ("", RAW) or table_kind(self._warehouse.read(ref.name)) in ("raw", "foreign")

    def _describe_loaded(self, name: str) -> str:
        is_latest = table_kind(self._warehouse.read(name)) == "latest"
        newer = "come with the next load" if is_latest else "are in the raw table"
        return f"{name} has loaded records only; the newer ones {newer}"

    def _open(self, ref: TableRef, cut: _Cut) -> _OpenTable:
        """Makes the view of a table, unless it is there already."""
        state = cut.state
        known = self._known.get(ref)
        if known is not None and known[:3] == (state.version, state.metadata, cut.newer):
            return known
        url = self._warehouse.log(ref.name).url
        views.check_readable(state, url)
        columns = views.read_columns(state, url)
        schema = ref.schema or "main"
        root = f"{self._root}/{ref.name}"
        if self._files is not None:
            self._files.note_sizes(root, state)
        for other in [each for each in self._known if each.schema == ref.schema]:
            if other.name.lower() == ref.name.lower():
                del self._known[other]  # DuckDB has one view, and one table of deleted rows, for both
        deleted = self._fill_deleted(ref, state, root)
        stored = views.table_query(state, columns, root, deleted)
        if cut.newer:
            stored = f"{stored} UNION ALL BY NAME SELECT * FROM {_tail_table(ref.name)}"
        shown = stored if ref.schema.startswith(RAW) else views.text_query(columns, f"({stored})")
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_name(schema)}")
        self._connection.execute(f"CREATE OR REPLACE VIEW {quote_name(schema)}.{quote_name(ref.name)} AS {shown}")
        self._known[ref] = _OpenTable(state.version, state.metadata, cut.newer, columns)
        return self._known[ref]

    def _read(self, name: str, moment: Moment) -> TableState:
        try:
            if moment.timestamp is not None:
                at_ms = _parse_time(moment.timestamp)
                return self._warehouse.read(name, self._warehouse.log(name).find_version(at_ms))
            return self._warehouse.read(name, moment.version)
        except Refused as refused:
            if "/" in name or self._warehouse.find(name) is not None:
                raise
            names = {each.lower(): each for each in islice(self._warehouse.names(), SUGGESTIONS_OF)}
            near = get_close_matches(name.lower(), names, 1)
            raise _refuse(refused.why + (f"; there is {names[near[0]]}" if near else "")) from None

    def _to_error(self, failure: Exception) -> BaseException:
        """Returns an error of DuckDB in our words, or the one of the bucket that caused it."""
        if self._files is not None and self._files.failure is not None:
            found, self._files.failure = self._files.failure, None
            return found
        return _to_error(failure)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        import duckdb

        count = FIRST_ROWS
        while True:
            try:
                rows = self._call(self._connection.fetchmany, count)
            except duckdb.Error as failure:
                raise self._to_error(failure) from None
            if not rows:
                return
            yield from rows
            count = max(1, min(2 * count, FETCH_ROWS, FETCH_BYTES * len(rows) // (row_bytes(rows) + 1)))
            rows = []  # not held while the next ones come


def _tail_table(name: str) -> str:
    """Returns the table of DuckDB for the newer records of a table. Names that differ by case have one each."""
    return f"{TAIL}.{quote_name(name.encode().hex())}"


@contextmanager
def _note_interrupts() -> Iterator[list[int]]:
    """Yields a list that is not empty once Ctrl-C was pressed. KeyboardInterrupt could come in any line, also between
    the start of a query and the note of it: the query would run on, and refuse the next one.

    A handler of another program, and another thread than the main one, are left as they are.
    """
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield noted
        return
    signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _parse_time(text: str) -> int:
    """Returns milliseconds since 1970. A time without a zone is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise _refuse(f"{text!r} is no timestamp: write 2026-11-25 or 2026-11-25 15:00:00") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _to_error(failure: Exception) -> BaseException:
    """Returns an error of DuckDB in our words."""
    import duckdb

    if isinstance(failure, duckdb.InterruptException):
        return KeyboardInterrupt()
    why = str(failure).strip().split("\n\nLINE ")[0].split(os.linesep)[0]
    why = why.partition(" Error: ")[2] or why
    if isinstance(failure, duckdb.OutOfMemoryException):
        return _refuse(f"the query needs more memory than {MEMORY}: {why}")
    if isinstance(failure, duckdb.IOException):
        return Unavailable(f"a file of a table cannot be read: {why}")
    if "unction with name" in why or why.startswith("No function matches"):
        why += " This is the SQL of DuckDB: functions that only Spark has need --engine spark."
    return _refuse(why)


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, why)
