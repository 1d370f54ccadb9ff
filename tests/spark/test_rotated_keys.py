"""Tests of loads, queries and sessions of Spark whose key is replaced in the file of credentials meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import boto3
import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from pyspark.sql import SparkSession

from pyspark_tiered.jars import cache_folder
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.session import CREDENTIALS
from tests.contract.key_rotation import use_file, write_key
from tests.fakes3 import BUCKET, s3_fake
from tests.spark import filling
from tests.spark.driver import INTERPRETED
from tiered.ids import PartitionId

PROGRAM = f"""
from pyspark_tiered.session import session
spark = session(master="local[1]")
for _ in range(2):
    print("rows", spark.read.text("s3a://{BUCKET}/words/k").count(), flush=True)
    input()
"""


@pytest.mark.also("tests/spark/test_rotated_keys.py::test_credentials_of_a_session_are_read_again")
@pytest.mark.java
@pytest.mark.timeout(200)
def test_session_takes_a_key_that_was_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """The session of these tests is not used: its fixture builds the jars, or skips the test."""
    keys = tmp_path / "credentials"
    write_key(keys, "OLD")
    with s3_fake() as fake:
        client = boto3.client("s3", endpoint_url=fake.endpoint, region_name="us-east-1")
        client.put_object(Bucket=BUCKET, Key="words/k", Body=b"one\ntwo\n")
        fake.rules.access_keys = frozenset(["OLD"])
        settings = " ".join(f"--conf {key}={value}" for key, value in INTERPRETED.items())
        environment = {**os.environ, **fake.environment, "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell"}
        environment["AWS_SHARED_CREDENTIALS_FILE"] = str(keys)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del environment[name]
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as program:  # fmt: skip
            assert program.stdin is not None and program.stdout is not None
            assert program.stdout.readline() == "rows 2\n"
            write_key(keys, "NEW")
            fake.rules.access_keys = frozenset(["NEW"])
            rest, _ = program.communicate("\n\n", timeout=240)
        assert (rest, program.returncode) == ("rows 2\n", 0)


@pytest.mark.java
def test_credentials_of_a_session_are_read_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM without Spark makes them: the session has keys in its environment, which come before files."""
    assert spark.sparkContext.getConf().get("spark.hadoop.fs.s3a.aws.credentials.provider") == CREDENTIALS
    keys = tmp_path / "credentials"
    write_key(keys, "OLD")
    use_file(keys, monkeypatch)
    of_spark = Path(pyspark.__file__).parent / "jars"
    port = launch_gateway(
        jarpath=str(next(of_spark.glob("py4j-*.jar"))),
        classpath=os.pathsep.join(f"{folder}/*" for folder in (cache_folder(), of_spark)),
        die_on_exit=True,
    )
    with closing(JavaGateway(gateway_parameters=GatewayParameters(port=port))) as gateway:
        try:
            provider = gateway.jvm.tiered.s3.CurrentCredentialsProvider()
            assert provider.resolveCredentials().accessKeyId() == "OLD"
            write_key(keys, "NEW")
            assert provider.resolveCredentials().accessKeyId() == "NEW"
        finally:
            gateway.shutdown()


def test_loads_and_queries_without_a_jvm_take_a_replaced_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "credentials"
    store = f"file://{tmp_path}/store"
    topic = filling.topic_id(1)
    filling.create_topic(store, "t", topic, 1)
    rows = [(filling.BASE_MS + number, b"k", b"v%d" % number, ()) for number in range(10)]
    filling.upload(store, "t", PartitionId(topic, 0), list(filling.segments(rows)))
    with s3_fake() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        use_file(keys, monkeypatch)
        monkeypatch.setattr("tiered.object_store.s3_clients.LOOK_SECONDS", 0)

        def rotate(key: str) -> None:
            write_key(keys, key)
            fake.rules.access_keys = frozenset([key])

        rotate("FIRST")
        engine = NativeEngine()
        load(store, "t", f"s3://{BUCKET}/wh", engine=engine)
        with SqlSession(f"s3://{BUCKET}/wh") as session:
            assert list(session.run("SELECT count(*) FROM t").rows) == [(10,)]
            rotate("SECOND")
            assert list(session.run("SELECT max(value) FROM t").rows) == [("v9",)]
        rotate("THIRD")
        load(store, "t", f"s3://{BUCKET}/wh", engine=engine)
