"""Tests of clients that log in by PLAIN, or by tokens of a token server that the test runs, over SASL_SSL."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.compat.brokers import CompatBroker, run_broker
from tests.compat.client import ClientError, ClientRecord, DriverClient, wait_until
from tests.compat.clients import KINDS, ClientKind, kinds
from tests.compat.conftest import CHOICE
from tests.compat.login import PLAIN, TOKEN, Login
from tests.compat.test_records import read
from tests.token_server import CLIENT, SECRET, TokenServer, run_token_server
from tests.tokens import EC, UNTRUSTED

pytestmark = pytest.mark.timeout(600)
WANTED = {"secure": ("ours",), "peer": ("peer",), "all": ("ours", "peer")}
TOKEN_SECONDS = 3
TOKENS = 3
KCAT_SECONDS = 120
WITHOUT_TOKEN_SERVER = ("java-2.8",)
"""Clients that came before KIP-768: an application writes its own class for tokens."""

ERRORS = {
    "confluent": "_AUTHENTICATION: ",
    "aiokafka": "KafkaConnectionError: Unable to bootstrap",
    "kafkajs": "KafkaJS",
    "java-4.2": "SaslAuthenticationException: ",
    "java-2.8": "SaslAuthenticationException: ",
    "java-3.9": "SaslAuthenticationException: ",
}
"""The error of each client that tells one soon."""
REASONS = {PLAIN: "the user or the password is wrong", TOKEN: "the token is refused: its signature is wrong"}
"""The words of our broker."""
JAVA = ("java-4.2", "java-2.8", "java-3.9")
WITH_REASON = {PLAIN: ("confluent", "kafkajs", *JAVA), TOKEN: ("confluent", *JAVA)}
"""Clients that pass on the words of the broker."""
RECORD = ClientRecord(b"x").line()


class Place(NamedTuple):
    """The broker for a login."""

    address: str
    login: Login


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with run_token_server() as server:
        yield server


@pytest.fixture(scope="module", params=WANTED.get(CHOICE, ()))
def secure(request: pytest.FixtureRequest, tokens: TokenServer) -> Iterator[CompatBroker]:
    """Yields each of the brokers, with a listener of SASL_SSL for three mechanisms."""
    with run_broker(request.param, secure=True, tokens=tokens) as one:
        yield one


@pytest.fixture(scope="module")
def admin(secure: CompatBroker) -> Iterator[DriverClient]:
    """Yields a client that creates topics."""
    with KINDS[0].start(secure) as client:
        yield client


def place_of(broker: CompatBroker, tokens: TokenServer, mechanism: str, password: str = SECRET) -> Place:
    """Returns the broker for a client that logs in by this mechanism."""
    assert broker.login is not None
    login = broker.login._replace(mechanism=mechanism, password=password)
    if mechanism == TOKEN:
        login = login._replace(user=CLIENT, token_url=tokens.url)
    return Place(broker.address, login)


def skip_without_tokens(kind: ClientKind, mechanism: str) -> None:
    if mechanism == TOKEN and kind.name in WITHOUT_TOKEN_SERVER:
        pytest.skip(f"{kind.name} knows no token servers")


@pytest.mark.parametrize("mechanism", [PLAIN, TOKEN])
@pytest.mark.parametrize("kind", kinds("transactions"))
def test_client_writes_and_reads_in_a_group(
    kind: ClientKind, mechanism: str, secure: CompatBroker, tokens: TokenServer, admin: DriverClient, name: str
) -> None:
    skip_without_tokens(kind, mechanism)
    admin.ask("create", topic=name)
    asked = len(tokens.forms)
    with kind.start(place_of(secure, tokens, mechanism)) as client:
        assert client.send(name, [ClientRecord(b"%d" % number) for number in range(3)]) == [(0, 0), (0, 1), (0, 2)]
        client.ask("open", group=name)
        client.ask("subscribe", topics=[name])
        assert [each.value for each in client.wait_for(3)] == [b"0", b"1", b"2"]
        client.ask("leave")
    assert (len(tokens.forms) > asked) is (mechanism == TOKEN)


@pytest.mark.parametrize("kind", kinds("transactions"))
def test_client_goes_on_when_its_tokens_end(
    kind: ClientKind, secure: CompatBroker, tokens: TokenServer, admin: DriverClient, name: str
) -> None:
    skip_without_tokens(kind, TOKEN)
    if (secure.name, kind.name) == ("peer", "kafkajs"):
        pytest.skip("KafkaJS logs in again ten seconds early; Kafka refuses a login within a second after another")
    admin.ask("create", topic=name)
    tokens.life_seconds, asked, sent = TOKEN_SECONDS, len(tokens.forms), 0
    try:
        with kind.start(place_of(secure, tokens, TOKEN)) as client:
            until = time.monotonic() + TOKENS * TOKEN_SECONDS
            while time.monotonic() < until or len(tokens.forms) < asked + TOKENS:
                assert client.send(name, [ClientRecord(b"%d" % sent)], idempotent=True) == [(0, sent)]
                sent += 1
    finally:
        tokens.life_seconds = 300
    assert [int(each.value or b"") for each in read(admin, name, name, sent)] == list(range(sent))


@pytest.mark.parametrize("mechanism", [PLAIN, TOKEN])
@pytest.mark.parametrize("kind", kinds("transactions"))
def test_wrong_login_is_an_error_of_the_client(
    kind: ClientKind, mechanism: str, secure: CompatBroker, tokens: TokenServer, admin: DriverClient, name: str
) -> None:
    """A token has the name of a user with rights, but the broker knows no key that signed it."""
    skip_without_tokens(kind, mechanism)
    if kind.name not in ERRORS:
        pytest.skip(f"{kind.name} tries again until a time is over, and its error is the time")
    if (secure.name, kind.name, mechanism) == ("peer", "aiokafka", TOKEN):
        pytest.skip("aiokafka does not answer a refusal of its token, and Kafka waits for the answer")
    admin.ask("create", topic=name)
    if mechanism == TOKEN:
        tokens.key, place = UNTRUSTED, place_of(secure, tokens, TOKEN)
    else:
        place = place_of(secure, tokens, PLAIN, "wrong")
    try:
        with kind.start(place) as client:
            number = client.begin("send", topic=name, records=[RECORD])
            wait_until([client], lambda: bool(client.failures) or client.has_reply(number))
            if client.failures:
                why = " ".join(client.failures)
            else:
                with pytest.raises(ClientError) as caught:
                    client.finish(number)
                why = str(caught.value)
            client.kill()
    finally:
        tokens.key = EC
    assert ERRORS[kind.name] in why
    if secure.name == "ours" and kind.name in WITH_REASON[mechanism]:
        assert REASONS[mechanism] in why


@pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat on the PATH")
def test_kcat_logs_in_by_plain_and_its_unsigned_token_is_refused(
    secure: CompatBroker, tokens: TokenServer, admin: DriverClient, name: str
) -> None:
    """Debian's kcat knows no token servers. It can make tokens that nobody signs."""

    def run(login: dict[str, str], *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        options = [word for option, value in login.items() for word in ("-X", f"{option}={value}")]
        command = ["kcat", "-b", secure.address, *options, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=KCAT_SECONDS)

    admin.ask("create", topic=name)
    by_plain = place_of(secure, tokens, PLAIN).login.to_librdkafka()
    assert run(by_plain, "-P", "-t", name, stdin=b"one\ntwo\n").returncode == 0
    assert run(by_plain, "-C", "-t", name, "-e").stdout == b"one\ntwo\n"
    unsigned = {**by_plain, "sasl.mechanism": TOKEN, "enable.sasl.oauthbearer.unsecure.jwt": "true"}
    unsigned["sasl.oauthbearer.config"] = f"principal={CLIENT}"
    refused = run(unsigned, "-L", "-m", "3")
    assert refused.returncode != 0 and b"SASL authentication error" in refused.stderr
    if secure.name == "ours":
        assert b"the token is refused: its algorithm is not accepted" in refused.stderr
