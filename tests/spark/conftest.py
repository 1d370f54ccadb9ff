"""One Spark session for all of these tests; S3 is a server of this process, up before the session reads its address."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered import jars
from pyspark_tiered.session import session
from tests.fakes3 import BUCKET, s3_moto
from tests.spark.driver import FAST_START, OtherDriver, other_driver


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Restores the levels of all logs after each test: commands that run in this process set them."""
    loggers = logging.root.manager.loggerDict
    before = {name: each.level for name, each in loggers.items() if isinstance(each, logging.Logger)}
    yield
    for name, each in list(loggers.items()):
        if isinstance(each, logging.Logger) and each.level != before.get(name, logging.NOTSET):
            each.setLevel(before.get(name, logging.NOTSET))


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """Yields a bucket of an S3 server whose address is in the environment; conditional puts are linearizable there."""
    with s3_moto() as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment.items():
            patch.setenv(key, value)
        yield BUCKET


@pytest.fixture(scope="session")
def spark(bucket: str) -> Iterator[SparkSession]:
    """Yields a session with two cores. Without Java or Maven the tests are skipped with the text that a user would
    read."""
    if lack := jars.missing_tools(build=not jars.cache_folder().is_dir()):
        pytest.skip(lack)
    running = session(master="local[2]", conf=FAST_START)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def other(spark: SparkSession) -> Iterator[OtherDriver]:
    """Yields a driver that starts after the session, whose jars and S3 address it inherits."""
    with other_driver() as started:
        yield started
