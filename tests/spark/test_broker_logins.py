"""Tests of reads from a broker that wants TLS and a login: as options, by a file, and no secret in a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tiered import table
from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.broker import BrokerClient
from pyspark_tiered.log.login import login_of_options, make_login, read_login_file
from pyspark_tiered.source import check_options
from tests.certificates import sign
from tests.e2e.serving import ServeProcess
from tests.token_server import CLIENT, SECRET, TokenServer, run_token_server
from tests.tokens import AUDIENCE, EC, ISSUER, UNTRUSTED
from tiered.errors import Refused
from tiered_api.cli.main import main

TOPIC = "private"
COUNT = 20
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Site(NamedTuple):
    """A broker with TLS and a login, and the ways of clients to it."""

    address: str
    authority: str
    by_password: str
    """A file of properties with a user."""
    by_token: str
    """A file of properties with a token server."""
    tokens: TokenServer

    def options(self, password: str = SECRET) -> dict[str, str]:
        """Returns the options of a user."""
        return {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f'{SCRAM} required username="alice" password="{password}";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": self.authority,
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("logins")
    signer = sign("CN=authority")
    authority = directory / "authority.pem"
    authority.write_text(signer.certificate_pem)
    with run_token_server() as tokens:
        settings = (
            "authentication.method=BASIC,BEARER",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={sign('CN=localhost', signer).write(directory / 'broker.pem')}",
            f"sasl.oauthbearer.jwks.endpoint.url={tokens.keys_url}",
            f"tiered.sasl.oauthbearer.allowed.urls={tokens.keys_url}",
            f"sasl.oauthbearer.expected.issuer={ISSUER}",
            f"sasl.oauthbearer.expected.audience={AUDIENCE}",
        )
        arguments = ("--add-scram", f"SCRAM-SHA-512=[name=alice,password={SECRET}]")
        words = (*arguments, *(word for each in settings for word in ("-c", each)))
        with ServeProcess(directory / "data", *words, http="https://127.0.0.1:0") as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "partitioner": "consistent"})
            for number in range(COUNT):
                producer.produce(TOPIC, json.dumps({"n": number}), key="same")
            assert producer.flush(30) == 0
            address = f"localhost:{broker.url.rpartition(':')[2]}"
            one = Site(address, str(authority), "", "", tokens)
            by_password = directory / "password.properties"
            by_password.write_text("".join(f"{name[6:]}={value}\n" for name, value in one.options().items()))
            by_token = directory / "token.properties"
            by_token.write_text(
                "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nbootstrap.servers=not-read:1\n"
                f"sasl.oauthbearer.token.endpoint.url={tokens.url}\n"
                f"sasl.oauthbearer.client.credentials.client.id={CLIENT}\n"
                f"sasl.oauthbearer.client.credentials.client.secret={SECRET}\n"
                f"ssl.truststore.type=PEM\nssl.truststore.location={authority}\n"
            )
            yield one._replace(by_password=str(by_password), by_token=str(by_token))
            log = broker.log.read_text()
    assert "Traceback" not in log and SECRET not in log


def read(spark: SparkSession, site: Site, **options: str) -> DataFrame:
    return spark.read.format("tiered").options(bootstrap=site.address, topic=TOPIC, **options).load()


def make_table(site: Site, directory: Path) -> str:
    """Makes the table of a load that had no record yet; returns the warehouse."""
    topic = BrokerClient(site.address, login=make_login(read_login_file(site.by_token))).topic(TOPIC)
    advances = [Advance(each.partition, -1, each.start) for each in topic.partitions]
    assert NativeTable(f"file:{directory}/{TOPIC}", TOPIC, topic.topic_id).commit([], advances)
    return str(directory)


def test_client_logs_in_by_password_or_token_over_tls(site: Site) -> None:
    for file in (site.by_password, site.by_token):
        client = BrokerClient(f"https://{site.address}", login=make_login(read_login_file(file)))
        assert sum(each.end for each in client.topic(TOPIC).partitions) == COUNT
    properties = read_login_file(site.by_password)
    with pytest.raises(Refused, match="login"):
        BrokerClient(site.address, login=make_login({**properties, "security.protocol": "SSL"})).topic(TOPIC)
    with pytest.raises(Refused, match="not for a bootstrap of http"):
        BrokerClient(f"http://{site.address}", login=make_login(properties))
    site.tokens.key = UNTRUSTED
    try:
        properties = {**read_login_file(site.by_token), "sasl.oauthbearer.scope": "another source"}
        with pytest.raises(Refused, match="the token is refused: its signature is wrong"):
            BrokerClient(site.address, login=make_login(properties)).topic(TOPIC)
    finally:
        site.tokens.key = EC


def test_commands_read_the_newest_records_with_a_login(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ["--warehouse", make_table(site, tmp_path), "--format", "json", "--bootstrap", site.address]
    query = f"SELECT count(*) AS n FROM {TOPIC}"
    assert main(["sql", query, *where, "--command-config", site.by_token]) == 0
    assert json.loads(capfd.readouterr().out) == {"n": COUNT}
    assert main(["table", "ls", *where, "--command-config", site.by_password]) == 0
    assert json.loads(capfd.readouterr().out)["lag"] == COUNT
    assert main(["sql", query, *where[:-2], "--command-config", site.by_token]) == 2
    assert "no effect without --bootstrap" in capfd.readouterr().err


def test_commands_read_the_newest_records_by_a_profile(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    where = ["--warehouse", make_table(site, tmp_path / "tables"), "--format", "json"]
    words = [f"http={site.address}", "security.protocol=SASL_SSL", "sasl.username=alice", f"sasl.password={SECRET}"]
    words += [f"ssl.ca.location={site.authority}"]
    assert main(["profile", "create", "user", *(word for each in words for word in ("-s", each))]) == 0
    assert main(["profile", "create", "token", "-s", f"http={site.address}", "--command-config", site.by_token]) == 0
    query = ["sql", f"SELECT count(*) AS n FROM {TOPIC}", *where]
    for profile in ("user", "token"):
        capfd.readouterr()
        assert main([*query, "--profile", profile]) == 0
        assert json.loads(capfd.readouterr().out) == {"n": COUNT}
        assert main(["table", "ls", *where, "--profile", profile]) == 0
        assert json.loads(capfd.readouterr().out)["lag"] == COUNT
    monkeypatch.setenv("TIERED_PROFILE", "user")
    assert main([*query, "--bootstrap", site.address]) == 0
    assert json.loads(capfd.readouterr().out) == {"n": COUNT}
    assert main(query) == 0, "the environment alone sends no query to the cluster"
    assert json.loads(capfd.readouterr().out) == {"n": 0}
    assert main([*query, "--bootstrap", f"http://{site.address}"]) == 2
    source = f"profile 'user' ({tmp_path}/config/tiered/profiles.toml)"
    assert f"is not for a bootstrap of http (security.protocol from {source})" in capfd.readouterr().err
    assert main(["profile", "create", "wrong", "--from-profile", "user", "-s", "sasl.password=wrong"]) == 0
    for words in (query, ["table", "describe", TOPIC, *where]):
        capfd.readouterr()
        assert main([*words, "--profile", "wrong"]) == 2
        assert f"(the login is from {source.replace('user', 'wrong')})" in capfd.readouterr().err
    assert main(["profile", "create", "gone", "--from-profile", "user", "-s", "http=localhost:1"]) == 0
    capfd.readouterr()
    assert main([*query, "--profile", "gone"]) == 4
    assert f"(http from profile 'gone' ({tmp_path}/config/tiered/profiles.toml))" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kafka.ssl.keystore.key": "pencil"}, "Spark shows options in plans"),
        ({"kafka.sasl.oauthbearer.assertion.file": "pencil"}, "unknown option"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, "it must be one of SCRAM"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}, "a login needs both"),
        ({"kafka.security.protocol": "TLS"}, "it must be one of PLAINTEXT"),
        ({"commandConfig": "/absent"}, "commandConfig /absent: it cannot be read"),
        (
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "SCRAM-SHA-256",
                "kafka.sasl.jaas.config": f'{SCRAM} required username="i" password="pencil" tokenauth="true";',
            },
            "HTTP takes no delegation tokens",
        ),
    ],
)
def test_login_that_cannot_be_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        login_of_options(check_options({"bootstrap": "localhost:1", "topic": TOPIC, **options}))
    assert "pencil" not in refused.value.why
    with pytest.raises(Refused, match=r"has no effect without the option 'bootstrap'|unknown option"):
        check_options({"store": "memory://", "topic": TOPIC, **options})


@pytest.mark.also("tests/spark/test_broker_logins.py::test_client_logs_in_by_password_or_token_over_tls")
@pytest.mark.java
def test_frames_log_in_and_their_plans_have_no_secret(spark: SparkSession, site: Site) -> None:
    by_options = read(spark, site, **site.options())
    assert by_options.count() == COUNT
    by_file = read(spark, site, commandConfig=site.by_token)
    assert by_file.selectExpr("sum(CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT))").first() == (190,)
    for frame in (by_options, by_file):
        plan = frame._jdf.queryExecution().toString()
        assert "tiered" in plan and SECRET not in plan
    with pytest.raises(PySparkException, match="the user or the password is wrong") as refused:
        read(spark, site, **site.options("wrong")).count()
    assert SECRET not in str(refused.value)


@pytest.mark.also("tests/spark/test_broker_logins.py::test_client_logs_in_by_password_or_token_over_tls")
@pytest.mark.java
def test_stream_and_whole_topic_log_in_by_a_file(
    spark: SparkSession, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = spark.readStream.format("tiered").options(bootstrap=site.address, topic=TOPIC, **site.options())
    frame = rows.option("startingOffsets", "earliest").load()
    writer = frame.writeStream.format("memory").queryName("logins").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert spark.table("logins").count() == COUNT
    query.explain(True)
    assert SECRET not in capsys.readouterr().out and SECRET not in str(query.lastProgress)
    assert SECRET not in frame._jdf.queryExecution().toString()
    written = [file.read_text(errors="replace") for file in (tmp_path / "c").rglob("*") if file.is_file()]
    assert written and not any(SECRET in text for text in written)
    warehouse = make_table(site, tmp_path / "tables")
    whole = table(spark, TOPIC, warehouse=warehouse, bootstrap=site.address, command_config=site.by_password)
    assert whole.count() == COUNT
