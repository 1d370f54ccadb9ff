"""The demo's last steps: the Delta tables, the proof that the raw one is complete, and three SQL queries of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiered.errors import Corrupt
from tiered_api.cli.demo.flights import Departure
from tiered_api.cli.demo.progress import Steps, bar
from tiered_api.cli.demo.questions import QUESTIONS, expected_answers, format_query
from tiered_api.cli.lake.commands import verified_lines
from tiered_api.cli.output import format_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_tiered.load.load import LoadProgress


def table_steps(store: str, topic: str, warehouse: str, records: Sequence[Departure], steps: Steps) -> None:
    """Loads, verifies and queries. Raises `Corrupt` if the table or a result differs from the input."""
    from pyspark_tiered.session import session

    # The time of the first step includes the start of Spark.
    spark = None
    try:
        with steps.step("load", f"Starting Spark and loading the Delta table {warehouse}/{topic}") as report:
            spark = session()
            done = _load(spark, store, topic, warehouse, len(records))
            report(f"{done.rows:,} rows in {done.files} files, from {format_size(done.log_bytes)} of log")
            report(f"{done.typed_rows:,} of the values as columns of {topic}_typed")
        _verify(spark, store, topic, warehouse, steps)
        _check_answers(topic, warehouse, records, steps)
    finally:
        if spark is not None:
            spark.stop()


def _load(spark: SparkSession, store: str, topic: str, warehouse: str, expected: int) -> LoadProgress:
    from pyspark_tiered.load.load import LoadOptions, load
    from pyspark_tiered.typed.form import ValueRules

    with bar(expected, "rows") as advance:
        shown = 0

        def on_progress(progress: LoadProgress) -> None:
            nonlocal shown
            advance(progress.rows - shown)
            shown = progress.rows

        done = load(
            store, topic, warehouse, progress=on_progress, spark=spark, options=LoadOptions(values=ValueRules())
        )
    if done.rows != expected:
        raise Corrupt(f"{expected} records were sent and {done.rows} rows loaded")
    if (done.typed_rows, done.dead_letters) != (expected, 0):
        raise Corrupt(f"of {expected} records {done.typed_rows} fitted into columns, {done.dead_letters} did not")
    return done


def _verify(spark: SparkSession, store: str, topic: str, warehouse: str, steps: Steps) -> None:
    from pyspark_tiered.proof.verify import verify

    with steps.step("verify", "Proving that every record of the bucket is in the table once") as report:
        found = verify(store, topic, warehouse, spark=spark)
        if not found.ok or found.gaps:
            raise Corrupt("; ".join(verified_lines(found)))
        report(f"{found.rows:,} rows, equal in every column; no gaps")


def _check_answers(topic: str, warehouse: str, records: Sequence[Departure], steps: Steps) -> None:
    """Compares each result with the one from the input. The queries run without Spark."""
    from pyspark_tiered.query.engine import SqlSession
    from pyspark_tiered.query.output import render

    with (
        steps.step("sql", "Querying its columns, and comparing with results computed from the input") as report,
        SqlSession(warehouse) as session,
    ):
        for question, expected in zip(QUESTIONS, expected_answers(records), strict=True):
            found = session.run(format_query(question, topic)).collect()
            if list(found.rows) != expected:
                raise Corrupt(f"{question.words} The table says {found.rows}, the input {expected}")
            report(question.words)
            for line in render(found).splitlines():
                report(f"  {line}")
