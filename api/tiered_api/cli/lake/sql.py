"""`tiered sql`: one query, the statements of a script, or the shell. DuckDB by default, or Spark."""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tiered.errors import Code, Refused
from tiered_api.cli.client_properties import OPTION
from tiered_api.cli.exits import Exit
from tiered_api.cli.lake.commands import describe_missing, find_login, prepare_spark, report_missing
from tiered_api.cli.output import print_error

if TYPE_CHECKING:
    from pyspark_tiered.log_tail import LogTail


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

    with SqlSession(args.warehouse, _open_tail(args)) as session:
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


def _open_tail(args: Namespace) -> LogTail | None:
    """Returns where the newest records are, None if the command names no place."""
    if args.command_config is not None and args.bootstrap is None:
        raise Refused(Code.INVALID_REQUEST, f"{OPTION} has no effect without --bootstrap")
    if args.bootstrap is None and args.store is None:
        return None
    from pyspark_tiered.log_tail import BrokerTail, BucketTail

    return BucketTail(args.store) if args.bootstrap is None else BrokerTail(args.bootstrap, find_login(args))


def _run_spark(args: Namespace) -> int:
    if lack := describe_missing():
        return report_missing(lack)
    if args.store is not None or args.bootstrap is not None:
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
