"""A Spark session for small tables, in which several drivers can safely write Delta tables on `file:` and `s3a:`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tiered
from pyspark_tiered import jars
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_STORES = {
    "spark.delta.logStore.s3a.impl": "tiered.delta.ConditionalS3LogStore",
    "spark.delta.logStore.file.impl": "tiered.delta.LinkedFileLogStore",
}

CREDENTIALS = "tiered.s3.CurrentCredentialsProvider"
"""The default credentials of AWS, read again when their files change."""

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

LOGGING = Path(__file__).with_name("log4j2.properties")

SMALL_TABLES = {
    # Spark's defaults are for clusters: 200 shuffle tasks, 50 to read a table's state, 10,000 to list a folder.
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable that `spark-submit` sets: its JVM runs already."""


def session(
    *, master: str = "local[*]", conf: Mapping[str, str] | None = None, profiles: Sequence[str] = ()
) -> SparkSession:
    """Returns the running session of this process, or a new one. `conf` overrides the settings made here.

    Under `spark-submit` the master, the jars and all other settings given there hold.

    Raises `Unavailable` if Java, Maven or the jars are missing and cannot be fetched. Credentials, region and endpoint
    of S3 come from the environment and the files that every AWS tool reads.
    """
    from pyspark.sql import SparkSession

    _hand_python_to_workers()
    builder = SparkSession.builder.appName("tiered")
    if SUBMITTED in os.environ:
        settings = {key: value for key, value in _table_settings().items() if key not in _submitted_settings()}
    else:
        builder = builder.master(master)
        settings = _settings(jars.ensure_jars(profiles))
    settings |= conf or {}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def s3a_settings() -> dict[str, str]:
    """Returns S3A's settings for the variables and files that boto3 reads by itself."""
    from tiered.object_store.s3_session import find_endpoint, open_session

    aws = open_session()
    settings = {
        "spark.hadoop.fs.s3a.aws.credentials.provider": CREDENTIALS,
        "spark.hadoop.fs.s3a.input.stream.type": "classic",
        "spark.hadoop.fs.s3a.endpoint.region": aws.region_name or "us-east-1",
    }
    if endpoint := find_endpoint(aws):
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
    return settings


def _table_settings() -> dict[str, str]:
    settings = {**DELTA, **LOG_STORES, **SMALL_TABLES, **s3a_settings()}
    return settings | {"spark.sql.session.timeZone": "UTC"}


def _submitted_settings() -> dict[str, str]:
    """Returns the settings of `spark-submit`. Raises `Refused` if its JVM does not know our jars."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in (DELTA["spark.sql.extensions"], *LOG_STORES.values(), CREDENTIALS):
        try:
            loader.loadClass(name)
        except Py4JJavaError:
            folder = jars.cache_folder()
            why = f"spark-submit needs the jars of tiered, {name} is missing: spark-submit --jars '{folder}/*.jar' ..."
            raise Refused(Code.INVALID_REQUEST, f"{why} (`python -m pyspark_tiered.jars` builds them)") from None
    return dict(SparkConf().getAll())


def _settings(paths: Sequence[Path]) -> dict[str, str]:
    return {
        **_table_settings(),
        "spark.jars": ",".join(map(str, paths)),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _hand_python_to_workers() -> None:
    """Sets the environment that workers of a local master inherit: this interpreter and our packages' folders."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folders = [str(Path(package).parent.parent) for package in (_folder(tiered.__file__), __file__)]
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*known, *folders]))


def _folder(module_file: str | None) -> str:
    assert module_file is not None
    return module_file
