"""`tiered sql`: one query, the statements of a script, or the shell. DuckDB by default, or Spark."""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib.util import find_spec

from tiered.errors import Code, Refused
from tiered_api.cli.exits import Exit
from tiered_api.cli.lake.commands import describe_missing, report_missing, silence_spark_logs


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

    with SqlSession(args.warehouse) as session:
        if args.query is not None:
            running = session.run(args.query)
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


def _run_spark(args: Namespace) -> int:
    if lack := describe_missing():
        return report_missing(lack)
    if args.query is None:
        raise Refused(Code.INVALID_REQUEST, "the shell needs the native engine: name a query, or leave --engine away")
    from pyspark_tiered.query.output import render
    from pyspark_tiered.sql import sql as run

    silence_spark_logs()
    print(render(run(args.warehouse, args.query), args.format))
    return Exit.OK
