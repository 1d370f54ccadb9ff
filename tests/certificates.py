"""Certificates that a test makes: an authority, and what it signs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
NAMES = {"CN": NameOID.COMMON_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME, "O": NameOID.ORGANIZATION_NAME}


class Signed(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        """The certificate as text."""
        return self.certificate.public_bytes(PEM).decode()

    @property
    def key_pem(self) -> str:
        """The key as text, not encrypted."""
        return self._key_pem(serialization.NoEncryption())

    def encrypted_key_pem(self, password: str) -> str:
        """Returns the key as text, encrypted."""
        return self._key_pem(serialization.BestAvailableEncryption(password.encode()))

    def write(self, path: Path) -> str:
        """Writes key and certificate into one file, and returns its path."""
        path.write_text(self.key_pem + self.certificate_pem)
        return str(path)

    def _key_pem(self, encryption: serialization.KeySerializationEncryption) -> str:
        return self.key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption).decode()


def sign(
    subject: str,
    issuer: Signed | None = None,
    *,
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
    days: tuple[int, int] = (-1, 10),
) -> Signed:
    """Returns a certificate for `subject` (`CN=a,O=b`), signed by `issuer`; by itself, as an authority, without one.

    It is valid from the first of `days` until the second, counted from now.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NAMES[part.partition("=")[0]], part.partition("=")[2]) for part in subject.split(",")][::-1]
    )
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days[0]))
        .not_valid_after(now + timedelta(days[1]))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if issuer is not None:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
        names = x509.SubjectAlternativeName([_host_name(host) for host in hosts])
        builder = builder.add_extension(authority, critical=False).add_extension(names, critical=False)
    return Signed(builder.sign(key if issuer is None else issuer.key, hashes.SHA256()), key)


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
