"""One frame for a whole topic: the rows of its Delta table, and the newer ones from the bucket or from a broker.

The frame is cut once: one version of the table gives the bounds of its partitions, and one look at the topic gives the
ends. So each record below the ends is there once, while producers and loaders go on. Records that were erased from the
table lie below its bounds, and are not read from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark_tiered import source
from pyspark_tiered.delta import table_form
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.topic_table import check_accounted
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.broker import NOTHING, BrokerClient
from pyspark_tiered.log.bucket import check_table, cold_topic, never_loaded
from pyspark_tiered.log.log_tail import ReadableLog, cut_log
from pyspark_tiered.log.login import COMMAND_CONFIG, NO_LOGIN, make_login, read_login_file
from pyspark_tiered.log.offsets import CUT, Cut
from tiered.errors import Code, Refused
from tiered.offline.bucket import open_bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


NUMBER_TYPES = {"partition": "int", "offset": "bigint", "timestamp_type": "tinyint"}


def table(
    spark: SparkSession,
    topic: str,
    *,
    warehouse: str | None = None,
    store: str | None = None,
    bootstrap: str | None = None,
    command_config: str | None = None,
) -> DataFrame:
    """Returns all records of a topic, in the columns of its table.

    Give `bootstrap` for the newest records, or `store` for those in the bucket. `command_config` is a file with the
    properties of a Kafka client, for the broker's login. The session's settings `spark.tiered.warehouse`, `.store`,
    `.bootstrap` and `.commandConfig` stand for arguments that are not given.

    Raises `Refused` if there is no such topic or table, if records expired before any load, and for rows of the table
    that the log would repeat.
    """
    given = {"warehouse": warehouse, "store": store, "bootstrap": bootstrap}
    found = {name: value or spark.conf.get(f"spark.tiered.{name}", None) for name, value in given.items()}
    if bootstrap is None and store is not None:
        found["bootstrap"] = None
    if not found["warehouse"] or not (found["bootstrap"] or found["store"]):
        raise Refused(
            Code.INVALID_REQUEST,
            "warehouse, and store or bootstrap are needed, as arguments or as settings spark.tiered.warehouse ...",
        )
    place = {"bootstrap": found["bootstrap"]} if found["bootstrap"] else {"store": str(found["store"])}
    file = command_config or spark.conf.get(f"spark.tiered.{COMMAND_CONFIG}", None)
    if file and "bootstrap" in place:
        place[COMMAND_CONFIG] = file
    url = f"{spark_url(found['warehouse'])}/{topic}"
    check_table(topic, url)
    log = _read_log(topic, place)
    with closing(NativeTable(url, topic, log.topic_id)) as held:
        at = held.pin()
        if at.version < 0:
            raise never_loaded(topic, url)

        def look(reached: Mapping[int, int]) -> ReadableLog:
            found = _read_log(topic, place, log.topic_id, reached)
            Cut(log.topic_id, {}).check(topic, found.topic_id)
            return found

        at, newer = cut_log(topic, at, log, loaded=Snapshot.loaded_offsets, read=held.pin, look=look)
        check_accounted(at)
    return _table_rows(spark, at).unionByName(_log_rows(spark, topic, place, Cut(log.topic_id, newer)))


def _table_rows(spark: SparkSession, at: Snapshot) -> DataFrame:
    """Returns the rows of a table in the columns that a load writes, and in its types: ALTER TABLE may have widened the
    numbers. Columns of a user are left out."""
    rows = spark.read.format("delta").option("versionAsOf", at.version).load(at.url)
    found = dict(rows.dtypes)
    widened = {name: kind for name, kind in NUMBER_TYPES.items() if found[name] != kind}
    return rows.selectExpr(
        *(f"try_cast({name} AS {widened[name]}) AS {name}" if name in widened else name for name in table_form.COLUMNS)
    )


def _read_log(
    topic: str, place: Mapping[str, str], topic_id: str = "", reached: Mapping[int, int] = NOTHING
) -> ReadableLog:
    if "bootstrap" in place:
        login = make_login(read_login_file(place[COMMAND_CONFIG])) if COMMAND_CONFIG in place else NO_LOGIN
        live = BrokerClient(place["bootstrap"], login=login).topic(topic, topic_id, reached)
        return ReadableLog(live.topic_id, {each.partition: (each.start, each.end) for each in live.partitions})

    async def read() -> ReadableLog:
        async with open_bucket(place["store"]) as bucket:
            cold = await cold_topic(bucket, topic)
        return ReadableLog(
            cold.topic_id,
            {each.partition: (each.log_start_offset, each.readable_end_offset) for each in cold.partitions},
        )

    return asyncio.run(read())


def _log_rows(spark: SparkSession, topic: str, place: Mapping[str, str], cut: Cut) -> DataFrame:
    reader = spark.read.format("tiered").schema(source.SCHEMA).options(**place).option("topic", topic)
    rows = reader.option(CUT, cut.to_option()).load()
    columns = [
        "CAST(timestampType AS tinyint) AS timestamp_type" if name == "timestamp_type" else name
        for name in table_form.COLUMNS
    ]
    return rows.selectExpr(*columns)
