"""Options of TLS of the command line: the network that they open, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import sign
from tiered.errors import Refused
from tiered.system.network import SocketNet
from tiered.system.tls import TlsNet
from tiered_api.cli.encryption import open_net


def test_network_has_tls_only_if_an_option_or_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = sign("CN=alice")
    (tmp_path / "alice.pem").write_text(signed.certificate_pem)
    (tmp_path / "alice.key").write_text(signed.encrypted_key_pem("secret"))
    certificate = {
        "ssl.certificate.location": str(tmp_path / "alice.pem"),
        "ssl.key.location": str(tmp_path / "alice.key"),
        "ssl.key.password": "secret",
    }
    assert isinstance(open_net({}), SocketNet)
    assert isinstance(open_net({"security.protocol": "plaintext"}), SocketNet)
    assert isinstance(open_net({"security.protocol": "ssl", **certificate}), TlsNet)
    monkeypatch.setenv("TIERED_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("TIERED_SSL_CA_LOCATION", str(tmp_path / "alice.pem"))
    assert isinstance(open_net({}), TlsNet)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: it must be PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL"),
        ({"ssl.ca.location": "/ca.pem"}, "it has no effect without -X security.protocol=SSL"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/absent.pem"},
            "/absent.pem: it cannot be read: No such file",
        ),
        ({"security.protocol": "SSL", "ssl.key.location": "/k"}, "both ssl.certificate.location and ssl.key.location"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"}, "it must be https or none"),
    ],
)
def test_option_that_cannot_be_met_is_refused_with_its_name(extra: dict[str, str], words: str) -> None:
    with pytest.raises(Refused) as refused:
        open_net(extra)
    assert words in refused.value.why
