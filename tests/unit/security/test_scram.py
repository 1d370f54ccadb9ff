"""SCRAM: the examples of the RFCs, every changed field, and whole logins of generated users."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered.errors import Refused
from tiered.security import scram
from tiered.security.scram import ScramClient, ScramCredential, ScramMechanism, ScramServer

# RFC 7677, section 3. The client's nonce and the server's part of the nonce are given there.
RFC_USER, RFC_PASSWORD = "user", "pencil"
RFC_CLIENT_NONCE, RFC_SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
RFC_REPLY = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
RFC_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
RFC_LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SECRET = b"s" * 32


def make(mechanism: ScramMechanism, password: str, salt: bytes = RFC_SALT, iterations: int = 4096) -> ScramCredential:
    """Returns the credential of a password."""
    salted = scram.salt_password(mechanism, password, salt, iterations)
    return scram.make_credential(mechanism, salted, salt, iterations)


RFC_CREDENTIAL = make(ScramMechanism.SHA_256, RFC_PASSWORD)


def server(nonce: str = RFC_SERVER_NONCE) -> ScramServer:
    """Returns a server that knows the user of the RFC."""
    known = {RFC_USER: (RFC_CREDENTIAL,)}
    return ScramServer(ScramMechanism.SHA_256, lambda user: known.get(user, ()), nonce, SECRET)


def test_server_follows_the_example_of_rfc_7677() -> None:
    login = server()
    assert login.step(RFC_FIRST) == RFC_REPLY and not login.user
    assert login.step(RFC_FINAL) == RFC_LAST and login.user == RFC_USER
    with pytest.raises(Refused, match="has ended"):
        login.step(RFC_FINAL)


def test_client_follows_the_example_of_rfc_7677() -> None:
    login = ScramClient(ScramMechanism.SHA_256, RFC_USER, RFC_PASSWORD, RFC_CLIENT_NONCE)
    assert login.make_first() == RFC_FIRST
    assert login.step(RFC_REPLY) == RFC_FINAL and not login.is_done
    assert login.step(RFC_LAST) == b"" and login.is_done


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"n,,", b"p=tls-unique,,"),
        (b"n,,", b"n,a=other,"),
        (b"n=user", b"n="),
        (b"n=user", b"n=us=er"),
        (b",r=rOprNGfwEbeRWgbNEkqO", b""),
        (b"n=user", b"m=ext,n=user"),
        (b"qO", b"qO,m=ext"),
        (b"n=user", b"n=us\0er"),
        (b"n=user", b"n=\xff"),
        (b"EkqO", b"E" * scram.NONCE_MAX),
    ],
)
def test_server_refuses_each_malformed_first_message(old: bytes, new: bytes) -> None:
    login = server()
    assert old in RFC_FIRST
    with pytest.raises(Refused):
        login.step(RFC_FIRST.replace(old, new))
    with pytest.raises(Refused):
        login.step(RFC_FIRST)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=****"),
        (b"k0,p", b"k1,p"),
        (b"r=rOpr", b"r=ropr"),
        (b"p=dH", b"p=eH"),
        (b"zjfMHgsqmmiz7AndVQ=", b""),
        (b"=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"="),
        (b",p=", b",x=1,p="),
    ],
)
def test_server_refuses_each_changed_last_message(old: bytes, new: bytes) -> None:
    login = server()
    login.step(RFC_FIRST)
    assert old in RFC_FINAL
    with pytest.raises(Refused):
        login.step(RFC_FINAL.replace(old, new))
    assert not login.user
    with pytest.raises(Refused):
        login.step(RFC_FINAL)
    assert not login.user, "no second try with the same nonce"


def prove(start: str, first: str) -> bytes:
    """Returns the last message of a client that knows the password, with the right proof of whatever it says."""
    small = ScramMechanism.SHA_256
    signed = f"{RFC_FIRST.decode()[3:]},{first},{start}".encode()
    client_key = small.hmac(scram.salt_password(small, RFC_PASSWORD, RFC_CREDENTIAL.salt, 4096), b"Client Key")
    signature = small.hmac(RFC_CREDENTIAL.stored_key, signed)
    proof = b64encode(bytes(one ^ other for one, other in zip(client_key, signature, strict=True))).decode()
    return f"{start},p={proof}".encode()


def test_channel_binding_is_that_of_the_first_message() -> None:
    """Somebody between client and server could have taken the client's wish for a binding away."""
    login = server()
    first = login.step(RFC_FIRST).decode()
    nonce = first.partition("r=")[2].partition(",")[0]
    with pytest.raises(Refused, match="channel binding"):
        login.step(prove(f"c={b64encode(b'y,,').decode()},r={nonce}", first))
    assert not login.user


