"""Contexts of TLS: the forms of keys, certificates of clients, renewal, and what is refused with which words."""

from __future__ import annotations

import logging
import resource
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from tests.certificates import Signed, sign
from tests.unit.hot.fixtures import FixedClock
from tiered.errors import Refused
from tiered.security.certificates import DAY_MS
from tiered.security.secret import Secret
from tiered.system.clock import SystemClock
from tiered.system.tls_contexts import (
    RETRY_MS,
    TlsContexts,
    make_client_context,
    make_server_context,
    read_key_certificate,
)
from tiered.system.tls_options import PKCS12, REQUIRED, Store, TlsOptions

CLOCK = SystemClock()
AUTHORITY = sign("CN=authority")
BROKER = sign("CN=broker", AUTHORITY)
TRUST = Store(certificates=AUTHORITY.certificate_pem)
CLIENT = TlsOptions(trust=TRUST)


def shake_hands(accept: ssl.SSLContext | TlsContexts, client: ssl.SSLContext) -> tuple[str, str]:
    """Runs a handshake in memory. Returns the name in the server's certificate and the one in the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    far = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    if isinstance(accept, TlsContexts):
        near = accept.accept(to_server, to_client)
    else:
        near = accept.wrap_bio(to_server, to_client, server_side=True)
    done = set()
    for _ in range(4):
        for side in (far, near):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    assert len(done) == 2
    return _name(far.getpeercert()), _name(near.getpeercert())


def _name(certificate: object) -> str:
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return "".join(str(value) for part in subject for _, value in part)


def in_one_line(pem: str) -> str:
    """Returns a PEM text as a file of settings may have it."""
    return pem.replace("\n", "\\n")


def pkcs12_file(path: Path, signed: Signed, password: str) -> str:
    """Writes a PKCS#12 file with key, certificate and authority."""
    made = pkcs12.serialize_key_and_certificates(
        b"broker", signed.key, signed.certificate, [AUTHORITY.certificate], BestAvailableEncryption(password.encode())
    )
    path.write_bytes(made)
    return str(path)


def test_key_may_be_a_file_a_text_or_pkcs12(tmp_path: Path) -> None:
    keys = (
        Store(location=BROKER.write(tmp_path / "broker.pem")),
        Store(certificates=BROKER.certificate_pem, key=Secret(BROKER.key_pem)),
        Store(certificates=in_one_line(BROKER.certificate_pem), key=Secret(in_one_line(BROKER.key_pem))),
        Store(
            certificates=BROKER.certificate_pem,
            key=Secret(BROKER.encrypted_key_pem("secret")),
            password=Secret("secret"),
        ),
        Store(PKCS12, pkcs12_file(tmp_path / "broker.p12", BROKER, "secret"), Secret("secret")),
    )
    for key in keys:
        assert shake_hands(make_server_context(TlsOptions(key)), make_client_context(CLIENT)) == ("broker", "")
        assert read_key_certificate(key).subject == "CN=broker"


def test_client_shows_a_certificate_that_the_listener_trusts() -> None:
    server = make_server_context(
        TlsOptions(Store(certificates=BROKER.certificate_pem, key=Secret(BROKER.key_pem)), TRUST, client_auth=REQUIRED)
    )

    def client(authority: Signed) -> ssl.SSLContext:
        signed = sign("CN=alice", authority)
        key = Store(certificates=signed.certificate_pem, key=Secret(signed.key_pem))
        return make_client_context(TlsOptions(key, TRUST))

    assert shake_hands(server, client(AUTHORITY)) == ("broker", "alice")
    with pytest.raises(ssl.SSLError, match=r"(?i)did_not_return_a_certificate|did not return a certificate"):
        shake_hands(server, make_client_context(CLIENT))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client(sign("CN=authority")))


