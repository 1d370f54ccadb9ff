"""`tiered acl` and `tiered user` before their requests: rules and filters of options, passwords, lock-outs."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from pathlib import Path

import pytest

from tiered.errors import Refused
from tiered.security.acls import CLUSTER_NAME, Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tiered.security.secret import Secret
from tiered_api.cli.arguments import parser
from tiered_api.cli.client_properties import read_client_properties
from tiered_api.cli.client_settings import ClientSettings, Source, merge_sources
from tiered_api.cli.encryption import open_net
from tiered_api.cli.login import find_login
from tiered_api.cli.main import main
from tiered_api.cli.security.acls import read_filters, read_new_acls
from tiered_api.cli.security.login_mechanisms import read_mechanisms
from tiered_api.cli.security.passwords import read_password
from tiered_api.kafka.client.login import TokenLogin, UserLogin

BOB = Acl(
    ResourceType.CLUSTER, PatternType.LITERAL, CLUSTER_NAME, "User:bob", "*", Operation.ALTER, Permission.ALLOW
)  # fmt: skip
DENY = BOB._replace(principal="User:*", permission=Permission.DENY)
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Terminal(io.StringIO):
    """Standard input of somebody who types."""

    def isatty(self) -> bool:
        return True


def test_rules_are_the_combinations_of_the_options() -> None:
    words = "acl add --topic a --topic b --allow-principal User:bob --deny-principal User:eve --operation read"
    made = read_new_acls(parser().parse_args([*words.split(), "--resource-pattern-type", "prefixed"]))
    assert made == [
        Acl(ResourceType.TOPIC, PatternType.PREFIXED, topic, principal, "*", Operation.READ, permission)
        for topic in ("a", "b")
        for principal, permission in (("User:bob", Permission.ALLOW), ("User:eve", Permission.DENY))
    ]
    words = "acl add --cluster --allow-principal User:bob --operation alter-configs --operation AlterConfigs"
    assert read_new_acls(parser().parse_args(words.split())) == [BOB._replace(operation=Operation.ALTER_CONFIGS)]


def test_filters_are_the_combinations_of_the_options() -> None:
    assert read_filters(parser().parse_args(["acl", "list"])) == [AclFilter()]
    words = "acl list --topic a --principal User:bob --resource-pattern-type match"
    assert read_filters(parser().parse_args(words.split())) == [
        AclFilter(ResourceType.TOPIC, PatternType.MATCH, "a", "User:bob")
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("acl add --allow-principal User:bob", "needs a resource"),
        ("acl add --topic t", "needs --allow-principal or --deny-principal"),
        ("acl add --topic t --allow-principal bob", "must have the form User:name"),
        ("acl add --group g --allow-principal User:bob --operation write", "has no operation WRITE"),
        ("acl add --topic t --allow-principal User:bob --host example.com", "must be an IP address"),
        ("acl remove", "needs an option that chooses rules"),
    ],
)
def test_command_that_cannot_work_is_refused_before_any_request(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--brokers", "127.0.0.1:1"]) == 2
    assert why in capsys.readouterr().err


def test_password_comes_from_a_file_or_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text("pen cil\nmore\n")
    assert read_password(str(file), "bob") == "pen cil"
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\n"))
    assert read_password("-", "bob") == "from stdin"
    for given, text, why in ((None, "x", "needs --password-file"), ("-", "\n", "is empty"), ("-", "x" * 2000, "1024")):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        with pytest.raises(Refused, match=why):
            read_password(given, "bob")


def test_password_is_asked_for_twice_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["pen", "pen", "pen", "pin"])
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("tiered_api.cli.security.passwords.getpass", lambda prompt, stream: next(typed))
    assert read_password(None, "bob") == "pen"
    with pytest.raises(Refused, match="the two passwords differ"):
        read_password(None, "bob")


def settings(properties: Mapping[str, str], extra: Mapping[str, str] = {}) -> ClientSettings:
    """Returns settings from options of `-X` and from a file of properties."""
    return merge_sources([Source("-X", extra, is_option=True), Source("file", properties, is_client=True)])


def test_client_properties_say_how_a_connection_is_made(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nbootstrap.servers=b:1\nacks=all\n"
        f'sasl.jaas.config={JAAS} required \\\n  username="bob" \\\n  password="pencil";\nrequest.timeout.ms=2500\n'
    )
    properties = read_client_properties(str(file))
    assert (properties["brokers"], properties["timeout"], "acks" in properties) == ("b:1", "2.5", False)
    assert find_login(settings(properties)) == UserLogin("bob", Secret("pencil"), "SCRAM-SHA-256")
    assert find_login(settings(properties, {"sasl.username": "eve"})) == UserLogin(
        "eve", Secret("pencil"), "SCRAM-SHA-256"
    )
    file.write_text(file.read_text().replace('"pencil";', '"pencil" tokenauth="true";'))
    properties = read_client_properties(str(file))
    assert find_login(settings(properties)) == UserLogin("bob", Secret("pencil"), "SCRAM-SHA-256", by_token=True)
    assert find_login(settings(properties, {"sasl.username": "eve"})) == UserLogin(
        "eve", Secret("pencil"), "SCRAM-SHA-256"
    )


def test_client_properties_name_a_token(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    (tmp_path / "token").write_text("opaque")
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    file.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.jaas.config={module} required "
        f'extension_cluster="x";\nsasl.oauthbearer.token.endpoint.url=file://{tmp_path}/token\n'
    )
    login = find_login(settings(read_client_properties(str(file))))
    assert isinstance(login, TokenLogin) and login.extensions == (("cluster", "x"),)

    async def fetch() -> Secret:
        return await login.fetch()

    assert asyncio.run(fetch()) == Secret("opaque")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'sasl.jaas.config={JAAS} required username="bob" password="pencil"', "; at the end"),
        (f'sasl.jaas.config={JAAS} required password="pencil";', "with username and password"),
        ("sasl.jaas.config=com.example.LoginModule required username=u password=pencil;", "ScramLoginModule or"),
        ("ssl.truststore.location=/t.jks\nssl.truststore.password=pencil", "must be PEM or PKCS12"),
        ("sasl.client.callback.handler.class=pencil", "sasl.client.callback.handler.class is not supported"),
        ("request.timeout.ms=pencil", "must be a number"),
    ],
)
def test_bad_client_properties_are_refused_without_their_text(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(Refused, match=why) as refused:
        read_client_properties(str(file))
    assert "pencil" not in refused.value.why and str(file) in refused.value.why


def test_truststore_of_the_client_properties_is_used(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"absent\.pem"):
        open_net(
            settings(
                {
                    "security.protocol": "SSL",
                    "ssl.truststore.type": "PEM",
                    "ssl.truststore.location": str(tmp_path / "absent.pem"),
                }
            )
        )


@pytest.mark.parametrize(
    ("quota", "why"),
    [("rate=inf", "a quota is finite"), ("rate=nan", "a quota is finite"), ("rate", "not QUOTA=NUMBER")],
)
def test_quota_that_is_no_number_is_refused(quota: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["quota", "set", "--user", "bob", quota])
    assert why in capsys.readouterr().err


NEW, OLD = "SCRAM-SHA-512", "SCRAM-SHA-256"
BOTH = {"sasl.enabled.mechanisms": f"{OLD}, {NEW}", "authentication.method": "NONE"}
TWO = {
    "listeners": "INNER://0.0.0.0:1,CLIENT://[::]:2",
    "listener.security.protocol.map": "INNER:SASL_SSL,CLIENT:SASL_PLAINTEXT",
}


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        (BOTH | {"listeners": "SASL_SSL://:9093,PLAINTEXT://:9092"}, {OLD, NEW}),
        (BOTH | {"listeners": "PLAINTEXT://:9092"}, set()),
        (BOTH | {"listeners": None}, set()),
        (BOTH | TWO, {OLD, NEW}),
        (BOTH | TWO | {"listener.security.protocol.map": "INNER:SSL,CLIENT:PLAINTEXT"}, set()),
        (BOTH | TWO | {f"listener.name.{each}.sasl.enabled.mechanisms": NEW for each in ("inner", "client")}, {NEW}),
        (BOTH | TWO | {"listener.name.inner.sasl.enabled.mechanisms": "PLAIN"}, {OLD, NEW}),
        (BOTH | {"listeners": "PLAINTEXT://:9092", "authentication.method": "BEARER,BASIC"}, {OLD, NEW}),
        ({"listeners": "SASL_SSL://:9093", "sasl.enabled.mechanisms": "GSSAPI"}, set()),
    ],
)
def test_password_is_taken_by_a_listener_with_its_mechanism(settings: dict[str, str | None], taken: set[str]) -> None:
    assert {each for each in (OLD, NEW) if read_mechanisms(settings).has(each)} == taken
