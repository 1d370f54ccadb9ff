"""The principals of clients with certificates, and 200 handshakes at once beside a client at work."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from pathlib import Path

import pytest

from tests.certificates import Signed, sign
from tests.e2e.kafka_site import KafkaBroker, run
from tiered.access.audit_log import LINES_PER_SECOND
from tiered.config.listener_overrides import ListenerOverride
from tiered.controller.requests import AlterBrokerConfigs
from tiered.metadata.changes import ALL_BROKERS
from tiered.security.principal import ANONYMOUS, Caller, Principal
from tiered_api.kafka.server.server import KafkaServer

HOST = "127.0.0.1"
AUTHORITY = sign("CN=authority")


def settings(folder: Path, client_auth: str) -> dict[str, object]:
    """Returns the settings of a broker with a listener with TLS."""
    (folder / "ca.pem").write_text(AUTHORITY.certificate_pem)
    return {
        "listeners": ("SSL://127.0.0.1:0",),
        "ssl_keystore_location": sign("CN=broker", AUTHORITY).write(folder / "broker.pem"),
        "ssl_truststore_location": str(folder / "ca.pem"),
        "ssl_client_auth": client_auth,
    }


def client_context(folder: Path, signed: Signed | None = None) -> ssl.SSLContext:
    """Returns the context of a client, with a certificate or without one."""
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    if signed is not None:
        context.load_cert_chain(signed.write(folder / "client.pem"))
    return context


async def connect(server: KafkaServer, context: ssl.SSLContext) -> asyncio.StreamWriter:
    """Connects with TLS, and returns once the server has the connection."""
    known = len(server.connections)
    port = next(iter(server.addresses.values())).port
    _, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=HOST)
    while len(server.connections) == known:
        await asyncio.sleep(0)
    return writer


@pytest.mark.parametrize(
    ("rules", "signed", "principal"),
    [
        ("DEFAULT", sign("CN=alice,O=Kranz", AUTHORITY), Principal("User", "CN=alice,O=Kranz")),
        ("RULE:^CN=([^,]+).*$/$1/U", sign("CN=alice,O=Kranz", AUTHORITY), Principal("User", "ALICE")),
        ("RULE:^CN=([^,]+).*$/$1/U", None, ANONYMOUS),
    ],
)
def test_caller_is_the_name_in_the_certificate(
    rules: str, signed: Signed | None, principal: Principal, tmp_path: Path
) -> None:
    async def scenario(site: KafkaBroker) -> None:
        writer = await connect(site.server, client_context(tmp_path, signed))
        (connection,) = site.server.connections
        assert connection.caller == Caller(principal, HOST)
        writer.close()

    run(tmp_path / "data", scenario, **settings(tmp_path, "requested"), ssl_principal_mapping_rules=rules)


def test_client_whose_certificate_no_rule_names_gets_no_connection(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        port = next(iter(site.server.addresses.values())).port
        context = client_context(tmp_path, sign("CN=eve", AUTHORITY))
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=HOST)
        assert await reader.read() == b"" and site.count_refusals("certificate") == 1
        assert not site.server.connections
        writer.close()

    rules = "RULE:^CN=alice.*$/alice/"
    run(tmp_path / "data", scenario, **settings(tmp_path, "required"), ssl_principal_mapping_rules=rules)


def test_flood_of_failed_handshakes_has_few_lines_in_the_audit_log(tmp_path: Path) -> None:
    """Clients with the wrong trust store connect again and again. All failures count, and few have a line."""
    failures = 60

    async def scenario(site: KafkaBroker) -> None:
        lines: list[dict[str, object]] = []
        site.broker.audit.subscribe(lambda line: lines.append(json.loads(line)))
        port = next(iter(site.server.addresses.values())).port
        other_authority = ssl.create_default_context(cadata=sign("CN=another authority").certificate_pem)
        begun = time.monotonic()
        for _ in range(failures):
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(HOST, port, ssl=other_authority, server_hostname=HOST)
        while site.count_refusals("tls_handshake") < failures:
            await asyncio.sleep(0)
        seconds = int(time.monotonic() - begun) + 2
        site.broker.audit.write_counts()
        written = [each for each in lines if each.get("host") == HOST]
        counted = [each["suppressed"] for each in lines if "suppressed" in each]
        assert len(written) <= LINES_PER_SECOND * seconds
        assert len(written) + sum(map(int, map(str, counted))) == failures

    run(tmp_path / "data", scenario, **settings(tmp_path, "none"))


def test_listener_has_its_own_certificate_and_clients(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        for name, common_name in (("SSL", "broker"), ("PARTNERS", "partners")):
            context, port = client_context(tmp_path, sign("CN=alice", AUTHORITY)), site.server.addresses[name].port
            _, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=HOST)
            session = writer.get_extra_info("ssl_object")
            assert session.getpeercert()["subject"] == ((("commonName", common_name),),)
            writer.close()

    own = {
        "ssl.keystore.location": sign("CN=partners", AUTHORITY).write(tmp_path / "partners.pem"),
        "ssl.client.auth": "required",
    }
    given = settings(tmp_path, "none") | {
        "listeners": ("SSL://127.0.0.1:0", "PARTNERS://127.0.0.1:0"),
        "listener_security_protocol_map": ("PARTNERS:SSL",),
        "listener_overrides": tuple(ListenerOverride("PARTNERS", name, value) for name, value in own.items()),
    }
    run(tmp_path / "data", scenario, **given)


@pytest.mark.parametrize(
    ("name", "value"), [("ssl.keystore.location", "no-such-file.pem"), ("ssl.cipher.suites", "TLS_NO_SUCH_SUITE")]
)
def test_setting_that_no_broker_can_use_lets_brokers_start_all_the_same(tmp_path: Path, name: str, value: str) -> None:
    """The cluster's metadata has it, so only a broker that runs can correct it."""
    given = settings(tmp_path, "none")

    async def set_wrong(site: KafkaBroker) -> None:
        await site.broker.submit(AlterBrokerConfigs(ALL_BROKERS, {name: value}))

    async def correct(site: KafkaBroker) -> None:
        (await connect(site.server, client_context(tmp_path))).close()
        await site.broker.submit(AlterBrokerConfigs(ALL_BROKERS, {name: None}))
        (await connect(site.server, client_context(tmp_path))).close()

    run(tmp_path / "data", set_wrong, **given)
    run(tmp_path / "data", correct, **given)


def test_200_handshakes_at_once_complete(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        context, port = client_context(tmp_path), next(iter(site.server.addresses.values())).port
        opened = await asyncio.gather(
            *(asyncio.open_connection(HOST, port, ssl=context, server_hostname=HOST) for _ in range(200))
        )
        while len(site.server.connections) < 200:
            await asyncio.sleep(0)
        assert site.server.context.refusals.count("tls_handshake") == 0
        for _, writer in opened:
            writer.close()

    run(tmp_path / "data", scenario, **settings(tmp_path, "none"), max_connection_creation_rate=1000)
