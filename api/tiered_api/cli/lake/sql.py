"""`tiered sql`: one query, the statements of a script, or the shell. DuckDB by default, or Spark."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tiered.errors import Code, Refused
from tiered_api.cli.exits import Exit
from tiered_api.cli.lake.commands import describe_missing, prepare_spark, report_missing
from tiered_api.cli.lake.http_place import HttpPlace, find_http_place
from tiered_api.cli.output import print_error

if TYPE_CHECKING:
    from pyspark_tiered.log.log_tail import LogTail


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
    from pyspark_tiered.query.output import render_lines

    place = find_http_place(args)
    with (
        nullcontext() if place is None else place.named(),
        SqlSession(args.warehouse, _open_tail(args.store, place)) as session,
    ):
        if args.query is not None:
            running = session.run(args.query)
            for note in running.notes:
                print_error(note)
            for line in render_lines(running.columns, running.rows, args.format):
                print(line)
            return Exit.OK
        from pyspark_tiered.query.shell import Shell

        shell = Shell(session, args.format)
        if sys.stdin.isatty():
            shell.interact()
        else:
            shell.run_script(sys.stdin)
    return Exit.OK


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

    prepare_spark(args.warehouse)
    print(render(run(args.warehouse, args.query), args.format))
    return Exit.OK
