"""Options of TLS of the command line: the network that they open, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.certificates import sign
from tiered.errors import Refused
from tiered.system.network import SocketNet
from tiered.system.tls import TlsNet
from tiered_api.cli.client_settings import ClientSettings, Source, merge_sources
from tiered_api.cli.client_sources import VARIABLES
from tiered_api.cli.encryption import make_tls_options, open_net


def options(given: Mapping[str, str]) -> ClientSettings:
    """Returns settings from options alone."""
    return merge_sources([Source("-X", given, is_option=True)])


def test_network_has_tls_only_if_an_option_or_the_environment_says_so(tmp_path: Path) -> None:
    signed = sign("CN=alice")
    (tmp_path / "alice.pem").write_text(signed.certificate_pem)
    (tmp_path / "alice.key").write_text(signed.encrypted_key_pem("secret"))
    certificate = {
        "ssl.certificate.location": str(tmp_path / "alice.pem"),
        "ssl.key.location": str(tmp_path / "alice.key"),
        "ssl.key.password": "secret",
    }
    assert isinstance(open_net(options({})), SocketNet)
    assert isinstance(open_net(options({"security.protocol": "plaintext"})), SocketNet)
    assert isinstance(open_net(options({"security.protocol": "ssl", **certificate})), TlsNet)
    given = {"TIERED_SECURITY_PROTOCOL": "SSL", "TIERED_SSL_CA_LOCATION": str(tmp_path / "alice.pem")}
    variables = [Source(name, {VARIABLES[name]: value}) for name, value in given.items()]
    assert isinstance(open_net(merge_sources(variables)), TlsNet)


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
        open_net(options(extra))
    assert words in refused.value.why


def test_certificates_are_those_of_the_first_source_under_either_name(tmp_path: Path) -> None:
    signed = sign("CN=alice")
    pem = tmp_path / "alice.pem"
    pem.write_text(signed.certificate_pem)
    file = Source("file", {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/file.pem"}, is_client=True)
    by_name = {"ssl.ca.location": str(pem)}
    assert make_tls_options(merge_sources([file, Source("variable", by_name)])).trust.location == "/file.pem"
    assert make_tls_options(merge_sources([Source("variable", by_name), file])).trust.location == str(pem)
    assert make_tls_options(merge_sources([Source("profile", by_name, is_client=True), file])).trust.location == str(
        pem
    )
