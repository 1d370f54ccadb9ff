"""OpenSSL's contexts, made from settings and files, and made anew when these change.

A certificate is renewed by a new file of the same name, or by a new setting. Connections that exist keep their session.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.ports import Clock
from tiered.security.certificates import find_next_decision_ms, refuse_replacement
from tiered.security.x509 import Certificate, read_certificate
from tiered.system.tls import MakeSession
from tiered.system.tls_faults import describe_fault
from tiered.system.tls_options import NONE, PKCS12, REQUIRED, TLS_1_2, TLS_1_3, Store, TlsOptions, wrap_pem
from tiered.time_text import format_time

log = logging.getLogger(__name__)

LOOK_SECONDS = 5
"""Time between two looks at the files."""
RETRY_MS = 60_000
"""Time after which files that could not be used are tried again. New rights, or descriptors that are free again, do not
change a file."""
STORE_BYTES_MAX = 4 << 20
TICKETS = 1
"""Tickets for later sessions that a listener sends after a handshake: OpenSSL sends two, and each costs as much as a
small request."""
FLIGHTS = 4
"""Turns that both sides of a handshake have at most."""
NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name."""
_PEM = re.compile(r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END")
VERSIONS = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
NO_CRYPTOGRAPHY = "type PKCS12 needs the package cryptography: pip install 'tiered[tls]'"


class _State(NamedTuple):
    """The origin of contexts: the settings, and identity and time of each file."""

    options: TlsOptions
    files: tuple[tuple[int, int, int] | None, ...]


class _Made(NamedTuple):
    """The contexts of one state: of listeners (True) and of connections (False), with the certificate of listeners, and
    why connections refuse it."""

    contexts: dict[bool, ssl.SSLContext]
    certificate: Certificate | None
    distrusted: str = ""


class _Rejection(NamedTuple):
    """A state that is not used, with the reason, and the time from which it is judged again."""

    state: _State
    why: str
    again_ms: int


class RenewingContext(ssl.SSLContext):
    """A context for asyncio's own TLS. Its sessions are made by the contexts in force. It bounds nothing: its listener
    does, because it knows the addresses."""

    contexts: TlsContexts

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.contexts.accept(incoming, outgoing)


class TlsContexts:
    """The contexts of one process, for listeners and for connections. `options` returns the settings in force.

    A new certificate whose dates are wrong by `clock` does not replace a valid one.

    `fallback` are those that the process was started with, or None. They are used if those in force cannot be used at
    the start: a wrong setting in the cluster's metadata could not be corrected if no broker started.
    """

    def __init__(
        self,
        options: Callable[[], TlsOptions],
        clock: Clock,
        *,
        at_listener: bool = True,
        fallback: TlsOptions | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._fallback = fallback
        self._made = _Made({}, None)
        self._state: _State | None = None
        self._rejection: _Rejection | None = None
        self._next_look_ns = 0
        self._at_listener = at_listener

    @property
    def certificate(self) -> Certificate | None:
        """The certificate that listeners show; None before the first context was made."""
        return self._made.certificate

    @property
    def rejected(self) -> str:
        """Why the newest files or settings are not used; "" if they are."""
        return self._rejection.why if self._rejection is not None else ""

    @property
    def distrusted(self) -> str:
        """Why the trust store refuses the certificate that listeners show; "" if it takes it, or if there is none."""
        return self._made.distrusted

    def look(self) -> None:
        """Looks at settings and files at once. Does nothing before the first context was made."""
        if self._state is not None:
            self._look(self._options())

    def check(self) -> None:
        """Raises `Refused` (INVALID_CONFIG) if no context can be made."""
        state = _read_state(self._options())
        try:
            self._use(state, self._make(state.options))
        except Refused as refused:
            if self._fallback is None or self._fallback == state.options:
                raise
            # Clients that need a certificate now need one all the same.
            used = _read_state(self._fallback._replace(client_auth=state.options.client_auth))
            self._use(used, self._make(used.options))
            self._rejection = _Rejection(state, refused.why, self._clock.wall_ms() + RETRY_MS)
            log.error("settings of TLS are not used: those of the start are instead reason=%s", refused.why)

    def accept(self, received: ssl.MemoryBIO, unsent: ssl.MemoryBIO) -> ssl.SSLObject:
        """Makes a session of a listener."""
        return self._context(at_listener=True).wrap_bio(received, unsent, server_side=True)

    def make_renewing(self) -> RenewingContext:
        """Returns a context for a listener of asyncio. Raises `Refused` (INVALID_CONFIG) without a certificate."""
        self.check()
        made = RenewingContext(ssl.PROTOCOL_TLS_SERVER)
        made.contexts = self
        return made

    def connect_to(self, host: str) -> MakeSession:
        """Returns how to make a session for a connection to `host`."""
        context = self._context(at_listener=False)
        return lambda received, unsent: context.wrap_bio(received, unsent, server_hostname=host)

    def _context(self, *, at_listener: bool) -> ssl.SSLContext:
        options = self._options()
        if self._state is None:
            self.check()
        elif self._clock.mono_ns() >= self._next_look_ns or options != self._state.options:
            self._look(options)
        return self._made.contexts[at_listener]

    def _look(self, options: TlsOptions) -> None:
        self._next_look_ns = self._clock.mono_ns() + LOOK_SECONDS * 10**9
        state, last = _read_state(options), self._rejection
        if state == self._state:
            self._rejection = None
        elif last is None or last.state != state or self._clock.wall_ms() >= last.again_ms:
            self._try_renew(state)

    def _try_renew(self, state: _State) -> None:
        old, now_ms = self._made.certificate, self._clock.wall_ms()
        try:
            made = self._make(state.options)
        except Refused as refused:
            self._reject(_Rejection(state, refused.why, now_ms + RETRY_MS))
            return
        new = made.certificate
        if old is not None and new is not None and (why := refuse_replacement(old, new, now_ms)):
            self._reject(_Rejection(state, why, find_next_decision_ms(old, new, now_ms)))
            return
        self._use(state, made)
        if new is not None and new != old:
            log.info(
                "a new certificate is used subject=%s names=%s serial=%s not_after=%s",
                new.subject, ",".join(new.names), new.serial, format_time(new.not_after_ms),
            )  # fmt: skip
        else:
            log.info("certificates and settings of TLS were read anew")

    def _reject(self, rejection: _Rejection) -> None:
        last, self._rejection = self._rejection, rejection
        if last is None or last[:2] != rejection[:2]:
            log.error("new certificates or settings of TLS are not used: the old ones stay reason=%s", rejection.why)

    def _make(self, options: TlsOptions) -> _Made:
        contexts = {False: make_client_context(options)}
        if not self._at_listener:
            return _Made(contexts, None)
        contexts[True] = make_server_context(options)
        return _Made(contexts, read_key_certificate(options.key), find_distrust(options))

    def _use(self, state: _State, made: _Made) -> None:
        self._made, self._state, self._rejection = made, state, None
        self._next_look_ns = self._clock.mono_ns() + LOOK_SECONDS * 10**9


def make_server_context(options: TlsOptions) -> ssl.SSLContext:
    """Returns a context for listeners. Raises `Refused` (INVALID_CONFIG) with the setting that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, options)
    if not options.key:
        raise _refuse("ssl.keystore.location: a listener with TLS needs a key and a certificate")
    context.num_tickets = TICKETS
    _load_key(context, options.key)
    if options.client_auth != NONE:
        if not options.trust:
            raise _refuse(f"ssl.client.auth={options.client_auth}: it needs ssl.truststore.location")
        _load_trusted(context, options.trust)
        context.verify_mode = ssl.CERT_REQUIRED if options.client_auth == REQUIRED else ssl.CERT_OPTIONAL
    return context


def make_client_context(options: TlsOptions) -> ssl.SSLContext:
    """Returns a context for connections. Without a trust store, the authorities of the machine are trusted.

    Raises `Refused` (INVALID_CONFIG) with the setting that is wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_protocols(context, options)
    context.check_hostname = options.checks_host
    if options.trust:
        _load_trusted(context, options.trust)
    else:
        context.load_default_certs()
    if options.key:
        _load_key(context, options.key)
    return context


def find_distrust(options: TlsOptions) -> str:
    """Returns why a connection by these options refuses a listener by the same options, or is refused by it; "" if both
    sides agree, or without a trust store. Dates and names of hosts are judged elsewhere."""
    if not options.trust:
        return ""
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    contexts = make_client_context(options._replace(checks_host=False)), make_server_context(options)
    for each in contexts:
        each.verify_flags |= NO_CHECK_TIME
    sessions = contexts[0].wrap_bio(here, there), contexts[1].wrap_bio(there, here, server_side=True)
    for session in sessions * FLIGHTS:
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            return describe_fault(error)
    return ""


def read_key_certificate(store: Store) -> Certificate:
    """Returns the facts of the certificate of a key: the first one. Raises `Refused` (INVALID_CONFIG) without one."""
    name = "ssl.keystore.location"
    if store.location and store.type != PKCS12:
        text = _read_file(name, store.location).decode("ascii", "replace")
    else:
        text = _key_text(store)
    found = _PEM.search(text)
    try:
        return read_certificate(base64.b64decode(found[1] if found is not None else ""))
    except ValueError as error:
        where = store.location or "ssl.keystore.certificate.chain"
        raise _refuse(f"{name}: {where} has no certificate that can be read: {error}") from None


def _set_protocols(context: ssl.SSLContext, options: TlsOptions) -> None:
    versions = [VERSIONS[name] for name in options.protocols if name in VERSIONS]
    if not versions:
        raise _refuse(f"ssl.enabled.protocols: it must name {' or '.join(VERSIONS)}")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if options.ciphers:
        try:
            context.set_ciphers(":".join(options.ciphers))
        except ssl.SSLError:
            why = "OpenSSL knows none of these for TLSv1.2; names are OpenSSL's, such as ECDHE-RSA-AES128-GCM-SHA256"
            raise _refuse(f"ssl.cipher.suites={','.join(options.ciphers)[:200]}: {why}") from None


def _load_key(context: ssl.SSLContext, store: Store) -> None:
    name = "ssl.keystore.location"
    with contextlib.ExitStack() as stack:
        if store.location and store.type != PKCS12:
            is_encrypted = b"ENCRYPTED" in _read_file(name, store.location)
            path = store.location
        else:
            text = _key_text(store)
            is_encrypted = "ENCRYPTED" in text
            path = stack.enter_context(_secret_file(text.encode()))
        try:
            context.load_cert_chain(path, password=lambda: store.password.reveal())
        except (ssl.SSLError, OSError, ValueError) as error:
            why = "it must have one private key and its certificates as PEM, the key's own first"
            if is_encrypted:
                why += "; the key is encrypted, and ssl.key.password must open it"
            reason = getattr(error, "reason", None) or type(error).__name__
            where = store.location or "ssl.keystore.certificate.chain and ssl.keystore.key"
            raise _refuse(f"{name}: {where} cannot be used: {why} ({reason})") from None


def _key_text(store: Store) -> str:
    if store.type != PKCS12:
        return wrap_pem(store.key.reveal()) + wrap_pem(store.certificates)
    return _open_pkcs12("ssl.keystore", store)[0]


def _load_trusted(context: ssl.SSLContext, store: Store) -> None:
    name = "ssl.truststore.location"
    if store.type == PKCS12:
        text = _open_pkcs12("ssl.truststore", store)[1]
    elif store.location:
        text = _read_file(name, store.location).decode("ascii", "replace")
    else:
        text = wrap_pem(store.certificates)
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        where = store.location or "ssl.truststore.certificates"
        raise _refuse(f"{name}: {where} has no certificates that can be read") from None


def _open_pkcs12(name: str, store: Store) -> tuple[str, str]:
    """Returns key with certificates, and the certificates alone, of a PKCS#12 file, as PEM."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise _refuse(f"{name}.location={store.location}: {NO_CRYPTOGRAPHY}") from None
    data = _read_file(f"{name}.location", store.location)
    try:
        opened = pkcs12.load_pkcs12(data, store.password.reveal().encode())
    except ValueError:
        why = f"it is no PKCS#12 file, or {name}.password does not open it"
        raise _refuse(f"{name}.location={store.location}: {why}") from None
    found = [opened.cert, *opened.additional_certs] if opened.cert is not None else [*opened.additional_certs]
    certificates = "".join(
        each.certificate.public_bytes(serialization.Encoding.PEM).decode() for each in found if each is not None
    )
    if opened.key is None:
        return certificates, certificates
    key = opened.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key.decode() + certificates, certificates


def _read_file(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise _refuse(f"{name}={path}: it cannot be read: {getattr(error, 'strerror', error)}") from None
    if len(data) > STORE_BYTES_MAX:
        raise _refuse(f"{name}={path}: it is longer than {STORE_BYTES_MAX} bytes")
    return data


@contextlib.contextmanager
def _secret_file(data: bytes) -> Iterator[str]:
    """Yields the path of a file for OpenSSL, which reads keys from files only. The file is in memory, or else readable
    by this user alone, and is gone afterwards."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name


def _read_state(options: TlsOptions) -> _State:
    return _State(options, tuple(_identify(store.location) for store in (options.key, options.trust)))


def _identify(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat() if path else None
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if found is not None else None


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, why)