def test_versions_without_one_in_common_fail() -> None:
    key = Store(certificates=BROKER.certificate_pem, key=Secret(BROKER.key_pem))
    old, new = TlsOptions(key, protocols=("TLSv1.2",)), TlsOptions(trust=TRUST, protocols=("TLSv1.3",))
    with pytest.raises(ssl.SSLError, match=r"(?i)unsupported.protocol|alert.protocol.version"):
        shake_hands(make_server_context(old), make_client_context(new))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TlsOptions(), "ssl.keystore.location: a listener with TLS needs a key"),
        (TlsOptions(Store(location="/absent.pem")), "ssl.keystore.location=/absent.pem: it cannot be read: No such"),
        (TlsOptions(Store(certificates=BROKER.certificate_pem)), "one private key and its certificates"),
        (
            TlsOptions(Store(certificates=BROKER.certificate_pem, key=Secret(AUTHORITY.key_pem))),
            "one private key and its",
        ),
        (
            TlsOptions(Store(key=Secret(BROKER.encrypted_key_pem("a")), password=Secret("b"))),
            "ssl.key.password must open it",
        ),
        (TlsOptions(Store(PKCS12, __file__)), "it is no PKCS#12 file, or ssl.keystore.password does not open it"),
        (TlsOptions(Store(location=__file__)), "one private key and its certificates as PEM"),
    ],
)
def test_key_that_cannot_be_used_is_refused_with_the_setting(options: TlsOptions, words: str) -> None:
    with pytest.raises(Refused) as refused:
        make_server_context(options)
    assert words in refused.value.why


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client_auth": REQUIRED}, "ssl.client.auth=required: it needs ssl.truststore.location"),
        ({"client_auth": REQUIRED, "trust": Store(location=__file__)}, "has no certificates that can be read"),
        ({"ciphers": ("TLS_NONE",)}, "ssl.cipher.suites=TLS_NONE: OpenSSL knows none"),
        ({"protocols": ()}, "ssl.enabled.protocols"),
    ],
)
def test_options_that_cannot_be_met_are_refused_with_the_setting(change: dict[str, Any], words: str) -> None:
    good = TlsOptions(Store(certificates=BROKER.certificate_pem, key=Secret(BROKER.key_pem)))
    with pytest.raises(Refused) as refused:
        make_server_context(good._replace(**change))
    assert words in refused.value.why


def test_certificate_is_renewed_from_its_file_unless_it_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tiered.system.tls_contexts.LOOK_SECONDS", 0)
    path = tmp_path / "broker.pem"
    options = TlsOptions(Store(location=BROKER.write(path)))
    contexts, client = TlsContexts(lambda: options, CLOCK), make_client_context(CLIENT)
    assert shake_hands(contexts, client) == ("broker", "")
    sign("CN=renewed", AUTHORITY).write(path)
    assert shake_hands(contexts, client) == ("renewed", "")
    path.write_text("half a file")
    for _ in range(3):
        assert shake_hands(contexts, client) == ("renewed", "")
    assert sum("the old ones stay" in record.message for record in caplog.records) == 1
    options = TlsOptions(Store(location=sign("CN=moved", AUTHORITY).write(tmp_path / "other.pem")))
    assert shake_hands(contexts, client) == ("moved", "")