@pytest.mark.parametrize("prefix", ["", "rOprNGfwEbeRWgbNEkqO"])
@pytest.mark.parametrize("cut", [0, 1])
def test_last_nonce_ends_with_the_one_of_the_server(prefix: str, cut: int) -> None:
    """librdkafka before 2.6.1 puts its own nonce before that of the server. Kafka 3.9 takes it, Kafka 4 does not."""
    login = server()
    first = login.step(RFC_FIRST).decode()
    nonce = prefix + first.partition("r=")[2].partition(",")[0][cut:]
    last = prove(f"c=biws,r={nonce}", first)
    if not cut:
        assert login.step(last).startswith(b"v=") and login.user == "user"
    else:
        with pytest.raises(Refused, match="nonce"):
            login.step(last)


def test_recorded_login_does_not_open_a_second_one() -> None:
    login = server("another+server+nonce")
    login.step(RFC_FIRST)
    with pytest.raises(Refused):
        login.step(RFC_FINAL)


@pytest.mark.parametrize("later", [(), (make(ScramMechanism.SHA_256, "other"),)], ids=["removed", "changed"])
def test_user_that_changes_between_the_messages_cannot_log_in(later: tuple[ScramCredential, ...]) -> None:
    found = iter([(RFC_CREDENTIAL,), later])
    login = ScramServer(ScramMechanism.SHA_256, lambda _: next(found), RFC_SERVER_NONCE, SECRET)
    login.step(RFC_FIRST)
    with pytest.raises(Refused, match=scram.FAILED):
        login.step(RFC_FINAL)
    assert not login.user


def test_unknown_user_looks_like_a_wrong_password() -> None:
    replies, faults = [], []
    for user, password in (("nobody", RFC_PASSWORD), (RFC_USER, "wrong")):
        login, client = server(), ScramClient(ScramMechanism.SHA_256, user, password, "n")
        replies.append(login.step(client.make_first()))
        with pytest.raises(Refused) as refused:
            login.step(client.step(replies[-1]))
        faults.append((refused.value.code, refused.value.why))
    assert faults[0] == faults[1]
    again = server().step(ScramClient(ScramMechanism.SHA_256, "nobody", "x", "n").make_first())
    assert again == replies[0], "the same salt each time"
    assert replies[0].rpartition(b",i=")[2] == replies[1].rpartition(b",i=")[2]


def test_absent_credentials_have_the_shapes_of_those_of_users() -> None:
    """librdkafka makes salts of 64 random bytes, Kafka's tools make letters, and users choose their iterations."""
    salts = [b"a" * 26, b"b" * 25, bytes(range(64))]
    users = [make(ScramMechanism.SHA_512, "x", salt, iterations) for salt in salts for iterations in (4096, 8192)]
    shapes = scram.list_shapes(users)
    assert len(shapes) == 6
    absent = [scram.make_absent_credential(ScramMechanism.SHA_512, SECRET, f"n{each}", shapes) for each in range(200)]
    assert set(scram.list_shapes(absent)) == set(shapes)
    assert len({each.salt for each in absent}) == 200


def test_absent_credential_stays_while_other_shapes_come() -> None:
    text = scram.CredentialShape(26, True, 4096)
    others = tuple(scram.CredentialShape(size, False, 4096) for size in range(16, 31))
    kept = 0
    for number in range(200):
        before, after = (
            scram.make_absent_credential(ScramMechanism.SHA_256, SECRET, f"n{number}", shapes)
            for shapes in ((text, *others[:7]), (text, *others))
        )
        kept += before == after
    assert 60 < kept < 140, "half of the shapes are new, and half of the names keep theirs"


