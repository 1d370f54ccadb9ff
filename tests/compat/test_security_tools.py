"""Tests of Kafka's own tools for users, rights, quotas and delegation tokens, over SASL_SSL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compat.brokers import CompatBroker, run_broker
from tests.compat.client import ClientRecord, DriverClient
from tests.compat.clients import KINDS
from tests.compat.conftest import CHOICE
from tests.compat.login import Login
from tests.peer.kafka import tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
WANTED = {"secure": ("ours",), "peer": ("peer",), "all": ("ours", "peer")}
SECRET = "another s3cret"


@pytest.fixture(scope="module", params=WANTED.get(CHOICE, ()))
def secure(request: pytest.FixtureRequest) -> Iterator[CompatBroker]:
    """Yields each of the brokers, with a listener of SASL_SSL."""
    with run_broker(request.param, secure=True) as one:
        yield one


def run(broker: CompatBroker, name: str, *arguments: str) -> str:
    """Runs a tool as the administrator; returns its output."""
    return tool(name, *broker.reach, *arguments)


def login_of(broker: CompatBroker, user: str, password: str) -> Login:
    assert broker.login is not None
    return broker.login._replace(user=user, password=password)


class Other(NamedTuple):
    """The same broker for another user."""

    address: str
    login: Login

    def start(self) -> DriverClient:
        """Starts a client of the user."""
        return KINDS[0].start(self)

    def run(self, name: str, properties: Path, *arguments: str, token: bool = False) -> str:
        """Runs a tool as the user."""
        file = self.login.write_properties(properties, token=token)
        return tool(name, "--bootstrap-server", self.address, "--command-config", str(file), *arguments)


def add_user(broker: CompatBroker, user: str, password: str = SECRET) -> Other:
    """Adds a user of SCRAM-SHA-512 by Kafka's tool."""
    run(broker, "configs", "--alter", *entity("users", user), "--add-config", f"SCRAM-SHA-512=[password={password}]")
    return Other(broker.address, login_of(broker, user, password))


def entity(kind: str, name: str) -> list[str]:
    return ["--entity-type", kind, "--entity-name", name]


def test_configs_tool_keeps_users_and_quotas(secure: CompatBroker, name: str, tmp_path: Path) -> None:
    alice = add_user(secure, f"alice-{name}")
    user = alice.login.user
    described = run(secure, "configs", "--describe", *entity("users", user))
    assert f"SCRAM credential configs for user-principal '{user}' are SCRAM-SHA-512=iterations=4096" in described
    run(secure, "configs", "--alter", *entity("users", user), "--add-config", "producer_byte_rate=1048576")
    described = run(secure, "configs", "--describe", *entity("users", user))
    assert f"Quota configs for user-principal '{user}' are producer_byte_rate=1048576.0" in described
    run(secure, "configs", "--alter", *entity("users", user), "--delete-config", "producer_byte_rate")
    assert "producer_byte_rate" not in run(secure, "configs", "--describe", *entity("users", user))
    with alice.start() as client:
        assert name not in client.ask("topics")
    run(secure, "configs", "--alter", *entity("users", user), "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM-SHA-512" not in run(secure, "configs", "--describe", *entity("users", user))
    with pytest.raises(RuntimeError, match="SaslAuthenticationException"):
        alice.run("topics", tmp_path / "client", "--list")


def test_acls_tool_gives_rights_to_a_user_and_takes_them(secure: CompatBroker, name: str) -> None:
    bob = add_user(secure, f"bob-{name}")
    principal = f"User:{bob.login.user}"
    run(secure, "topics", "--create", "--topic", name, "--partitions", "1")
    with bob.start() as client:
        assert name not in client.ask("topics")
        added = run(secure, "acls", "--add", "--allow-principal", principal, "--producer", "--topic", name, "--force")
        assert f"principal={principal}, host=*, operation=WRITE, permissionType=ALLOW" in added
        listed = run(secure, "acls", "--list", "--topic", name)
        for operation in ("WRITE", "DESCRIBE", "CREATE"):
            assert f"(principal={principal}, host=*, operation={operation}, permissionType=ALLOW)" in listed
        assert client.ask("topics") == {name: 1}
        assert client.send(name, [ClientRecord(b"value")]) == [(0, 0)]
    run(secure, "acls", "--remove", "--allow-principal", principal, "--producer", "--topic", name, "--force")
    assert principal not in run(secure, "acls", "--list", "--topic", name)
    with bob.start() as client:
        assert name not in client.ask("topics")


def test_delegation_tokens_tool_makes_renews_and_ends_tokens(secure: CompatBroker, name: str, tmp_path: Path) -> None:
    carol, dave = add_user(secure, f"carol-{name}"), add_user(secure, f"dave-{name}")
    owner, renewer = f"User:{carol.login.user}", f"User:{dave.login.user}"
    file = tmp_path / "client"
    hour = str(3_600_000)
    made = carol.run(
        "delegation-tokens", file, "--create", "--max-life-time-period", hour, "--renewer-principal", renewer
    )
    token_id, hmac, *principals = made.strip().splitlines()[-1].split()
    assert principals[:3] == [owner, owner, f"[{renewer}]"]
    bearer = Other(secure.address, login_of(secure, token_id, hmac))
    listed = dave.run("delegation-tokens", file, "--describe", "--owner-principal", owner)
    assert "Total number of tokens : 1" in listed and hmac in listed
    said = bearer.run("topics", file, "--list", token=True)
    assert name not in said
    with pytest.raises(RuntimeError, match="UnsupportedByAuthenticationException"):
        bearer.run("delegation-tokens", file, "--describe", token=True)
    renewed = dave.run("delegation-tokens", file, "--renew", "--renew-time-period", hour, "--hmac", hmac)
    assert "Completed renew operation" in renewed
    with pytest.raises(RuntimeError, match="DelegationTokenAuthorizationException"):
        carol.run("delegation-tokens", file, "--create", "--max-life-time-period", hour, "--owner-principal", renewer)
    run(secure, "acls", "--add", "--allow-principal", owner, "--operation", "CreateTokens", "--user-principal", renewer)
    made = carol.run(
        "delegation-tokens", file, "--create", "--max-life-time-period", hour, "--owner-principal", renewer
    )
    assert made.strip().splitlines()[-1].split()[2:4] == [renewer, owner]
    ended = carol.run("delegation-tokens", file, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert "Completed expire operation" in ended
    with pytest.raises(RuntimeError, match="DelegationTokenNotFoundException"):
        carol.run("delegation-tokens", file, "--renew", "--renew-time-period", hour, "--hmac", hmac)
    with pytest.raises(RuntimeError, match="SaslAuthenticationException"):
        bearer.run("topics", file, "--list", token=True)
