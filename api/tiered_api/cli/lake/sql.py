"""`tiered sql`: one query, the statements of a script, or the shell. DuckDB by default, or Spark."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import ExitStack, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tiered.errors import Code, Refused
from tiered_api.cli.exits import Exit
from tiered_api.cli.lake.commands import describe_missing, prepare_spark, report_missing
from tiered_api.cli.lake.http_place import HttpPlace, find_http_place
from tiered_api.cli.output import print_error
from tiered_api.cli.progress import show_progress
from tiered_api.cli.terminal import is_terminal

if TYPE_CHECKING:
    from pyspark_tiered.log.log_tail import LogTail
    from pyspark_tiered.query.engine import SqlSession


def describe_missing_sql() -> str:
    """Returns one sentence on the missing parts of the native engine; empty if nothing is missing."""
    lacking = [name for name in ("duckdb", "fsspec", "pyarrow") if find_spec(name) is None]
    if not lacking:
        return ""
    return (
        f"Python packages {', '.join(lacking)} are missing: pip install '.[sql]' in tiered's source folder, "
        "or use --engine spark."
    )


def sql(args: Namespace) -> int:
    """Queries the loaded tables."""
    if args.engine == "spark":
        return _run_spark(args)
    if lack := describe_missing_sql():
        return report_missing(lack)
    from pyspark_tiered.query.engine import SqlSession

    place = find_http_place(args)
    with (
        nullcontext() if place is None else place.named(),
        SqlSession(args.warehouse, _open_tail(args.store, place)) as session,
    ):
        if args.query is not None:
            _run_query(args, session)
            return Exit.OK
        from pyspark_tiered.query.shell import Shell

        shell = Shell(session, args.format)
        if sys.stdin.isatty():
            shell.interact()
        else:
            shell.run_script(sys.stdin)
    return Exit.OK


def _run_query(args: Namespace, session: SqlSession) -> None:
    """Runs one query. The progress ends with the first row, if the rows go to the terminal too."""
    from pyspark_tiered.query.output import render_lines

    with ExitStack() as opened:
        shown = opened.enter_context(show_progress(args, "sql"))
        session.on_percent = lambda done: shown.report(done, 100, "%")
        running = session.run(args.query)
        for note in running.notes:
            print_error(note)
        for line in render_lines(running.columns, running.rows, args.format):
            if is_terminal(sys.stdout):
                opened.close()
            print(line)


def _open_tail(store: str | None, place: HttpPlace | None) -> LogTail | None:
    """Returns where the newest records are, None if the command names no place."""
    if place is not None:
        from pyspark_tiered.log.log_tail import BrokerTail

        return BrokerTail(place.address, place.login)
    if store is not None:
        from pyspark_tiered.log.log_tail import BucketTail

        return BucketTail(store)
    return None


def _run_spark(args: Namespace) -> int:
    if lack := describe_missing():
        return report_missing(lack)
    if any(each is not None for each in (args.store, args.bootstrap, args.profile, args.command_config)):
        raise Refused(
            Code.INVALID_REQUEST, "--store and --bootstrap need the native engine; in Spark use pyspark_tiered.table"
        )
    if args.query is None:
        raise Refused(Code.INVALID_REQUEST, "the shell needs the native engine: name a query, or leave --engine away")
    from pyspark_tiered.query.output import render
    from pyspark_tiered.sql import sql as run

    with show_progress(args, "sql", has_children=True):
        prepare_spark(args.warehouse)
        found = run(args.warehouse, args.query)
    print(render(found, args.format))
    return Exit.OK
