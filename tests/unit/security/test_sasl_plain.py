"""PLAIN: the example of the RFC, every wrong message, and users in the value of a setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Refused
from tiered.security.jaas import parse_jaas
from tiered.security.sasl_plain import PlainClient, PlainServer, read_users
from tiered.security.scram import FAILED
from tiered.security.secret import Secret

USERS = {"tim": Secret("tanstaaftanstaaf"), "Kurt": Secret("xipj3plmq"), "é": Secret("ü")}


def server() -> PlainServer:
    """Returns the server's side of a login."""
    return PlainServer(USERS, b"k" * 32)


@pytest.mark.parametrize(
    ("message", "user"),
    [  # RFC 4616, section 4
        (b"\0tim\0tanstaaftanstaaf", "tim"),
        (b"Kurt\0Kurt\0xipj3plmq", "Kurt"),
        ("\0é\0ü".encode(), "é"),
    ],
)
def test_user_with_its_password_is_let_in(message: bytes, user: str) -> None:
    machine = server()
    assert machine.step(message) == b"" and machine.user == user
    with pytest.raises(Refused):
        machine.step(message)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\0tim\0tanstaaftanstaa", FAILED),
        (b"\0tim\0tanstaaftanstaaf\n", FAILED),
        (b"\0nobody\0tanstaaftanstaaf", FAILED),
        (b"\0Tim\0tanstaaftanstaaf", FAILED),
        (b"Ursel\0Kurt\0xipj3plmq", "the authorization id differs"),
        (b"", "not of the form"),
        (b"tim\0tanstaaftanstaaf", "not of the form"),
        (b"\0tim\0tanstaaftanstaaf\0", "not of the form"),
        (b"\0tim\0\xff", "not of the form"),
        (b"\0tim\0" + b"x" * 5000, "not of the form"),
        (b"\0\0tanstaaftanstaaf", "no user or no password"),
        (b"\0tim\0", "no user or no password"),
        (b"\0nobody\0", "no user or no password"),
    ],
)
def test_wrong_message_is_refused_without_a_part_of_it(message: bytes, why: str) -> None:
    machine = server()
    with pytest.raises(Refused) as refused:
        machine.step(message)
    assert why in refused.value.why and "tanst" not in refused.value.why
    assert not machine.user
    with pytest.raises(Refused):
        machine.step(b"\0tim\0tanstaaftanstaaf")


@given(st.binary(max_size=60))
def test_no_other_message_ends_with_a_user(message: bytes) -> None:
    machine = server()
    with pytest.raises(Refused):
        machine.step(message)
    assert not machine.user


def test_client_sends_what_the_server_takes() -> None:
    client, machine = PlainClient("tim", USERS["tim"]), server()
    assert client.step(machine.step(client.make_first())) == b"" and client.is_done and machine.user == "tim"


@pytest.mark.parametrize(
    ("options", "users"),
    [
        ('user_alice="a;b" user_bob=c', {"alice": Secret("a;b"), "bob": Secret("c")}),
        ('username="admin" password="s3cret" user_admin="s3cret"', {"admin": Secret("s3cret")}),
        ('username="admin" password="s3cret"', None),
        ('user_alice=""', None),
        ('user_="s3cret"', None),
    ],
)
def test_users_of_a_listener_are_options_of_its_login_module(options: str, users: dict[str, Secret] | None) -> None:
    module = parse_jaas(f"org.apache.kafka.common.security.plain.PlainLoginModule required {options};")
    if users is not None:
        assert read_users(module) == users
        return
    with pytest.raises(Refused) as refused:
        read_users(module)
    assert "s3cret" not in refused.value.why


def test_login_module_of_another_mechanism_is_refused() -> None:
    with pytest.raises(Refused, match="PlainLoginModule"):
        read_users(parse_jaas("a.ScramLoginModule required user_alice=b;"))