@pytest.mark.parametrize(("days", "why"), [((-3, -1), "expired at"), ((1, 3), "is not valid before")])
def test_certificate_with_wrong_dates_does_not_replace_a_valid_one(
    days: tuple[int, int], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "broker.pem", FixedClock(CLOCK.wall_ms())
    options = TlsOptions(Store(location=BROKER.write(path)))
    contexts, client = TlsContexts(lambda: options, clock), make_client_context(CLIENT)
    assert shake_hands(contexts, client) == ("broker", "") and contexts.rejected == ""
    sign("CN=renewed", AUTHORITY, days=days).write(path)
    for _ in range(3):
        contexts.look()
    assert shake_hands(contexts, client) == ("broker", "")
    assert f"the new certificate (CN=renewed) {why}" in contexts.rejected
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    clock.wall += 2 * DAY_MS
    contexts.look()
    renewed = days[0] > 0
    assert contexts.rejected.count(why) == (not renewed)
    assert contexts.certificate is not None
    assert contexts.certificate.subject == ("CN=renewed" if renewed else "CN=broker")


def test_expired_certificate_is_used_if_the_old_one_is_no_longer_valid(tmp_path: Path) -> None:
    path, clock = tmp_path / "broker.pem", FixedClock(CLOCK.wall_ms())
    options = TlsOptions(Store(location=BROKER.write(path)))
    contexts = TlsContexts(lambda: options, clock)
    contexts.check()
    sign("CN=renewed", AUTHORITY, days=(-3, -1)).write(path)
    contexts.look()
    assert contexts.certificate is not None and contexts.certificate.subject == "CN=broker"
    clock.wall += 11 * DAY_MS
    contexts.look()
    assert contexts.certificate.subject == "CN=renewed" and contexts.rejected == ""


def test_old_file_that_comes_back_ends_the_rejection(tmp_path: Path) -> None:
    path, aside = tmp_path / "broker.pem", tmp_path / "aside.pem"
    options = TlsOptions(Store(location=BROKER.write(path)))
    contexts = TlsContexts(lambda: options, CLOCK)
    contexts.check()
    path.rename(aside)
    contexts.look()
    assert "it cannot be read" in contexts.rejected
    aside.rename(path)
    contexts.look()
    assert contexts.rejected == ""


def test_certificate_that_could_not_be_opened_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker had no descriptor for the new file. The file is the same afterwards."""
    path, clock = tmp_path / "broker.pem", FixedClock(CLOCK.wall_ms())
    options = TlsOptions(Store(location=BROKER.write(path)))
    contexts = TlsContexts(lambda: options, clock)
    contexts.check()
    sign("CN=renewed", AUTHORITY).write(path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        contexts.look()
        clock.wall += RETRY_MS
        contexts.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "it cannot be read: Too many open files" in contexts.rejected and len(caplog.records) == 1
    clock.wall += RETRY_MS - 1
    contexts.look()
    assert contexts.rejected != ""
    clock.wall += 1
    contexts.look()
    assert contexts.rejected == "" and contexts.certificate is not None
    assert contexts.certificate.subject == "CN=renewed"


def test_path_that_no_file_can_have_is_rejected_like_a_missing_file() -> None:
    options = TlsOptions(Store(certificates=BROKER.certificate_pem, key=Secret(BROKER.key_pem)))
    contexts = TlsContexts(lambda: options, CLOCK)
    contexts.check()
    options = TlsOptions(Store(location="a\0b"))
    assert shake_hands(contexts, make_client_context(CLIENT)) == ("broker", "")
    assert "it cannot be read: embedded null byte" in contexts.rejected


def test_new_certificate_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "broker.pem"
    options = TlsOptions(Store(location=BROKER.write(path)))
    contexts = TlsContexts(lambda: options, CLOCK)
    contexts.check()
    renewed = sign("CN=renewed,O=b", AUTHORITY)
    renewed.write(path)
    for _ in range(2):
        contexts.look()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    not_after = renewed.certificate.not_valid_after_utc.isoformat(timespec="seconds")
    assert "subject=CN=renewed,O=b names=DNS:localhost,IP:127.0.0.1 serial=" in line
    assert line.endswith(f" not_after={not_after}")


def test_client_of_an_authority_that_was_removed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.system.tls_contexts.LOOK_SECONDS", 0)
    other, trusted = sign("CN=other"), tmp_path / "trusted.pem"
    trusted.write_text(AUTHORITY.certificate_pem + other.certificate_pem)
    key = Store(certificates=BROKER.certificate_pem, key=Secret(BROKER.key_pem))
    options = TlsOptions(key, Store(location=str(trusted)), client_auth=REQUIRED)
    contexts, clients = TlsContexts(lambda: options, CLOCK), []
    for authority in (AUTHORITY, other):
        signed = sign("CN=alice", authority)
        own = Store(certificates=signed.certificate_pem, key=Secret(signed.key_pem))
        clients.append(make_client_context(TlsOptions(own, TRUST)))
    assert [shake_hands(contexts, client) for client in clients] == [("broker", "alice")] * 2
    trusted.write_text(AUTHORITY.certificate_pem)
    assert shake_hands(contexts, clients[0]) == ("broker", "alice")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(contexts, clients[1])


def test_start_with_other_options_asks_for_no_fewer_certificates() -> None:
    """The options in force cannot be used. Those of the start do not ask clients for certificates."""
    key = Store(certificates=BROKER.certificate_pem, key=Secret(BROKER.key_pem))
    wrong = TlsOptions(key=key, trust=Store(location="no-such-file.pem"), client_auth=REQUIRED)
    contexts = TlsContexts(lambda: wrong, CLOCK, fallback=TlsOptions(key=key, trust=TRUST))
    contexts.check()
    with pytest.raises(ssl.SSLError):
        shake_hands(contexts, make_client_context(CLIENT))
    with pytest.raises(Refused):
        TlsContexts(lambda: wrong, CLOCK, fallback=TlsOptions(key=key)).check()


def test_secrets_are_not_in_the_text_of_options() -> None:
    options = TlsOptions(Store(key=Secret(BROKER.key_pem), password=Secret("eightyeight")))
    assert "eightyeight" not in repr(options) and "PRIVATE" not in repr(options)


def test_renewing_context_makes_sessions_however_many_are_half_done() -> None:
    """The listener bounds them by address: a bound here would let one address shut out all others."""
    options = TlsOptions(Store(certificates=BROKER.certificate_pem, key=Secret(BROKER.key_pem)))
    context = TlsContexts(lambda: options, CLOCK).make_renewing()
    half = [context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True) for _ in range(300)]
    assert shake_hands(context, make_client_context(CLIENT)) == ("broker", "")
    assert all(each.version() is None for each in half)