def test_shapes_are_bounded_and_the_frequent_ones_stay() -> None:
    one_each = [make(ScramMechanism.SHA_256, "x", b"s" * size) for size in range(1, 40)]
    shapes = scram.list_shapes([*one_each, one_each[-1]])
    assert len(shapes) == scram.SHAPES_MAX and shapes[0].salt_bytes == 39
    assert scram.list_shapes([]) == (scram.DEFAULT_SHAPE,)


def test_proof_that_fits_the_absent_credential_is_refused() -> None:
    """A credential without a password is no credential, even to somebody who learned its keys."""
    absent = scram.make_absent_credential(ScramMechanism.SHA_256, SECRET, "nobody")
    login = server()
    reply = login.step(b"n,,n=nobody,r=x").decode()
    start = f"c=biws,{reply.partition(',')[0]}"
    signed = f"n=nobody,r=x,{reply},{start}".encode()
    key = ScramMechanism.SHA_256.hmac(absent.stored_key, signed)
    for client_key in (absent.stored_key, absent.server_key, bytes(32)):
        proof = bytes(one ^ other for one, other in zip(client_key, key, strict=True))
        with pytest.raises(Refused):
            login.step(f"{start},p={b64encode(proof).decode()}".encode())


@pytest.mark.parametrize(
    "reply",
    [
        RFC_REPLY.replace(b"r=rOpr", b"r=ropr"),
        RFC_REPLY.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""),
        RFC_REPLY.replace(b"i=4096", b"i=1"),
        RFC_REPLY.replace(b"i=4096", b"i=999999999"),
        RFC_REPLY.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=*"),
        b"e=unknown-user",
        b"",
        b"\xff",
    ],
)
def test_client_refuses_a_server_that_breaks_the_protocol(reply: bytes) -> None:
    login = ScramClient(ScramMechanism.SHA_256, RFC_USER, RFC_PASSWORD, RFC_CLIENT_NONCE)
    with pytest.raises(Refused):
        login.step(reply)


@pytest.mark.parametrize(
    "last",
    [
        b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=",
        b"v=",
        b"e=other-error",
        b"",
        b"v=*",
    ],
)
def test_client_refuses_a_server_that_does_not_know_the_password(last: bytes) -> None:
    login = ScramClient(ScramMechanism.SHA_256, RFC_USER, RFC_PASSWORD, RFC_CLIENT_NONCE)
    login.step(RFC_REPLY)
    with pytest.raises(Refused):
        login.step(last)
    assert not login.is_done


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ScramMechanism), NAMES, NAMES, NAMES)
def test_login_succeeds_exactly_with_the_password(
    mechanism: ScramMechanism, user: str, password: str, other: str
) -> None:
    credential = make(mechanism, password)
    for given_password in {password, other}:
        login = ScramServer(mechanism, lambda name: (credential,) if name == user else (), "server", SECRET)
        client = ScramClient(mechanism, user, given_password, "client")
        last = client.step(login.step(client.make_first()))
        if given_password == password:
            client.step(login.step(last))
            assert login.user == user and client.is_done
        else:
            with pytest.raises(Refused):
                login.step(last)
            assert not login.user
        assert scram.has_password(mechanism, credential, given_password) is (given_password == password)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_transcript_never_ends_with_a_user(data: st.DataObject) -> None:
    """One byte of the client's messages is replaced, inserted or removed. The user is let in only if the messages still
    say the same."""
    messages = [RFC_FIRST, RFC_FINAL]
    which = data.draw(st.integers(0, 1))
    at = data.draw(st.integers(0, len(messages[which]) - 1))
    cut = data.draw(st.integers(0, 1))
    put = data.draw(st.binary(max_size=2))
    changed = messages[which][:at] + put + messages[which][at + cut :]
    if changed == messages[which]:
        return
    messages[which] = changed
    login = server()
    with pytest.raises(Refused):
        for message in messages:
            login.step(message)
    assert not login.user


def test_no_text_of_a_credential_shows_its_keys() -> None:
    assert repr(RFC_CREDENTIAL) == "ScramCredential(iterations=4096)"
